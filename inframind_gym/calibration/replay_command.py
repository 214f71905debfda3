"""`inframind replay`: re-run measured cells and say how far the simulation is from them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from inframind_gym.calibration.measured import MeasuredCell, read_methods, read_runs
from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.files import replace_text

# The replay compiles the closed loop; it is imported when the command runs.


def replay(
    runs: Annotated[Path, typer.Argument(help="JSON file of measured cells.", metavar="RUNS.json")],
    pool: Annotated[str, typer.Option(help="The pool they ran on: a name or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Where the report goes (JSON).")],
    methods: Annotated[
        str | None,
        typer.Option(help="mas, moa, gptswarm, inframind; commas between. Default: all there are."),
    ] = None,
    workloads: Annotated[
        Path | None, typer.Option(help="Folder of workload YAML files. Default: the shipped ones.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Sweeps to simulate for every cell.")] = 8,
) -> None:
    """Re-run measured cells on the surrogate, under the protocol they were measured with.

    Every cell is simulated with its own arrival rate, length and shares of models, topologies and
    strategies, and compared with what was measured: accuracy, latency, attainment of the budget.
    Adaptive methods are replayed by the shares that they ended up with, and marked.
    """
    from inframind_gym.calibration import replay_report, replay_runs

    began = time.monotonic()
    try:
        cells = _known_cells(runs, methods)
        constants = replay_runs.load_constants(pool, [cell.dataset for cell in cells], workloads)
        predictions = replay_runs.predict(cells, constants, seeds)
        rows = replay_report.compare(cells, predictions)
        summary = replay_report.summarise(rows)
        report = {
            "runs": runs.name,
            "pool": constants.pool.name,
            "seeds": seeds,
            "summary": summary,
            "cells": rows,
        }
        replace_text(out, json.dumps(report, indent=1, allow_nan=False) + "\n")
    except InfraMindError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    Console().print(_table(summary))
    typer.echo(f"{len(cells)} cells in {time.monotonic() - began:.0f} s: {out}")


def _known_cells(runs: Path, methods: str | None) -> list[MeasuredCell]:
    """The cells of the methods that were asked for, or of all that can be replayed."""
    from inframind_gym.calibration.replay_choices import HARNESSES

    present = read_methods(runs)
    if methods is None:
        wanted = present
        for name in [name for name in present if name not in HARNESSES]:
            typer.echo(f"warning: left out: {unknown('method', name, HARNESSES)}", err=True)
    else:
        wanted = [name.strip() for name in methods.split(",") if name.strip()]
        if not wanted:
            raise ConfigError(f"--methods names none. Known: {', '.join(HARNESSES)}.")
        for name in wanted:
            if name not in HARNESSES:
                raise ConfigError(f"--methods: {unknown('method', name, HARNESSES)}")
            if name not in present:
                typer.echo(f"warning: {runs.name} holds no cell of {name!r}", err=True)
    chosen = [name for name in dict.fromkeys(wanted) if name in HARNESSES and name in present]
    if not chosen:
        raise ConfigError(f"{runs}: no cell of a method that can be replayed.")
    return read_runs(runs, chosen)


def _table(summary: dict[str, dict[str, float | int | None]]) -> Table:
    table = Table(title="Absolute errors: median (90th percentile)")
    for column in ("method", "cells", "mean latency %", "p95 latency %", "accuracy points"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for method, of in summary.items():
        errors = [
            "-"
            if of[f"{name}_median"] is None
            else f"{of[f'{name}_median']:.1f} ({of[f'{name}_p90']:.1f})"
            for name in ("latency_mean_abs_pct", "latency_p95_abs_pct", "accuracy_abs_points")
        ]
        table.add_row(method, str(of["cells"]), *errors)
    return table
