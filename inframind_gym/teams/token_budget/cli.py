"""`inframind team run token-budget`."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from inframind_gym.errors import friendly
from inframind_gym.progress import plain_table, say
from inframind_gym.teams.runs import DEFAULT_FILE, AsJson, ProviderName, RunLog, Runs, RunStore

DEMONSTRATION: Final = "Write a guide for new users of a GPU cluster."  # of a run without a task


def run_token_budget(
    task: Annotated[str, typer.Argument(help="What is wanted.")] = DEMONSTRATION,
    budget: Annotated[int, typer.Option(help="Hard ceiling, in tokens.")] = 20_000,
    strategy: Annotated[
        str,
        typer.Option(help="frontload, critique_heavy, adaptive, or a policy such as fixed_k:4."),
    ] = "adaptive",
    provider: ProviderName = "simulated",
    model: Annotated[
        str | None, typer.Option(help="Model of the provider; needed for a URL.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated provider.")] = 0,
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Answer a task with planner, executor and critic on a budget of tokens.

    The team stops where further tokens buy too little quality. What it does not spend it returns.
    """
    from inframind_gym.configs import validate
    from inframind_gym.teams.llm import SIMULATED, open_provider
    from inframind_gym.teams.token_budget.app import TEAM, Orchestrator, Order, play

    order = {"task": task, "budget": budget, "strategy": strategy, "seed": seed}
    with friendly():
        checked = validate(order, Order, source="inframind team run token-budget")
        way = None if provider == SIMULATED else open_provider(provider, model)
        checked.policy()
        with RunStore(runs) as store:
            settings = {**checked.model_dump(), "provider": provider if way is None else way.model}
            with RunLog(store, TEAM, settings) as log:
                orchestrator = Orchestrator(checked, log, log.run_id, way)
                summary = asyncio.run(play(orchestrator, log))
            steps = [e.data for e in store.events(log.run_id) if e.kind == "trace"]
    if as_json:
        print(json.dumps({"run_id": log.run_id, **summary}, ensure_ascii=False))
    else:
        _print(log.run_id, summary, steps)
    if "error" in summary:
        say(f"error: {summary['error']}")
        raise typer.Exit(1)


def _print(run_id: str, summary: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Print the trace, the cost report and the output; a review's points are the critic's claim."""
    console, report, before = Console(), summary["cost_report"], 0.0
    table = plain_table(
        "step", ">tokens", ">in all", ">quality", ">change", ">claimed", ">ROI", "ended"
    )
    for step in steps:
        cells, change, claims = ["", "", "", ""], step["quality"] - before, ""
        if step["tokens"] > 0:
            claims = f"{step['quality_delta']:.0f}" if step["agent"] == "critic" else ""
            cells = [f"{step['tokens']:,}", f"{change:+.0f}", claims, f"{step['roi']:.4f}"]
        before = step["quality"]
        total, quality = f"{step['cumulative_tokens']:,}", f"{step['quality']:.0f}"
        table.add_row(step["action"], cells[0], total, quality, *cells[1:], step["cutoff_reason"])
    lines = [f"run {run_id}{' [simulated]' if summary['simulated'] else ''}"]
    if "warning" in summary:
        lines.append(f"warning: {summary['warning']}")
    console.print("\n".join(lines), markup=False, highlight=False)
    console.print(table)
    console.print(
        f"{report['tokens']:,} of {report['budget']:,} tokens, {report['unspent']:,} returned "
        f"({report['overhead_tokens']:,} on pre-flight and ratings), quality "
        f"{summary['quality']:.0f} by the proxies, {summary['cost_usd']:.4f} USD",
        highlight=False,
    )
    if not summary["simulated"]:
        console.print(summary["output"], markup=False, highlight=False)
