"""`inframind team`: run teams of agents; list and show their runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from inframind_gym.errors import ConfigError, friendly
from inframind_gym.progress import plain_table
from inframind_gym.teams.assignment.cli import run_assignment
from inframind_gym.teams.coordination.cli import run_coordination
from inframind_gym.teams.runs import DEFAULT_FILE, Runs, RunStore
from inframind_gym.teams.token_budget.cli import run_token_budget

app = typer.Typer(no_args_is_help=True, help="Run teams of LLM agents; list and show their runs.")
run = typer.Typer(no_args_is_help=True, help="Run a team and write what happens to a file of runs.")
run.command("assignment")(run_assignment)
run.command("token-budget")(run_token_budget)
run.command("coordination")(run_coordination)
app.add_typer(run, name="run")
console = Console(highlight=False, markup=False)


@app.command("list")
def list_runs(runs: Runs = DEFAULT_FILE) -> None:
    """List the last twenty runs, the newest first."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        rows = store.list_runs(most=20)
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
) -> None:
    """Show a run: its settings, what came of it, its events."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        newest = [each.run_id for each in store.list_runs(most=1)]
        if not newest:
            raise ConfigError(f"{store.path}: holds no runs. `inframind team run …` writes one.")
        chosen = store.get_run(name or newest[0])
        written = store.events(chosen.run_id) if events else []
    table = plain_table()
    rows = {"run": chosen.run_id, "team": chosen.team, "status": chosen.status}
    for key, value in (rows | chosen.settings | (chosen.summary or {})).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        table.add_row(key, text)
    console.print(table)
    for event in written:
        text = json.dumps(event.data, ensure_ascii=False)
        print(f"{event.seq:5} {event.kind:<16} {text[:110]}")
