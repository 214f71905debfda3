"""`inframind team run coordination` and `inframind team chat`."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from inframind_gym.errors import ConfigError, friendly
from inframind_gym.progress import say
from inframind_gym.teams.runs.store import DEFAULT_FILE, RunLog, RunStore
from inframind_gym.teams.terminal import AsJson, ProviderName, Runs

if TYPE_CHECKING:
    from inframind_gym.teams.coordination.graph import Pause, Reply
    from inframind_gym.teams.coordination.system import MultiAgentCoordinator

TEAM: Final = "coordination"

Model = Annotated[
    str | None,
    typer.Option(help="Model of the provider. Default: $MODEL_PATH.", show_default=False),
]
CorpusFolder = Annotated[
    Path | None,
    typer.Option(help="Folder of texts (.md, .txt). Default: 255 passages about LLM serving."),
]
PolicyName = Annotated[
    str,
    typer.Option(
        help="Who decides: a coordination policy by name, module:Class, or llm_supervisor."
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(min=0.1, max=3600, help="Latest answer, seconds. Default: 3.", show_default=False),
]
Rewrite = Annotated[
    str, typer.Option(metavar="lexical|model", help="Who rewrites queries for retrieval.")
]
EnvFile = Annotated[
    Path | None, typer.Option(help="Variables of the team. Default: .env, if there is one.")
]


def run_coordination(
    question: Annotated[
        str | None, typer.Argument(help="The question.", show_default=False)
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(metavar="S1-S8", help="Play an acceptance scenario and check it.")
    ] = None,
    provider: ProviderName = "simulated",
    model: Model = None,
    corpus: CorpusFolder = None,
    policy: PolicyName = "seed_supervisor",
    deadline: Deadline = None,
    rewrite: Rewrite = "lexical",
    interrupt_before: Annotated[
        list[str] | None,
        typer.Option(metavar="validator|human", help="Ask before this node.", show_default=False),
    ] = None,
    interrupt_after: Annotated[
        list[str] | None,
        typer.Option(metavar="router|planner", help="Ask after this node.", show_default=False),
    ] = None,
    fault: Annotated[
        str | None,
        typer.Option(
            metavar="AGENT:KIND",
            help="Let an agent's calls fail: timeout, garbage, error or slow.",
            show_default=False,
        ),
    ] = None,
    env_file: EnvFile = None,
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Answer a question from texts with five agents before a deadline, sources included.

    A supervisor calls router, planner, retrieval, synthesis and validation. Where one of them
    fails or is late, basic retrieval answers. Without a provider, rules on the words stand in
    for the model, in virtual time.
    """
    from inframind_gym.teams.coordination.faults import parse_fault
    from inframind_gym.teams.coordination.inputs import checked_query
    from inframind_gym.teams.coordination.scenarios import find_scenario

    with friendly(), ExitStack() as stack:
        if (question is None) == (scenario is None):
            raise ConfigError("give a question, or --scenario S1 … S8, and not both.")
        if scenario is not None:
            find_scenario(scenario)
        if question is not None:
            checked_query(question)
        if fault is not None:
            parse_fault(fault)
        settings: dict[str, Any] = {
            "policy": policy,
            "rewrite": rewrite,
            "interrupt_before": tuple(interrupt_before or ()),
            "interrupt_after": tuple(interrupt_after or ()),
        }
        if deadline is not None:
            settings["deadline_s"] = deadline
        wanted = {"question": question, "scenario": scenario, "fault": fault}
        coordinator, given, log = _open(
            stack, provider, model, corpus, env_file, runs, settings, wanted
        )
        if scenario is not None:
            from inframind_gym.teams.coordination.acceptance import play_scenario
            from inframind_gym.teams.coordination.report import print_result

            result = play_scenario(coordinator, scenario, given)
            log.finish("complete", result.summary())
            print_result(Console(), result, log.run_id, as_json=as_json)
            raise typer.Exit(0 if result.passed else 1)
        assert question is not None
        response = coordinator.process_query(question, settings=given)
        summary = {"content": response.content, **_figures(response.metadata)}
        has_failed = response.metadata["ended_by"] in ("failed", "context")
        log.finish("failed" if has_failed else "complete", summary)
    if as_json:
        print(json.dumps({"run_id": log.run_id, **response.model_dump(mode="json")}))
    else:
        from inframind_gym.teams.coordination.report import print_answer

        console = Console()
        marks = " [simulated]" if response.metadata["simulated"] else ""
        console.print(f"run {log.run_id}{marks}", highlight=False, markup=False)
        print_answer(console, response)
    raise typer.Exit(1 if has_failed else 0)


def chat(
    provider: ProviderName = "simulated",
    model: Model = None,
    corpus: CorpusFolder = None,
    policy: PolicyName = "seed_supervisor",
    deadline: Deadline = None,
    rewrite: Rewrite = "lexical",
    env_file: EnvFile = None,
    runs: Runs = DEFAULT_FILE,
) -> None:
    """Talk with the coordination team: a question a line, with what was said before.

    /trace shows the decisions of each answer, /context the conversation's size, /clear forgets
    it, /quit ends.
    """
    from inframind_gym.teams.coordination.chat import Chat

    with friendly(), ExitStack() as stack:
        settings: dict[str, Any] = {"policy": policy, "rewrite": rewrite}
        if deadline is not None:
            settings["deadline_s"] = deadline
        coordinator, given, log = _open(
            stack, provider, model, corpus, env_file, runs, settings, {"chat": True}
        )
        talk = Chat(coordinator, given, Console())
        talk.run()
        log.finish("complete", {"questions": talk.questions})


def _open(
    stack: ExitStack,
    provider: str,
    model: str | None,
    corpus: Path | None,
    env_file: Path | None,
    runs: Path,
    settings: dict[str, Any],
    told: dict[str, Any],
) -> tuple[MultiAgentCoordinator, Any, RunLog]:
    """Open the coordinator and its run; returns them and the checked settings of a query."""
    from inframind_gym.configs import validate
    from inframind_gym.policies.coordination import registry
    from inframind_gym.teams.coordination import supervisor
    from inframind_gym.teams.coordination.graph import has_langgraph
    from inframind_gym.teams.coordination.options import (
        ENV_FILE,
        MODEL,
        QuerySettings,
        read_environment,
    )
    from inframind_gym.teams.coordination.retrieval import Corpus
    from inframind_gym.teams.coordination.serving import VllmServer
    from inframind_gym.teams.coordination.system import MultiAgentCoordinator
    from inframind_gym.teams.llm.providers import SIMULATED, open_provider

    variables = read_environment(os.environ, env_file or ENV_FILE)
    given = validate({**variables.settings(), **settings}, QuerySettings, source="inframind team")
    if given.policy == supervisor.NAME and provider == SIMULATED:
        raise ConfigError(supervisor.NO_MODEL)
    if given.policy != supervisor.NAME:
        registry.resolve(given.policy)  # whatever is wrong is said before anything is loaded
    if variables.model_fields_set:
        say(f"set by variables: {', '.join(sorted(variables.model_fields_set))}")
    named = model or (variables.MODEL_PATH if "MODEL_PATH" in variables.model_fields_set else None)
    way = None if provider == SIMULATED else open_provider(provider, named)
    texts = Corpus.load(corpus)
    if not has_langgraph():
        say("LangGraph is not installed (extra `teams`): its nodes run in a plain loop.")
    store = stack.enter_context(RunStore(runs))
    kept = {
        **{key: value for key, value in told.items() if value is not None},
        "provider": provider,
        **({} if way is None else {"model": way.model}),
        "corpus": f"{texts.name}, {len(texts.passages)} passages",
        **given.model_dump(mode="json", exclude_defaults=True),
    }
    log = stack.enter_context(RunLog(store, TEAM, kept))
    coordinator = stack.enter_context(
        MultiAgentCoordinator(
            named or MODEL,
            variables.MAX_CONTEXT_LENGTH,
            SIMULATED if way is None else "vllm",
            provider=way,
            corpus=texts,
            server=VllmServer.of(variables),
            log=log,
            ask=_ask,
            fault=told.get("fault"),
        )
    )
    say(f"reading {texts.name}: {len(texts.passages)} passages, {coordinator.vectors} vectors")
    coordinator.warm_up()
    return coordinator, given, log


def _ask(pause: Pause) -> Reply:
    """Ask at the terminal whether to go on."""
    from inframind_gym.teams.coordination.graph import Reply
    from inframind_gym.teams.coordination.report import printable

    value = pause.value
    shown = value.model_dump_json() if hasattr(value, "model_dump_json") else str(value)
    typer.echo(f"{pause.when} {pause.node}: {printable(shown)}", err=True)
    return Reply(typer.confirm("go on?", default=True, err=True))


def _figures(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of an answer, for the run's summary."""
    kinds = (str, int, float, bool)
    return {key: value for key, value in metadata.items() if isinstance(value, kinds)}
