"""`inframind team compare RUN RUN`: two runs side by side."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from inframind_gym.errors import ConfigError, friendly
from inframind_gym.teams.runs.store import DEFAULT_FILE, Run, RunStore
from inframind_gym.teams.terminal import AsJson, Runs, plain_table

_ASIDE: Final = ("output", "scores", "utilization")  # what is too long for a trace


class _Form(NamedTuple):
    """The trace of a team's runs.

    Attributes:
        kind: of the events that a trace is made of, one a step.
        columns: heads, keys of the events and formats of the printed trace.
        curve: the two keys of a point of the curve.
    """

    kind: str
    columns: tuple[tuple[str, str, str], ...]
    curve: tuple[str, str]


_FORMS: Final = {
    "assignment": _Form(
        "iteration",
        (
            ("task", "task_type", ""),
            ("goes to", "key", ""),
            ("reward", "adjusted_reward", ".3f"),
        ),
        ("iteration", "adjusted_reward"),
    ),
    "token-budget": _Form(
        "trace",
        (
            ("step", "action", ""),
            ("tokens", "cumulative_tokens", ","),
            ("quality", "quality", ".1f"),
            ("ROI", "roi", ".4f"),
            ("ended", "cutoff_reason", ""),
        ),
        ("cumulative_tokens", "quality"),
    ),
}


def compare(store: RunStore, first: str, second: str) -> dict[str, Any]:
    """Return two runs side by side, as JSON values.

    Args:
        store: the file of both.
        first, second: their names, or the beginnings of them.

    Returns:
        "runs" (name, team, status, settings), "numbers" (each number of the summaries that both
        have: a, b, and the change in % of a, None where a is 0), "traces" (steps of a and b in
        pairs), "curves" (a point a step: tokens and quality, or iteration and reward) and "cutoffs"
        (steps that cut an agent off, or ended the run) of each.

    Raises:
        ConfigError: there is no such run, or more than one, or the runs are of different teams.
    """
    runs = [store.get_run(name) for name in (first, second)]
    teams = [run.team for run in runs]
    if teams[0] != teams[1] or teams[0] not in _FORMS:
        raise ConfigError(
            f"run {runs[0].run_id} is of the team {teams[0]}, run {runs[1].run_id} of "
            f"{teams[1]}: compare two runs of {' or of '.join(_FORMS)}. `inframind team list` "
            "shows them."
        )
    form = _FORMS[teams[0]]
    traces = [
        [
            {key: value for key, value in event.data.items() if key not in _ASIDE}
            for event in store.events(run.run_id)
            if event.kind == form.kind
        ]
        for run in runs
    ]
    a, b = (_numbers(run.summary or {}) for run in runs)
    return {
        "runs": [_told(run) for run in runs],
        "numbers": {key: _change(a[key], b[key]) for key in a if key in b},
        "traces": [list(pair) for pair in zip_longest(*traces)],
        "curves": [[[step.get(key) for key in form.curve] for step in own] for own in traces],
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
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
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
        form = _FORMS[found["runs"][0]["team"]]
        console.print(_trace_table(found["traces"], form.columns))
    for letter, steps in zip("AB", found["cutoffs"], strict=True):
        for step in steps:
            console.print(_cutoff(letter, step), markup=False, highlight=False)
    console.print(_number_table(found["numbers"]))


def _trace_table(
    pairs: list[list[dict[str, Any] | None]], columns: tuple[tuple[str, str, str], ...]
) -> Table:
    heads = [
        f"{'>' if form else ''}{head if i else f'{letter}: {head}'}"
        for letter in "AB"
        for i, (head, _, form) in enumerate(columns)
    ]
    table = plain_table(*heads, gap=1)
    for pair in pairs:
        table.add_row(*(_cell(step, key, form) for step in pair for _, key, form in columns))
    return table


def _cell(step: dict[str, Any] | None, key: str, form: str) -> str:
    return "" if step is None or key not in step else f"{step[key]:{form}}"


def _cutoff(letter: str, step: dict[str, Any]) -> str:
    """Return a line on a step that ended something."""
    return (
        f"{letter}: cut-off at {step['cumulative_tokens']:,} tokens, quality "
        f"{step['quality']:.1f}: {step['action']} ({step['cutoff_reason']}), ROI of "
        f"{step['agent']} {step['roi']:.4f}"
    )


def _number_table(numbers: dict[str, dict[str, float | None]]) -> Table:
    table = plain_table("", ">A", ">B", ">change")
    for key, row in numbers.items():
        change = row["change_percent"]
        shown = "" if change is None else f"{change:+.1f} %"
        table.add_row(key, f"{row['a']:,.6g}", f"{row['b']:,.6g}", shown)
    return table
