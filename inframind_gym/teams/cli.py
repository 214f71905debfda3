"""`inframind team`: run teams of agents; list, show and compare their runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from inframind_gym.errors import ConfigError, friendly
from inframind_gym.teams.assignment.cli import run_assignment
from inframind_gym.teams.coordination.cli import run_coordination
from inframind_gym.teams.runs import DEFAULT_FILE, AsJson, Runs, RunStore, compare, plain_table
from inframind_gym.teams.token_budget.cli import run_token_budget

app = typer.Typer(no_args_is_help=True, help="Run teams of LLM agents; list and show their runs.")
run = typer.Typer(no_args_is_help=True, help="Run a team and write what happens to a file of runs.")
run.command("assignment")(run_assignment)
run.command("token-budget")(run_token_budget)
run.command("coordination")(run_coordination)
app.add_typer(run, name="run")
console = Console(highlight=False, markup=False)


@app.command("list")
def list_runs(runs: Runs = DEFAULT_FILE, as_json: AsJson = False) -> None:
    """List the last twenty runs, the newest first."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        rows = store.list_runs(most=20)
    if as_json:
        print(json.dumps([asdict(each) for each in rows], ensure_ascii=False))
        return
    table = plain_table("run", "team", "status", "started", ">calls", ">USD")
    for each in rows:
        summary = {"calls": "", "cost_usd": 0.0} | (each.summary or {})
        started = datetime.fromtimestamp(each.started_s, UTC).astimezone()
        figures = str(summary["calls"]), f"{summary['cost_usd']:.4f}"
        table.add_row(each.run_id, each.team, each.status, f"{started:%m-%d %H:%M:%S}", *figures)
    console.print(table)


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Name of a run, or its beginning; the newest if none"),
    ] = None,
    runs: Runs = DEFAULT_FILE,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event, a line each.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run: its settings, what came of it, its events."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        newest = [each.run_id for each in store.list_runs(most=1)]
        if not newest:
            raise ConfigError(f"{store.path}: holds no runs. `inframind team run …` writes one.")
        chosen = store.get_run(name or newest[0])
        written = [asdict(event) for event in store.events(chosen.run_id)] if events else []
    if as_json:
        print(json.dumps({**asdict(chosen), "events": written}, ensure_ascii=False))
        return
    table = plain_table()
    rows = {"run": chosen.run_id, "team": chosen.team, "status": chosen.status}
    for key, value in (rows | chosen.settings | (chosen.summary or {})).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(key, text)
    console.print(table)
    for event in written:
        text = json.dumps(event["data"], ensure_ascii=False)
        print(f"{event['seq']:5} {event['kind']:<16} {text[:110]}")


@app.command("compare")
def compare_runs(
    first: Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, or its beginning.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another.")],
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: traces side by side, cost against quality, cut-offs, changes in %."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        result = compare(store, first, second)
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    for letter, each in zip("AB", result["runs"], strict=True):
        settings = ", ".join(f"{k}={v}" for k, v in each["settings"].items() if k != "task")
        console.print(f"{letter}: {each['run_id']} {each['team']} {each['status']}: {settings}")
    table = plain_table("A", "B")
    for pair in result["traces"]:
        table.add_row(*(_line(step) for step in pair))
    console.print(table)
    for letter, steps in zip("AB", result["cutoffs"], strict=True):
        for step in steps:
            console.print(f"{letter}: cut-off: {_line(step)}")
    table = plain_table("", ">A", ">B", ">change")
    for key, row in result["numbers"].items():
        change = row["change_percent"]
        percent = "" if change is None else f"{change:+.1f} %"
        table.add_row(key, f"{row['a']:,.6g}", f"{row['b']:,.6g}", percent)
    console.print(table)


def _line(step: dict[str, Any] | None) -> str:
    """Return a step of a trace in a few words."""
    if step is None:
        return ""
    if "adjusted_reward" in step:
        return f"{step['task_type']} -> {step['key']} {step['adjusted_reward']:.3f}"
    reason = f" ({step['cutoff_reason']})" if step["cutoff_reason"] else ""
    figures = f"{step['cumulative_tokens']:,} tokens, quality {step['quality']:.1f}"
    return f"{step['action']}{reason}: {figures}, ROI {step['roi']:.4f}"
