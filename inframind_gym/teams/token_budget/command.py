"""`inframind team run token-budget` and `inframind team serve`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from inframind_gym.errors import ConfigError, friendly, require
from inframind_gym.progress import say
from inframind_gym.sockets import listening
from inframind_gym.teams.runs.store import DEFAULT_FILE, RunLog, RunStore
from inframind_gym.teams.terminal import AsJson, ProviderName, Runs, plain_table

if TYPE_CHECKING:
    from inframind_gym.teams.llm.types import Provider

TOKEN_VARIABLE: Final = "INFRAMIND_TEAM_TOKEN"
_LOCAL: Final = ("127.0.0.1", "localhost", "::1")

Model = Annotated[
    str | None, typer.Option(help="Model of the provider; needed for a URL.", show_default=False)
]


def run_token_budget(
    task: Annotated[str, typer.Argument(help="What is wanted.")],
    budget: Annotated[int, typer.Option(help="Hard ceiling, in tokens.")] = 20_000,
    strategy: Annotated[
        str,
        typer.Option(help="frontload, critique_heavy, adaptive, or a policy such as fixed_k:4."),
    ] = "adaptive",
    scope_down: Annotated[
        bool, typer.Option("--scope-down", help="Narrow a task that the budget is too small for.")
    ] = False,
    provider: ProviderName = "simulated",
    model: Model = None,
    profile: Annotated[
        str, typer.Option(help="Of the simulated provider: simulated, or seed-example.")
    ] = "simulated",
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated provider.")] = 0,
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Answer a task with planner, executor and critic on a budget of tokens.

    The team stops where further tokens buy too little quality. What it does not spend it returns.
    """
    from inframind_gym.configs import validate
    from inframind_gym.teams.token_budget.orchestrator import Orchestrator, play
    from inframind_gym.teams.token_budget.order import TEAM, Order

    with friendly():
        order = validate(
            {
                "task": task,
                "budget": budget,
                "strategy": strategy,
                "scope_down": scope_down,
                "profile": profile,
                "seed": seed,
            },
            Order,
            source="inframind team run token-budget",
        )
        way = _provider(provider, model)
        order.policy()
        with RunStore(runs) as store:
            settings = {**order.model_dump(), "provider": provider if way is None else way.model}
            with RunLog(store, TEAM, settings) as log:
                orchestrator = Orchestrator(order, log, log.run_id, way)
                summary = asyncio.run(play(orchestrator, log))
            steps = [e.data for e in store.events(log.run_id) if e.kind == "trace"]
    if as_json:
        print(json.dumps({"run_id": log.run_id, **summary}, ensure_ascii=False))
    else:
        _print(log.run_id, summary, steps)
    if "error" in summary:
        say(f"error: {summary['error']}")
        raise typer.Exit(1)


def serve(
    host: Annotated[
        str, typer.Option(help=f"Address. Any but this machine's needs {TOKEN_VARIABLE}.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port.")] = 8_400,
    provider: ProviderName = "simulated",
    model: Model = None,
    most_runs: Annotated[int, typer.Option(min=1, max=1000, help="Runs at once.")] = 8,
    runs: Runs = DEFAULT_FILE,
) -> None:
    """Serve the token-budget team: POST /run, GET /run/ID, GET /runs, WS /ws/ID, GET /events/ID.

    With the variable INFRAMIND_TEAM_TOKEN set, every request must carry that token.
    """
    with friendly():
        token = os.environ.get(TOKEN_VARIABLE, "").strip() or None
        if host not in _LOCAL and token is None:
            raise ConfigError(
                f"--host {host} is reached from other machines: set {TOKEN_VARIABLE} to a token "
                "that clients must send, or serve 127.0.0.1"
            )
        uvicorn = require("uvicorn", "`inframind team serve`", "teams")
        require("fastapi", "`inframind team serve`", "teams")
        from inframind_gym.teams.token_budget.server import make_app

        closing = _provider(provider, model)  # a missing key is an error now, not at a run
        if closing is not None:
            asyncio.run(closing.aclose())
        with RunStore(runs) as store:
            app = make_app(
                store, lambda: _provider(provider, model), token=token, most_runs=most_runs
            )
            address = listening(host, port)
            say(f"serving http://{host}:{address.getsockname()[1]}, runs in {runs}")
            with contextlib.suppress(KeyboardInterrupt):
                uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[address])


def _provider(name: str, model: str | None) -> Provider | None:
    """Return the way to the model; None for the simulated one."""
    from inframind_gym.teams.llm.providers import SIMULATED, open_provider

    return None if name == SIMULATED else open_provider(name, model)


def _print(run_id: str, summary: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Print the trace, the cost report and the output."""
    console, report = Console(), summary["cost_report"]
    table = plain_table("step", ">tokens", ">in all", ">quality", ">gain", ">ROI", "ended")
    for step in steps:
        is_call = step["tokens"] > 0
        table.add_row(
            step["action"],
            f"{step['tokens']:,}" if is_call else "",
            f"{step['cumulative_tokens']:,}",
            f"{step['quality']:.0f}",
            f"{step['quality_delta']:+.0f}" if is_call else "",
            f"{step['roi']:.4f}" if is_call else "",
            step["cutoff_reason"],
        )
    marks = " [simulated]" if summary["simulated"] else ""
    console.print(f"run {run_id}{escape(marks)}", highlight=False)
    if "warning" in summary:
        console.print(f"warning: {escape(summary['warning'])}", highlight=False)
    console.print(table)
    console.print(
        f"{report['tokens']:,} of {report['budget']:,} tokens, {report['unspent']:,} returned "
        f"({report['overhead_tokens']:,} on pre-flight and ratings), quality "
        f"{summary['quality']:.0f} by the proxies, {summary['cost_usd']:.4f} USD",
        highlight=False,
    )
    if not summary["simulated"]:
        console.print(summary["output"], markup=False, highlight=False)
