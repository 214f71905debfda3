"""`inframind team`: run teams of agents, list their runs, show one."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inframind_gym.errors import ConfigError, friendly
from inframind_gym.teams.assignment.command import run_assignment
from inframind_gym.teams.coordination.command import chat, run_coordination
from inframind_gym.teams.runs.compare import compare_runs
from inframind_gym.teams.runs.store import DEFAULT_FILE, Event, Run, RunStore
from inframind_gym.teams.terminal import AsJson, Runs, plain_table
from inframind_gym.teams.token_budget.command import run_token_budget, serve

app = typer.Typer(no_args_is_help=True, help="Run teams of LLM agents; list and show their runs.")
run = typer.Typer(no_args_is_help=True, help="Run a team and write what happens to a file of runs.")
run.command("assignment")(run_assignment)
run.command("token-budget")(run_token_budget)
run.command("coordination")(run_coordination)
app.add_typer(run, name="run")
app.command("compare")(compare_runs)
app.command("serve")(serve)
app.command("chat")(chat)

_WIDEST = 110  # of an event's line


@app.command("list")
def list_runs(
    runs: Runs = DEFAULT_FILE,
    team: Annotated[
        str | None, typer.Option(help="Show the runs of one team.", show_default=False)
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Show so many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        found = store.list_runs(team, most)
    if as_json:
        print(json.dumps([asdict(each) for each in found], ensure_ascii=False))
        return
    columns = ("run", "team", "status", "started", "provider", ">calls", ">USD")
    table = plain_table(*columns, no_wrap=True)
    for each in found:
        summary = each.summary or {}
        table.add_row(
            each.run_id,
            each.team,
            each.status,
            _moment(each.started_s),
            _provider(each.settings),
            str(summary.get("calls", "")),
            f"{summary['cost_usd']:.4f}" if "cost_usd" in summary else "",
        )
    Console().print(table)


@app.command()
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Name of a run, or its beginning. Default: the newest.",
            show_default=False,
        ),
    ] = None,
    runs: Runs = DEFAULT_FILE,
    events: Annotated[
        bool, typer.Option("--events", help="Print every event, a line each.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option(help="Print the events of a kind.", show_default=False)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the run, and with --events its events.")
    ] = False,
) -> None:
    """Show a run: its settings, what came of it, its events."""
    with friendly(), RunStore(runs, must_exist=True) as store:
        found = store.get_run(name) if name else _newest(store)
        written = store.events(found.run_id)
    wanted = [event for event in written if kind is None or event.kind == kind]
    if as_json:
        data = asdict(found)
        if events or kind:
            data["events"] = [asdict(event) for event in wanted]
        print(json.dumps(data, ensure_ascii=False))
        return
    console = Console()
    console.print(_told(found, written))
    if events or kind:
        for event in wanted:
            print(_line(event))


def _newest(store: RunStore) -> Run:
    found = store.list_runs(most=1)
    if not found:
        raise ConfigError(f"{store.path}: holds no runs. `inframind team run …` writes one.")
    return found[0]


def _told(found: Run, events: list[Event]) -> Table:
    """Return settings and summary as a table of two columns."""
    table = plain_table()
    kinds: dict[str, int] = {}
    for event in events:
        kinds[event.kind] = kinds.get(event.kind, 0) + 1
    rows: dict[str, Any] = {
        "run": found.run_id,
        "team": found.team,
        "status": found.status,
        "started": _moment(found.started_s),
        **found.settings,
        **(found.summary or {}),
        "events": ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "none",
    }
    for key, value in rows.items():
        table.add_row(key, escape(value if isinstance(value, str) else json.dumps(value)))
    return table


def _line(event: Event) -> str:
    """Return an event as one line, cut to a screen's width."""
    text = json.dumps(event.data, ensure_ascii=False)
    text = text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
    return f"{event.seq:5} {event.kind:<16} {text}"


def _provider(settings: dict[str, Any]) -> str:
    provider = settings.get("provider", "")
    return ", ".join(provider) if isinstance(provider, list) else str(provider)


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
