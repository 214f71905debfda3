"""`inframind calibrate` and `inframind workload fit`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from inframind_gym.commands import Force, refuse_to_overwrite
from inframind_gym.errors import ConfigError, require_within, unknown
from inframind_gym.files import replace_text
from inframind_gym.progress import plain_table

if TYPE_CHECKING:
    from rich.table import Table

# Simulator and fits are imported when a command runs: they compile and load much.

Report = Annotated[Path | None, typer.Option(help="Figures to write, JSON.")]
app = typer.Typer(help="Workloads of your own.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Workloads of your own."""


def calibrate(
    log: Annotated[Path, typer.Argument(help="Request log, JSON Lines, in order of arrival.")],
    out: Annotated[Path, typer.Option(help="Server card to write, YAML; with --pool, a pool.")],
    pool: Annotated[
        str | None,
        typer.Option(
            help="Fit all models of a pool together, a name or a YAML file: the limits are its own."
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="As the server was started with.")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="As the server was started with.")
    ] = None,
    report: Report = None,
    num_kv_blocks: Annotated[
        int | None,
        typer.Option(
            help="As the server reports at start-up. Default: fitted if the log shows a full cache."
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens in a KV block.")] = 16,
    data_parallel_size: Annotated[
        int | None,
        typer.Option(
            help="As the server was started with; the limits are of one engine. Default: as many "
            "as the log proves."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Alias of the model, in a log of several.")
    ] = None,
    fit_fraction: Annotated[
        float, typer.Option(help="Share of the log to fit; the rest checks the fit.")
    ] = 0.5,
    force: Force = False,
) -> None:
    """Fit a server card to a request log by simulating it, and report the errors.

    With --pool the cards of all models of a gateway's log are fitted together, with the slowdown
    of those that share a GPU; a model with fewer than 20 answers keeps its card.
    """
    from inframind_gym.calibration import server_card
    from inframind_gym.calibration.report import card_yaml, log_report, log_table
    from inframind_gym.calibration.request_log import read_log

    given = (max_num_seqs, max_num_batched_tokens, num_kv_blocks, data_parallel_size, model)
    refuse_to_overwrite(force, out, report)
    if pool is not None:
        if any(option is not None for option in given):
            raise ConfigError("--pool: the file has models and limits; give no option of one.")
        _calibrate_pool(log, pool, out, report, fit_fraction)
        return
    if max_num_seqs is None or max_num_batched_tokens is None:
        raise ConfigError(
            "give --max-num-seqs and --max-num-batched-tokens, as the server was started "
            "with, or --pool."
        )
    limits = server_card.Limits(
        max_num_seqs, max_num_batched_tokens, num_kv_blocks, block_size, data_parallel_size
    )
    calibration = server_card.calibrate(read_log(log, model), limits, fit_fraction=fit_fraction)
    figures = log_report(calibration)
    replace_text(out, card_yaml(calibration))
    _write(report, figures)
    for kind in ("warning", "note"):
        for line in figures[f"{kind}s"]:
            typer.echo(f"{kind}: {line}", err=True)
    Console().print(log_table(calibration, figures))
    typer.echo(f"card: {out}" if report is None else f"card: {out}\nreport: {report}")


def _calibrate_pool(
    log: Path, source: str, out: Path, report: Path | None, fit_fraction: float
) -> None:
    """Fit the cards of a pool to the first part of a log, and compare on the rest."""
    from inframind_gym.calibration import live_pool
    from inframind_gym.simulator.server.pool import load_pool
    from inframind_gym.simulator.server.state import cards

    require_within(fit_fraction, 0.05, 0.95, "--fit-fraction")
    pool = load_pool(source)
    calls = live_pool.read_calls(log, pool)
    first, rest = np.split(calls, [int(fit_fraction * len(calls))])
    fitted, kept = live_pool.fit_pool(pool, first)
    origin = f"`inframind calibrate` to {log.name}, {len(first)} calls"
    replace_text(out, live_pool.pool_yaml(source, fitted, origin))
    pools = {"before": pool, "fitted": fitted}
    mismatch = {
        name: {of: live_pool.mismatch_of(its, part) for of, its in pools.items()}
        | {"calls": len(part)}
        for name, part in (("fit", first), ("checked", rest))
    }
    _write(report, {"log": log.name, "pool": pool.name, "kept": list(kept)} | mismatch)
    rows, ends_s = [], (rest["finish_s"], live_pool.served(cards(fitted), rest)["finish_s"])
    for m, (old, new) in enumerate(zip(pool.models, fitted.models, strict=True)):
        mine = rest["model"] == m
        row = [old.alias, str((calls["model"] == m).sum()), f"{1e3 * old.server.step.base_s:.3g}"]
        row.append("kept" if new.alias in kept else f"{1e3 * new.server.step.base_s:.3g}")
        for end_s in ends_s:
            call_s = (end_s - rest["submit_s"])[mine]
            row.append(f"{call_s.mean():.2f}" if mine.any() else "-")
        rows.append(row)
    headings = ("model", ">calls", ">ms a step, before", ">fitted", ">call, s", ">predicted")
    Console().print(plain_table(*headings, rows=rows))
    before, after = mismatch["checked"]["before"], mismatch["checked"]["fitted"]
    typer.echo(
        f"mismatch of the {len(rest)} calls that were not fitted: {before:.3f} before, "
        f"{after:.3f} fitted\npool: {out}"
    )
    if after > before:
        typer.echo(
            "warning: these cards predict those calls worse than the pool's own. Record more "
            "calls, of quiet and of busy hours, or keep the pool as it is.",
            err=True,
        )


@app.command()
def fit(
    outcomes: Annotated[
        Path,
        typer.Argument(
            metavar="OUTCOMES.csv[.gz]",
            help="A row for each model and query: query (id or text), model, correct (0 or 1), "
            "completion_tokens (or output_chars), and optionally domain and prompt_tokens.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Workload to write, YAML.")],
    domain: Annotated[
        str | None,
        typer.Option(help="Math, Code or Commonsense, of a table without such a column."),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Name of the questions: of a published benchmark (mmlu_pro), or of those in the "
            "folder that `bench run --set tasks=FOLDER` takes. Default: the table's file name."
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(
            help="Models to write, ALIAS=NAME-IN-THE-TABLE or NAME, commas between; the aliases "
            "are those of the pool. All are fitted. Default: all."
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a column, MEANING=NAME; meanings: query, model, correct, domain, length, "
            "prompt. Default: the usual names."
        ),
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of the outcomes that checks the fit, 0.01 to 0.9.")
    ] = 0.5,
    report: Report = None,
    force: Force = False,
) -> None:
    """Fit a workload to a table of outcomes: abilities, difficulty, answer lengths.

    The file is fitted to all outcomes. For the check a share is held out: the report compares the
    share of right answers that the others predict with the measured one. A table with several
    domains becomes a workload a domain, and OUT mixes them.
    """
    from inframind_gym.calibration import outcomes as of
    from inframind_gym.simulator.workload import load_workload

    require_within(holdout, 0.01, 0.9, "--holdout")
    if domain is not None and domain.lower() not in of.DOMAINS:
        raise ConfigError(f"--domain: {unknown('domain', domain, of.DOMAINS.values())}")
    columns = _pairs("--column", column or [])
    for meaning in columns:
        if meaning not in of.COLUMNS:
            raise ConfigError(f"--column: {unknown('meaning', meaning, of.COLUMNS)}")
    given = None if domain is None else of.DOMAINS[domain.lower()]
    tables = of.read_outcomes(outcomes, columns, given)
    stem = dataset or re.sub(r"\.csv(\.gz)?$", "", outcomes.name)
    texts, mix, shown = {}, {}, []
    for name, table in tables.items():
        found = of.fit_domain(name, table, holdout)
        ending = f"-{name.lower()}" if len(tables) > 1 else ""
        aliases = dict(zip(table.models, table.models, strict=True))
        if models is not None:
            aliases = _pairs("--models", models.split(","), lone=True)
        for wanted in aliases.values():
            if wanted not in table.models:
                raise ConfigError(f"--models: {unknown('model', wanted, table.models)}")
        path = out.with_name(f"{out.stem}{ending}.yaml") if ending else out
        asks = stem + ending.replace("-", "_")
        texts[path] = of.workload_yaml(found, outcomes.name, out.stem + ending, asks, aliases)
        mix[f"./{path.name}"] = len(table.questions)
        shown.append(of.figures(found))
    if len(tables) > 1:
        content = {"name": out.stem, "description": f"Fitted to {outcomes.name}", "mix": mix}
        texts[out] = "# Fitted by `inframind workload fit`; weights: questions.\n"
        texts[out] += of.plain_yaml(content)
    refuse_to_overwrite(force, *texts, report)
    for path, text in texts.items():
        replace_text(path, text)
    load_workload(out)
    _write(report, {"outcomes": outcomes.name, "holdout": holdout, "domains": shown}, indent=1)
    for part in shown:
        Console().print(_fit_table(part))
    typer.echo(f"workload: {', '.join(map(str, texts))}")
    if report is not None:
        typer.echo(f"report: {report}")
    typer.echo(f"play it: inframind bench run --suite starter --pool POOL.yaml --workload {out}")


def _fit_table(of: Mapping[str, Any]) -> Table:
    """Return the table of `outcomes.figures`, for the terminal."""
    rows, points = [], of["held_out_points"]
    for row in sorted(of["models"], key=lambda row: -row["ability"]):
        checked = ["", ""]
        if row["held_out"]:
            error = 100.0 * (row["held_out_predicted"] - row["held_out_measured"])
            checked = [f"{error:+.1f}", f"{100.0 * (row['held_out_chance_sd'] or 0.0):.1f}"]
        texts = [f"{row['outcomes']:.0f}", f"{100.0 * row['accuracy']:.1f}"]
        texts += [f"{row['ability']:+.2f}", f"{row['ability_error']:.2f}"]
        texts += [f"{row['tokens_median']:.0f}", f"{row['tokens_median_error']:.1f}"]
        rows.append([row["model"], *texts, f"{row['length_slope']:+.2f}", *checked])
    return plain_table(
        *("model", ">asked", ">right %", ">ability", ">±", ">tokens", ">±", ">slope"),
        *(">held out", ">±"),
        rows=rows,
        title=f"{of['domain']}: {of['questions']} questions; difficulty spread "
        f"{of['difficulty_sd']:.2f} ± {of['difficulty_sd_error']:.2f} logits",
        caption="Held out: predicted share of right answers - measured, in points, ± by chance. "
        f"Mean absolute error {points['mean_abs']:.1f}, root mean square {points['rms']:.1f} (by "
        f"chance {points['rms_by_chance']:.1f}); {points['within_2']} of {points['models']} models "
        "within 2. Slope: log length for each standard deviation of difficulty.",
    )


def _pairs(option: str, items: list[str], *, lone: bool = False) -> dict[str, str]:
    """Return KEY=NAME items as a dict; lone names stand for themselves where that is allowed."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, name = item.strip().partition("=")
        if not (name or lone) or (equals and not name):
            raise ConfigError(f"{option} {item}: write KEY=NAME.")
        if key in pairs:
            raise ConfigError(f"{option}: {key!r} is given twice. Keep one.")
        pairs[key] = name or key
    return pairs


def _write(path: Path | None, figures: Mapping[str, Any], indent: int = 2) -> None:
    if path is not None:
        replace_text(path, json.dumps(figures, indent=indent, allow_nan=False) + "\n")
