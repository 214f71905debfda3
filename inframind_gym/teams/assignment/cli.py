"""`inframind team run assignment`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from inframind_gym.errors import friendly, require
from inframind_gym.progress import plain_table
from inframind_gym.teams.assignment.rules import TASK_TYPES, Arrivals, Router
from inframind_gym.teams.runs import DEFAULT_FILE, AsJson, RunLog, Runs, RunStore

if TYPE_CHECKING:
    from inframind_gym.teams.assignment.app import Run


def run_assignment(
    provider: Annotated[
        list[str],
        typer.Option(
            metavar="NAME|URL",
            help="simulated, openai, anthropic, or the base URL of an OpenAI-compatible server. "
            "Give it twice for the two providers that the team chooses between.",
        ),
    ] = ["simulated"],  # noqa: B006 (typer copies it)
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model of the provider; twice for two. Needed for a URL."),
    ] = None,
    iterations: Annotated[
        int, typer.Option(min=1, max=100_000, help="Tasks of the training, two calls each.")
    ] = 200,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of tasks, decisions and simulated answers.")
    ] = 1,
    arrivals: Annotated[
        Arrivals,
        typer.Option(help="Order of tasks: from the bank, mostly coding, in bursts, or drifting."),
    ] = "uniform",
    router: Annotated[Router, typer.Option(help="How agents are chosen.")] = "q_learning",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an agent's answer.")] = 768,
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Train four agents to share work under load, and show what was learned.

    For every task a router picks an agent and a provider; the agent answers, a judge scores the
    answer, and agents that get too much of the recent work are penalised. Q-learning learns from
    that. Without options everything is simulated: no key, no network, seconds.
    """
    with friendly():
        from inframind_gym.teams.assignment.app import Options, make_run, open_providers

        # Wrong input is an error before a run is written.
        require("langgraph", "`inframind team run assignment`", "teams")
        options = Options(iterations, seed, arrivals, router, max_tokens=max_tokens)
        providers = open_providers(provider, model or [])
        models = None if providers is None else [each.model for each in providers.values()]
        settings = {"provider": provider, "models": models, **asdict(options)}
        with RunStore(runs) as store, RunLog(store, "assignment", settings) as log:
            run, served = make_run(options, providers, log=log), []
            with run.llm_service:
                run.train()
                summary, system = run.summary(), run.production()
                for task_type, places in zip(TASK_TYPES, run.team.of_type, strict=True):
                    task = run.team.settings.tasks[places[0]]
                    served.append(system.process(task.description, task_type))
            log.finish("complete", summary | {"demo_requests": len(served)})
    if as_json:
        print(json.dumps({"run": log.run_id, **summary}))
        return
    _report(Console(highlight=False, markup=False), run, summary, served)
    health = system.health()
    print(
        f"health: {health['status']}, {health['current_load_state']}, imbalance "
        f"{health['imbalance_score']:.3f}, {health['llm_calls']} calls so far"
    )
    where = "" if runs == DEFAULT_FILE else f" --runs {runs}"
    print(f"\ninframind team show {log.run_id}{where}")


def _report(
    console: Console, run: Run, summary: dict[str, Any], served: list[dict[str, Any]]
) -> None:
    """Print the figures, the learned policy with its shifts under load, and the demonstration."""
    table = plain_table()
    for key, value in summary.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        if key == "assignments":
            text = ", ".join(f"{agent} {count}" for agent, count in value.items())
        if key != "cost_by_model":
            table.add_row(key.replace("_", " "), text)
    console.print(table)
    table, usual = plain_table("task type", "load", "goes to"), run.coordinator.policy()
    for state in run.coordinator.load_states:
        for task_type, best in run.coordinator.policy(state).items():
            if state == "balanced" or best not in (None, usual[task_type]):
                table.add_row(task_type, state, best.key() if best else "never tried")
    console.print("\nRouting policy, and its shifts while an agent is hot", style="bold")
    console.print(table)
    console.print("\nLive demo", style="bold")
    table = plain_table("task type", "load", "goes to", ">reward", ">penalty")
    for request in served:
        if "error" in request:
            table.add_row(f"error: {request['error']}")
            continue
        figures = f"{request['reward']:.3f}", f"{request['load_penalty']:.3f}"
        key = f"{request['agent']}:{request['provider']}"
        table.add_row(request["task_type"], request["load_state"], key, *figures)
    console.print(table)
