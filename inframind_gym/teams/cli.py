"""`inframind team`: run teams of agents; list and show their runs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from inframind_gym.configs import read_setting, validate
from inframind_gym.errors import ConfigError, require
from inframind_gym.progress import plain_table, say
from inframind_gym.teams.assignment.rules import TASK_TYPES, Arrivals, Router
from inframind_gym.teams.runs import DEFAULT_FILE, ProviderName, RunLog, Runs, RunStore

if TYPE_CHECKING:
    from inframind_gym.teams.assignment.app import Training
    from inframind_gym.teams.coordination.settings import AgentResponse

TASK: Final = "Write a guide for new users of a GPU cluster."  # where none is given
QUESTION: Final = "How does continuous batching change the latency of a request?"
VARIABLES: Final = {  # of the process, and the settings of queries that they give; --set wins
    "ENABLE_MULTI_AGENT": "enable_multi_agent",
    "AGENT_DECISION_TIMEOUT": "agent_decision_timeout_ms",
    "FALLBACK_TO_BASIC_RAG": "fallback_to_basic_rag",
}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks

app = typer.Typer(no_args_is_help=True, help="Run teams of LLM agents; list and show their runs.")
run = typer.Typer(no_args_is_help=True, help="Run a team and write what happens to a file of runs.")
app.add_typer(run, name="run")


def _plain(text: str) -> str:
    """Return what others wrote without control characters, which steer a terminal."""
    return _CONTROL.sub("", text)


def _print(content: str | Table, style: str | None = None) -> None:
    """Print a table or a text, in which nothing is markup or an emoji."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.print(_plain(content) if isinstance(content, str) else content, style=style)


def _print_facts(facts: Mapping[str, Any]) -> None:
    """Print settings or figures of a run, a line each."""
    table = plain_table()
    for name, value in facts.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        text = f"{value:.6g}" if isinstance(value, float) else text
        table.add_row(name.replace("_", " "), _plain(text))
    _print(table)


def _cost(summary: Mapping[str, Any], unit: str = "") -> str:
    """Return the cost of a run, and whether it had calls without a price."""
    unpriced = bool(summary.get("unpriced_models"))
    if unpriced and summary["cost_usd"] == 0.0:
        return "unpriced"
    return f"{summary['cost_usd']:.4f}{unit}{' + unpriced' * unpriced}"


# Assignment


@run.command("assignment")
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
    iterations: Annotated[int, typer.Option(help="Tasks of the training, two calls each.")] = 200,
    seed: Annotated[int, typer.Option(help="Of tasks, decisions and simulated answers.")] = 1,
    arrivals: Annotated[
        Arrivals,
        typer.Option(help="Order of tasks: from the bank, mostly coding, in bursts, or drifting."),
    ] = "uniform",
    router: Annotated[Router, typer.Option(help="How agents are chosen.")] = "q_learning",
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an agent's answer.")] = 768,
    runs: Runs = DEFAULT_FILE,
) -> None:
    """Train four agents to share work under load, and show what was learned.

    For every task a router picks an agent and a provider; the agent answers, a judge scores the
    answer, and agents that get too much of the recent work are penalised. Q-learning learns from
    that. Without options everything is simulated: no key, no network, seconds.
    """
    from inframind_gym.teams.assignment.app import Options, make_run, open_providers

    # Wrong input is an error before a run is written.
    require("langgraph", "`inframind team run assignment`", "teams")
    given = {"iterations": iterations, "seed": seed, "arrivals": arrivals, "router": router}
    given["max_tokens"] = max_tokens
    options = validate(given, Options, source="inframind team run assignment")
    providers = open_providers(provider, model or [])
    models = None if providers is None else [each.model for each in providers.values()]
    settings = {"provider": provider, "models": models, **options.model_dump()}
    with RunStore(runs) as store, RunLog(store, "assignment", settings) as log:
        training, served = make_run(options, providers, log=log), []
        with training.llm_service:
            training.train()
            summary, system = training.summary(), training.production()
            for task_type, places in zip(TASK_TYPES, training.team.of_type, strict=True):
                task = training.team.settings.tasks[places[0]]
                served.append(system.process(task.description, task_type))
        log.finish("complete", summary | {"demo_requests": len(served)})
    _print_training(training, summary, served)
    health = system.health()
    print(
        f"health: {health['status']}, {health['current_load_state']}, imbalance "
        f"{health['imbalance_score']:.3f}, {health['llm_calls']} calls so far"
    )
    where = "" if runs == DEFAULT_FILE else f" --runs {runs}"
    print(f"\ninframind team show {log.run_id}{where}")


def _print_training(
    training: Training, summary: dict[str, Any], served: list[dict[str, Any]]
) -> None:
    """Print the figures, the learned policy with its shifts under load, and the demonstration."""
    counts = (f"{agent} {count}" for agent, count in summary["assignments"].items())
    figures = summary | {"assignments": ", ".join(counts)}
    del figures["cost_by_model"]
    _print_facts(figures)
    coordinator = training.coordinator
    table, usual = plain_table("task type", "load", "goes to"), coordinator.policy()
    for state in coordinator.load_states:
        for task_type, best in coordinator.policy(state).items():
            if state == "balanced" or best not in (None, usual[task_type]):
                table.add_row(task_type, state, best.key() if best else "never tried")
    _print("\nRouting policy, and its shifts while an agent is hot", style="bold")
    _print(table)
    table = plain_table("task type", "load", "goes to", ">reward", ">penalty")
    for request in served:
        if "error" in request:
            table.add_row(_plain(f"error: {request['error']}"))
            continue
        numbers = f"{request['reward']:.3f}", f"{request['load_penalty']:.3f}"
        key = f"{request['agent']}:{request['provider']}"
        table.add_row(request["task_type"], request["load_state"], key, *numbers)
    _print("\nLive demo", style="bold")
    _print(table)


# Token budget


@run.command("token-budget")
def run_token_budget(
    task: Annotated[str, typer.Argument(help="What is wanted.")] = TASK,
    budget: Annotated[int, typer.Option(help="Hard ceiling, in tokens.")] = 20_000,
    strategy: Annotated[
        str,
        typer.Option(help="frontload, critique_heavy, adaptive, or a policy such as fixed_k:4."),
    ] = "adaptive",
    provider: ProviderName = "simulated",
    model: Annotated[
        str | None, typer.Option(help="Model of the provider; needed for a URL.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated provider.")] = 0,
    runs: Runs = DEFAULT_FILE,
) -> None:
    """Answer a task with planner, executor and critic on a budget of tokens.

    The team stops where further tokens buy too little quality. What it does not spend it returns.
    """
    from inframind_gym.teams.llm import SIMULATED, open_provider
    from inframind_gym.teams.token_budget.app import TEAM, Orchestrator, Order

    given = {"task": task, "budget": budget, "strategy": strategy, "seed": seed}
    order = validate(given, Order, source="inframind team run token-budget")
    way = None if provider == SIMULATED else open_provider(provider, model)
    settings = {**order.model_dump(), "provider": provider if way is None else way.model}
    with RunStore(runs) as store, RunLog(store, TEAM, settings) as log:
        summary = asyncio.run(Orchestrator(order, log, way).run())
        steps = [each.data for each in store.events(log.run_id) if each.kind == "trace"]
    _print_trace(log.run_id, summary, steps)
    if "error" in summary:
        say(f"error: {summary['error']}")
        raise typer.Exit(1)


def _print_trace(run_id: str, summary: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Print the trace, the cost report and the output; a review's points are the critic's claim."""
    report, before = summary["cost_report"], 0.0
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
    _print(f"run {run_id}{' [simulated]' if summary['simulated'] else ''}")
    if "warning" in summary:
        _print(f"warning: {summary['warning']}")
    _print(table)
    _print(
        f"{report['tokens']:,} of {report['budget']:,} tokens, {report['unspent']:,} returned "
        f"({report['overhead_tokens']:,} on pre-flight and ratings), quality "
        f"{summary['quality']:.0f} by the proxies, {_cost(summary, ' USD')}; "
        f"ended by {summary['ended_by']}"
    )
    if not summary["simulated"]:
        _print(summary["output"])


# Coordination


@run.command("coordination")
def run_coordination(
    question: Annotated[str, typer.Argument(help="The question.")] = QUESTION,
    provider: ProviderName = "simulated",
    model: Annotated[
        str | None, typer.Option(envvar="MODEL_PATH", help="Model of the provider.")
    ] = None,
    max_context_length: Annotated[
        int,
        typer.Option(
            envvar="MAX_CONTEXT_LENGTH", min=1024, max=131_072, help="Tokens of a conversation."
        ),
    ] = 128_000,
    corpus: Annotated[
        Path | None,
        typer.Option(help="Folder of texts (.md, .txt). Default: 255 passages about LLM serving."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of the query: policy=checked_rag, deadline_s=10, "
            "rewrite=model, interrupt_before=human, fault=planner:timeout, … (repeatable).",
            show_default=False,
        ),
    ] = None,
    runs: Runs = DEFAULT_FILE,
) -> None:
    """Answer a question from texts with five agents before a deadline, sources included.

    A supervisor calls router, planner, retrieval, synthesis and validation. Where one of them
    fails or is late, basic retrieval answers. Without a provider, rules on the words stand in
    for the model, in virtual time.
    """
    from inframind_gym.policies import resolve_policy
    from inframind_gym.teams.coordination.app import MultiAgentCoordinator
    from inframind_gym.teams.coordination.retrieval import Corpus, Retriever
    from inframind_gym.teams.coordination.settings import Query, QuerySettings
    from inframind_gym.teams.llm import SIMULATED, open_provider

    # Whatever is wrong is said before anything is loaded.
    validate({"query": question}, Query, source="question")
    require("langgraph", "the coordination team", "teams")
    variables = [f"{VARIABLES[k]}={v}" for k, v in os.environ.items() if k in VARIABLES]
    given = dict(read_setting(one, QuerySettings) for one in (*variables, *(changes or ())))
    settings = validate(given, QuerySettings, source="--set")
    resolve_policy(settings.policy, family="coordination")
    way = None if provider == SIMULATED else open_provider(provider, model)
    texts = Corpus.load(corpus)
    record = {
        "question": question,
        "provider": provider if way is None else f"{provider}, {way.model}",
        "corpus": f"{texts.name}, {len(texts.passages)} passages",
        **settings.model_dump(mode="json", exclude_defaults=True),
    }
    with RunStore(runs) as store, RunLog(store, "coordination", record) as log:
        with MultiAgentCoordinator(
            max_context_length=max_context_length,
            backend=SIMULATED,  # without a provider
            provider=way,
            searcher=Retriever(texts),
            log=log,
            ask=_ask,
        ) as team:
            say(f"reading {texts.name}: {len(texts.passages)} passages")
            team.warm_up()
            response = team.process_query(question, settings=settings)
        status, summary = response.summary()
        log.finish(status, summary)
    _print_answer(log.run_id, response)
    raise typer.Exit(status == "failed")


def _ask(when: str, node: str, value: Any) -> bool:
    """Ask at the terminal whether to go on; Ctrl-C interrupts the run."""
    shown = value.model_dump_json() if hasattr(value, "model_dump_json") else str(value)
    typer.echo(f"{when} {node}: {_plain(shown)}", err=True)
    # The event loop's handler would only note the signal until the answer is there.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm("go on?", default=True, err=True)
    except typer.Abort:
        say("the question was not answered: the run ends here")
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, handler)


def _print_answer(run_id: str, response: AgentResponse) -> None:
    metadata = response.metadata
    _print(f"run {run_id}{' [simulated]' if metadata['simulated'] else ''}")
    _print(response.content)
    if "reason" in metadata:  # it was refused
        _print(metadata["reason"])
        return
    if response.sources:
        _print(f"\nsources{' (not cited)' if metadata['attribution'] == 'given' else ''}")
    for number, document in enumerate(response.sources, 1):
        _print(f"  [{number}] {document.source}")
    _print("\n" + " > ".join(step["action"] for step in metadata["decisions"]))
    for failure in metadata["failures"]:
        _print(f"{failure['agent']} failed ({failure['failure']}): {failure['message']}")
    if metadata["failures"] and not metadata["calls"]:
        _print("no model answered any call")
    for doc_id, reason in metadata["withheld"]:
        _print(f"withheld {doc_id}: {reason}")
    score = f"validated {response.validation_score:.2f}"
    trimmed = ", trimmed" if metadata["context_trimmed"] else ""
    _print(
        f"{metadata['ended_by']} after "
        f"{response.processing_time:.2f} s, {score if metadata['validation'] else 'not validated'};"
        f" {metadata['calls']} calls, {metadata['input_tokens']:,} + "
        f"{metadata['output_tokens']:,} tokens; context {metadata['context_tokens']:,} of "
        f"{metadata['context_limit']:,} tokens{trimmed}"
    )


# Runs


@app.command("list")
def list_runs(runs: Runs = DEFAULT_FILE) -> None:
    """List the last twenty runs, the newest first."""
    with RunStore(runs, must_exist=True) as store:
        rows = store.list_runs(most=20)
    table = plain_table("run", "team", "status", "started", ">calls", ">USD")
    for each in rows:
        summary = {"calls": "", "cost_usd": 0.0} | (each.summary or {})
        started = datetime.fromtimestamp(each.started_s, UTC).astimezone()
        figures = str(summary["calls"]), _cost(summary)
        table.add_row(each.run_id, each.team, each.status, f"{started:%m-%d %H:%M:%S}", *figures)
    _print(table)


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
    with RunStore(runs, must_exist=True) as store:
        newest = [each.run_id for each in store.list_runs(most=1)]
        if not newest:
            raise ConfigError(f"{store.path}: holds no runs. `inframind team run …` writes one.")
        chosen = store.get_run(name or newest[0])
        written = store.events(chosen.run_id) if events else []
    rows = {"run": chosen.run_id, "team": chosen.team, "status": chosen.status}
    _print_facts(rows | chosen.settings | (chosen.summary or {}))
    for event in written:
        text = json.dumps(event.data, ensure_ascii=False)
        print(f"{event.seq:5} {event.kind:<16} {_plain(text)[:110]}")
