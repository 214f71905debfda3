"""`inframind calibrate`: a request log in, a server card and a report out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from inframind_gym.errors import InfraMindError
from inframind_gym.files import replace_text

if TYPE_CHECKING:
    from inframind_gym.calibration.fit import Calibration


def calibrate(
    log: Annotated[Path, typer.Argument(help="request log, JSON Lines, in order of arrival")],
    max_num_seqs: Annotated[int, typer.Option(help="as the server was started with")],
    max_num_batched_tokens: Annotated[int, typer.Option(help="as the server was started with")],
    out: Annotated[Path, typer.Option(help="server card to write, YAML")],
    report: Annotated[Path, typer.Option(help="figures to write, JSON")],
    num_kv_blocks: Annotated[
        int | None,
        typer.Option(help="as the server reports at start-up; without it the cache never fills up"),
    ] = None,
    block_size: Annotated[int, typer.Option(help="tokens in a KV block")] = 16,
    model: Annotated[
        str | None, typer.Option(help="alias of the model, in a log of several")
    ] = None,
    fit_fraction: Annotated[
        float, typer.Option(help="share of the log to fit; the rest checks the fit")
    ] = 0.5,
) -> None:
    """Fit a server card to a request log by simulating it, and say how good the fit is."""
    from inframind_gym.calibration import fit
    from inframind_gym.calibration.log import read_log
    from inframind_gym.calibration.report import card_yaml
    from inframind_gym.calibration.report import report as figures_of
    from inframind_gym.calibration.trial import Limits

    try:
        limits = Limits(max_num_seqs, max_num_batched_tokens, num_kv_blocks, block_size)
        calibration = fit.calibrate(read_log(log, model), limits, fit_fraction=fit_fraction)
        figures = figures_of(calibration)
        replace_text(out, card_yaml(calibration))
        replace_text(report, json.dumps(figures, indent=2, allow_nan=False) + "\n")
    except InfraMindError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    for warning in figures["warnings"]:
        typer.echo(f"warning: {warning}", err=True)
    Console().print(_table(calibration, figures))
    typer.echo(f"card: {out}\nreport: {report}")


def _table(calibration: Calibration, figures: dict[str, Any]) -> Table:
    """Measured and predicted latencies of the requests that were not fitted."""
    unseen = len(calibration.log) - calibration.fitted
    table = Table(title=f"the {unseen} requests not fitted: measured / predicted, error")
    table.add_column("")
    names = ("mean", "p50", "p90", "p95", "p99")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("per request", justify="right")
    for metric, unit, scale in (("ttft_s", "s", 1.0), ("tpot_s", "ms", 1e3), ("e2e_s", "s", 1.0)):
        of = figures["unseen"][metric]
        if of["mae_pct"] is None:
            continue
        cells = [
            f"{scale * of[name]['measured']:.2f} / {scale * of[name]['predicted']:.2f}\n"
            f"{of[name]['error_pct']:+.2f} %"
            for name in names
        ]
        table.add_row(f"{metric[:-2]}, {unit}", *cells, f"\n{of['mae_pct']:.2f} %")
    return table
