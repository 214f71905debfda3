"""`inframind team run assignment`: the command, and the report of a run."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from inframind_gym.errors import ConfigError, friendly, require
from inframind_gym.teams.assignment.rules import PROVIDERS, TASK_TYPES, Arrivals, Variant
from inframind_gym.teams.runs import DEFAULT_FILE, AsJson, RunLog, Runs, RunStore, plain_table

if TYPE_CHECKING:
    from inframind_gym.teams.assignment.app import Run
    from inframind_gym.teams.llm import Provider


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
    router: Annotated[
        Literal["q_learning", "random", "round_robin", "least_busy"],
        typer.Option(help="Router. least_busy: the fewest calls in flight, as LiteLLM does it."),
    ] = "q_learning",
    variant: Annotated[
        Variant,
        typer.Option(
            help="How production learns on: without a next state, with one, or with discount 0."
        ),
    ] = "source",
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an agent's answer.")] = 768,
    demo: Annotated[
        int, typer.Option(min=0, max=1000, help="Requests of the demonstration after the training.")
    ] = 4,
    plots: Annotated[Path | None, typer.Option(help="Folder for pictures of the run.")] = None,
    team: Annotated[
        str, typer.Option(help="Constants and tasks: a shipped name, or a YAML file.")
    ] = "assignment",
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Train four agents to share work under load, and show what was learned.

    For every task a router picks an agent and a provider; the agent answers, a judge scores the
    answer, and agents that get too much of the recent work are penalised. Q-learning learns from
    that. Without options everything is simulated: no key, no network, seconds.
    """
    with friendly(), ExitStack() as stack:
        from inframind_gym.teams.assignment import simulate
        from inframind_gym.teams.assignment.app import Options, make_run

        # Wrong input is an error before a run is written.
        require("langgraph", "`inframind team run assignment`", "teams")
        options = Options(team, iterations, seed, arrivals, router, variant, max_tokens=max_tokens)
        providers = open_providers(provider, model or [])
        simulate.team(team)
        if plots is not None:
            require("matplotlib", "--plots", "plot")
            plots.mkdir(parents=True, exist_ok=True)
        store = stack.enter_context(RunStore(runs))
        models = None if providers is None else [each.model for each in providers.values()]
        settings = {"provider": provider, "models": models, **asdict(options)}
        log = stack.enter_context(RunLog(store, "assignment", settings))
        run = make_run(options, providers, log=log)
        stack.enter_context(run.service)
        run.train()
        summary, written = run.summary(), list[Path]()
        run.enter("Visualisation")
        if plots is not None:
            from inframind_gym.teams.assignment.plots import write_plots

            written = write_plots(run, plots)
        for state in ("QTableByLoad", "PolicyShifts", "Demo"):
            run.enter(state)
        system, served = run.production(), []
        for number in range(demo):  # tasks of the bank, the types in turn
            places = run.team.of_type[number % len(TASK_TYPES)]
            task = run.team.settings.tasks[places[number // len(TASK_TYPES) % len(places)]]
            served.append(system.process(task.description, task.task_type))
        run.enter("End")
        log.finish("complete", summary | {"demo_requests": len(served)})
    if as_json:
        print(json.dumps({"run": log.run_id, **summary, "plots": [str(p) for p in written]}))
        return
    _report(Console(highlight=False, markup=False), run, summary, served)
    for path in written:
        print(f"wrote {path}")
    health = system.health()
    print(
        f"health: {health['status']}, {health['current_load_state']}, imbalance "
        f"{health['imbalance_score']:.3f}, {health['llm_calls']} calls so far"
    )
    where = "" if runs == DEFAULT_FILE else f" --runs {runs}"
    print(f"\ninframind team show {log.run_id}{where}")


def open_providers(names: list[str], models: list[str]) -> dict[str, Provider] | None:
    """Open the two providers of the team; None: both are simulated.

    Raises:
        ConfigError: The names do not go together, or one cannot be opened.
    """
    from inframind_gym.teams.llm import SIMULATED, open_provider

    if len(names) > len(PROVIDERS) or len(models) > len(PROVIDERS):
        raise ConfigError("--provider and --model are given at most twice.")
    if SIMULATED in names:
        if len(set(names)) > 1 or models:
            raise ConfigError("--provider simulated goes with no real one, and with no --model.")
        return None
    pair = (models[0], models[-1]) if models else (None, None)
    return {
        slot: open_provider(name, chosen)
        for slot, name, chosen in zip(PROVIDERS, (names[0], names[-1]), pair, strict=True)
    }


def _report(
    console: Console, run: Run, summary: dict[str, Any], served: list[dict[str, Any]]
) -> None:
    """Print the figures, the learned policy with its shifts under load, and the demonstration."""
    from inframind_gym.teams.assignment.coordinator import QLearningCoordinator

    simulated, table = " (simulated)" if summary["simulated"] else "", plain_table()
    for name, value in {
        "mean adjusted reward": f"{summary['mean_adjusted_reward']:.3f}",
        "mean load penalty": f"{summary['mean_load_penalty']:.3f}",
        "final ε": f"{summary['final_epsilon']:.3f}",
        "final imbalance": f"{summary['final_imbalance']:.3f}",
        "LLM calls": str(summary["calls"]),
        "total cost": f"{summary['cost_usd']:.4f} USD{simulated}",
        "elapsed": f"{summary['elapsed_s']:.1f} s{simulated}",
        "assignments": ", ".join(f"{a} {count}" for a, count in summary["assignments"].items()),
        "corrections": f"another row chose otherwise {summary['row_shifts']}x, penalties "
        f"{summary['penalised']}x, cooled down {summary['cool_downs']}x",
        "judge": f"{summary['judge_unreadable']} answers unreadable, {summary['judge_failed']} "
        f"calls failed: scored 0.5. {summary['judge_error'] or ''}",
        "unpriced models": ", ".join(summary["unpriced_models"]) or "none",
    }.items():
        table.add_row(name, value)
    console.print(table)
    learner = run.coordinator
    if isinstance(learner, QLearningCoordinator):
        table, usual = plain_table("task type", "load", "goes to"), learner.policy()
        for state in learner.load_states:
            for task_type, best in learner.policy(state).items():
                if state == "balanced" or best not in (None, usual[task_type]):
                    table.add_row(task_type, state, best.key() if best else "never tried")
        console.print("\nRouting policy, and its shifts while an agent is hot", style="bold")
        console.print(table)
    if served:
        console.print("\nLive demo", style="bold")
    for request in served:
        if "error" in request:
            console.print(f"error: {request['error']}")
            continue
        console.print(
            f"{request['task_type']:<10} {request['load_state']:<15} -> {request['agent']}:"
            f"{request['provider']}, reward {request['reward']:.3f} (penalty "
            f"{request['load_penalty']:.3f})"
        )
