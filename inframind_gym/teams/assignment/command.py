"""`inframind team run assignment`."""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from inframind_gym.errors import ConfigError, friendly, unknown
from inframind_gym.progress import say
from inframind_gym.teams.assignment.names import ARRIVALS, ROUTERS, TIES, VARIANTS
from inframind_gym.teams.runs.store import DEFAULT_FILE, RunLog, RunStore
from inframind_gym.teams.terminal import AsJson, Runs

if TYPE_CHECKING:
    from inframind_gym.teams.assignment.training import Options, Run
    from inframind_gym.teams.llm.types import Provider


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
        typer.Option(
            metavar="NAME",
            help="Model of the provider; twice for two. Needed for a URL.",
            show_default=False,
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option(min=1, max=100_000, help="Tasks of the training, two calls each.")
    ] = 50,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of tasks, decisions and simulated answers.")
    ] = 0,
    arrivals: Annotated[
        str,
        typer.Option(
            metavar="|".join(ARRIVALS),
            help="Order of tasks: from the bank, mostly coding, in bursts, or with an agent that "
            "gets worse.",
        ),
    ] = "uniform",
    router: Annotated[
        str,
        typer.Option(
            metavar="|".join(ROUTERS),
            help="Who decides. least_busy: the fewest calls in flight, as LiteLLM does it.",
        ),
    ] = "q_learning",
    variant: Annotated[
        str,
        typer.Option(
            metavar="|".join(VARIANTS),
            help="How production learns on: without a next state (source), with one (bootstrap), "
            "or with discount 0 from the start (bandit).",
        ),
    ] = "source",
    ties: Annotated[
        str,
        typer.Option(
            metavar="first|random", help="Of equally good actions take the first, or a random one."
        ),
    ] = "first",
    epsilon: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Exploration at the start.")
    ] = 1.0,
    epsilon_min: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Exploration never falls below this.")
    ] = 0.05,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, max=2.0, help="Of sampling. Default: the server's."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an agent's answer.")] = 768,
    demo: Annotated[
        int, typer.Option(min=0, max=1000, help="Requests of the live demo after the training.")
    ] = 4,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for pictures (PNG) of the run.", show_default=False),
    ] = None,
    team: Annotated[
        str, typer.Option(help="Constants and tasks: a shipped name, or a YAML file.")
    ] = "assignment",
    prices: Annotated[
        Path | None,
        typer.Option(help="Prices of models, YAML. Default: the shipped table."),
    ] = None,
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Train four agents to share work under load, and show what was learned.

    For every task a router picks an agent and a provider; the agent answers, a judge scores the
    answer, and agents that get too much of the recent work are penalised. Q-learning learns from
    that. Without options everything is simulated: no key, no network, seconds.
    """
    with friendly(), ExitStack() as stack:
        options = _options(
            team=team,
            iterations=iterations,
            seed=seed,
            arrivals=arrivals,
            router=router,
            variant=variant,
            ties=ties,
            epsilon=epsilon,
            epsilon_min=epsilon_min,
            max_tokens=max_tokens,
        )
        from inframind_gym.teams.assignment import simulate
        from inframind_gym.teams.assignment.graph import has_langgraph
        from inframind_gym.teams.assignment.plots import check_plots
        from inframind_gym.teams.assignment.report import print_report
        from inframind_gym.teams.assignment.training import make_run
        from inframind_gym.teams.llm.prices import load_prices

        simulate.team(options.team)  # whatever is wrong with it is said before a run is made
        providers = open_providers(provider, model or [], temperature)
        table = None if prices is None else load_prices(prices)
        if plots is not None:
            check_plots(plots)
        if not has_langgraph():
            say("LangGraph is not installed (extra `teams`): its nodes run in a plain loop.")
        store = stack.enter_context(RunStore(runs))
        models = None if providers is None else [each.model for each in providers.values()]
        settings = {"provider": provider, "models": models, **asdict(options)}
        log = stack.enter_context(RunLog(store, "assignment", settings))
        run = make_run(options, providers, log=log, prices=table)
        stack.enter_context(run.service)
        run.train()
        summary = run.summary()
        run.machine.enter("Visualisation")
        written = _draw(run, plots)
        run.machine.enter("QTableByLoad")
        run.machine.enter("PolicyShifts")
        run.machine.enter("Demo")
        served, health = _serve(run, demo)
        run.machine.enter("End")
        log.finish("complete", summary | {"demo_requests": len(served)})
    if as_json:
        print(json.dumps({"run": log.run_id, **summary, "plots": [str(p) for p in written]}))
        return
    console = Console()
    print_report(console, run, summary, served, health)
    for path in written:
        console.print(f"wrote {path}", highlight=False)
    where = "" if runs == DEFAULT_FILE else f" --runs {shlex.quote(str(runs))}"
    print(f"\ninframind team show {log.run_id}{where}")  # unwrapped, to be copied


def _options(**values: Any) -> Options:
    """Return checked settings.

    Raises:
        ConfigError: A name is unknown; suggests the nearest.
    """
    from inframind_gym.teams.assignment.training import Options

    allowed = {"arrivals": ARRIVALS, "router": ROUTERS, "variant": VARIANTS, "ties": TIES}
    for name, known in allowed.items():
        if values[name] not in known:
            raise ConfigError(f"--{name}: {unknown(name, values[name], known)}")
    return Options(**values)


def open_providers(
    names: list[str], models: list[str], temperature: float | None
) -> dict[str, Provider] | None:
    """Open the two providers of the team; None: both are simulated.

    Raises:
        ConfigError: The names do not go together, or one cannot be opened.
    """
    from inframind_gym.teams.assignment.rules import PROVIDERS
    from inframind_gym.teams.llm.providers import SIMULATED, open_provider

    if len(names) > len(PROVIDERS) or len(models) > len(PROVIDERS):
        raise ConfigError("--provider and --model are given at most twice.")
    if SIMULATED in names:
        if len(set(names)) > 1:
            raise ConfigError("--provider simulated does not go together with a real one.")
        if models:
            raise ConfigError("--model is of real providers; --team has the simulated models.")
        return None
    first, second = names[0], names[-1]
    pair = (models[0] if models else None, models[-1] if models else None)
    return {
        slot: open_provider(name, chosen, temperature)
        for slot, name, chosen in zip(PROVIDERS, (first, second), pair, strict=True)
    }


def _draw(run: Run, folder: Path | None) -> list[Path]:
    from inframind_gym.teams.assignment.plots import write_plots

    return [] if folder is None else write_plots(run, folder)


def _serve(run: Run, requests: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Serve tasks of the bank in production, the types in turn; return results and health."""
    from inframind_gym.teams.assignment import simulate
    from inframind_gym.teams.assignment.rules import TASK_TYPES

    system, team = run.production(), simulate.team(run.options.team)
    served = []
    for number in range(requests):
        task_type = number % len(TASK_TYPES)
        places = team.of_type[task_type]
        task = team.settings.tasks[places[number // len(TASK_TYPES) % len(places)]]
        served.append(system.process(task.description, task.task_type))
    return served, system.health()
