"""`inframind team compare RUN RUN`: two runs side by side."""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from inframind_gym.errors import friendly
from inframind_gym.teams.runs.store import DEFAULT_FILE, Run, RunStore

TRACE: Final = "trace"  # kind of the events that tell what a step did
_ASIDE: Final = ("output",)  # long texts of a trace


def compare(store: RunStore, first: str, second: str) -> dict[str, Any]:
    """Return two runs side by side, as JSON values.

    Args:
        store: the file of both.
        first, second: their names, or the beginnings of them.

    Returns:
        "runs" (name, team, status, settings), "numbers" (each number of the summaries that both
        have: a, b, and the change in % of a, None where a is 0), "traces" (steps of a and b in
        pairs), "curves" (tokens and quality after each step) and "cutoffs" of each.

    Raises:
        ConfigError: there is no such run, or more than one.
    """
    runs = [store.get_run(name) for name in (first, second)]
    traces = [
        [
            {key: value for key, value in event.data.items() if key not in _ASIDE}
            for event in store.events(run.run_id)
            if event.kind == TRACE
        ]
        for run in runs
    ]
    a, b = (_numbers(run.summary or {}) for run in runs)
    return {
        "runs": [_told(run) for run in runs],
        "numbers": {key: _change(a[key], b[key]) for key in a if key in b},
        "traces": [list(pair) for pair in zip_longest(*traces)],
        "curves": [
            [[step.get("cumulative_tokens"), step.get("quality")] for step in own] for own in traces
        ],
        "cutoffs": [[step for step in own if step.get("cutoff_reason")] for own in traces],
    }


def _told(run: Run) -> dict[str, Any]:
    told = {"run_id": run.run_id, "team": run.team, "status": run.status}
    return {**told, "settings": run.settings}


def _numbers(summary: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a summary by dotted keys."""
    found: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, dict):
            found |= _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + key] = value
    return found


def _change(a: float, b: float) -> dict[str, float | None]:
    return {"a": a, "b": b, "change_percent": None if a == 0 else 100.0 * (b - a) / abs(a)}


def compare_runs(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or its beginning.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another.")],
    runs: Annotated[Path, typer.Option("--runs", help="File of runs (SQLite).")] = DEFAULT_FILE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare two runs: traces side by side, cost against quality, cut-offs, changes in %."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        found = compare(store, first, second)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    console = Console()
    for letter, run in zip("AB", found["runs"], strict=True):
        settings = ", ".join(f"{k}={v}" for k, v in run["settings"].items() if k != "task")
        console.print(
            f"{letter}: {run['run_id']} {run['team']} {run['status']}: {settings}",
            markup=False,
            highlight=False,
        )
    if found["traces"]:
        console.print(_trace_table(found["traces"]))
    console.print(_number_table(found["numbers"]))


def _trace_table(pairs: list[list[dict[str, Any] | None]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for letter in "AB":
        table.add_column(f"{letter}: step")
        for column in ("tokens", "quality", "ROI"):
            table.add_column(column, justify="right")
        table.add_column("ended")
    for pair in pairs:
        table.add_row(*(cell for step in pair for cell in _cells(step)))
    return table


def _cells(step: dict[str, Any] | None) -> tuple[str, ...]:
    """Return what a step did; a team writes those of the keys that it has."""
    if step is None:
        return ("",) * 5
    forms = {"cumulative_tokens": ",", "quality": ".1f", "roi": ".4f"}
    texts = [f"{step[key]:{form}}" if key in step else "" for key, form in forms.items()]
    return (str(step.get("action", "")), *texts, str(step.get("cutoff_reason", "")))


def _number_table(numbers: dict[str, dict[str, float | None]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in ("", "A", "B", "change"):
        table.add_column(column, justify="left" if not column else "right")
    for key, row in numbers.items():
        change = row["change_percent"]
        shown = "" if change is None else f"{change:+.1f} %"
        table.add_row(key, f"{row['a']:,.6g}", f"{row['b']:,.6g}", shown)
    return table
