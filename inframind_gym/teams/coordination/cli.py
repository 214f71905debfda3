"""`inframind team run coordination` and `inframind team chat`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from inframind_gym.errors import ConfigError, InfraMindError, friendly, require, unknown
from inframind_gym.progress import say
from inframind_gym.teams.runs import DEFAULT_FILE, AsJson, ProviderName, RunLog, Runs, RunStore

if TYPE_CHECKING:
    from inframind_gym.teams.coordination.app import MultiAgentCoordinator
    from inframind_gym.teams.coordination.settings import AgentResponse, QuerySettings

DEMONSTRATION: Final = "How does continuous batching change the latency of a request?"
ENDINGS: Final = {
    "answer": "answered",
    "fallback": "basic retrieval answered",
    "deadline": "late: basic retrieval answered",
    "iterations": "too many decisions: basic retrieval answered",
    "context": "the context was too long: ended",
    "failed": "failed without an answer",
}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks

Model = Annotated[
    str | None,
    typer.Option(help="Model of the provider. Default: $MODEL_PATH.", show_default=False),
]
CorpusFolder = Annotated[
    Path | None,
    typer.Option(help="Folder of texts (.md, .txt). Default: 255 passages about LLM serving."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting of the queries: policy=checked_rag, deadline_s=10, "
        "rewrite=model, interrupt_before=human, fault=planner:timeout, … (repeatable).",
        show_default=False,
    ),
]


def run_coordination(
    question: Annotated[
        str | None, typer.Argument(help="The question. Default: one to show.", show_default=False)
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(metavar="S1-S8", help="Play an acceptance scenario and check it.")
    ] = None,
    provider: ProviderName = "simulated",
    model: Model = None,
    corpus: CorpusFolder = None,
    changes: Changes = None,
    runs: Runs = DEFAULT_FILE,
    as_json: AsJson = False,
) -> None:
    """Answer a question from texts with five agents before a deadline, sources included.

    A supervisor calls router, planner, retrieval, synthesis and validation. Where one of them
    fails or is late, basic retrieval answers. Without a provider, rules on the words stand in
    for the model, in virtual time.
    """
    with friendly(), ExitStack() as stack:
        from inframind_gym.teams.coordination.app import checked_query
        from inframind_gym.teams.coordination.scenarios import SCENARIOS, Played

        if question is not None and scenario is not None:
            raise ConfigError("give a question, or --scenario S1 … S8, and not both.")
        if scenario is not None and scenario not in SCENARIOS:
            raise ConfigError(unknown("scenario", scenario, tuple(SCENARIOS)))
        question = checked_query(DEMONSTRATION if question is None else question)
        subject = {"scenario": scenario} if scenario else {"question": question}
        team, settings, log = _open(stack, provider, model, corpus, changes, runs, subject)
        title, summary, output = f"run {log.run_id}", dict[str, Any](), dict[str, Any]()
        if scenario is None:
            response = team.process_query(question, settings=settings)
            played, metadata = Played(response, {}), response.metadata
            summary = {k: v for k, v in metadata.items() if isinstance(v, str | int | float)}
            fails = metadata["ended_by"] in ("failed", "context")
            title += " [simulated]" if metadata["simulated"] else ""
            output = response.model_dump(mode="json")
        else:
            about, play = SCENARIOS[scenario]
            played = play(team, settings)
            fails = not all(played.checks.values())
            summary = {"scenario": scenario, "checks": played.checks, "notes": played.notes}
            title += f": {scenario}, {about}"
            output = {"passed": not fails, **summary}
        if played.response is not None:
            summary["content"] = output["content"] = played.response.content
        log.finish("failed" if fails and scenario is None else "complete", summary)
        if as_json:
            print(json.dumps({"run_id": log.run_id, **output}))
        else:
            _say(title)
            if played.response is not None:
                _print_answer(played.response)
            for line in played.notes:
                _say(line)
            for check, held in played.checks.items():
                _say(f"{'ok    ' if held else 'MISSED'} {check}")
    raise typer.Exit(fails)


def chat(
    provider: ProviderName = "simulated",
    model: Model = None,
    corpus: CorpusFolder = None,
    changes: Changes = None,
    runs: Runs = DEFAULT_FILE,
) -> None:
    """Talk with the coordination team: a question a line, with what was said before.

    A long conversation is trimmed after an answer. /clear forgets it, /quit ends.
    """
    with friendly(), ExitStack() as stack:
        from inframind_gym.teams.coordination.app import UNANSWERED

        subject = {"chat": True}
        team, settings, log = _open(stack, provider, model, corpus, changes, runs, subject)
        history: list[Mapping[str, Any]] = []
        questions = 0
        while True:
            try:
                line = input("> ").strip()
                if line == "/quit":
                    break
                if line == "/clear":
                    history = []
                elif line.startswith("/"):
                    _say(f"{line} is no command: /clear, /quit.")
                elif line:
                    response = team.process_query(line, history, settings)
                    _print_answer(response)
                    if response.metadata["ended_by"] in UNANSWERED:  # nothing to remember
                        continue
                    questions += 1
                    history.append({"role": "user", "content": line})
                    history.append({"role": "assistant", "content": response.content})
                    update = team.context.pre_model_hook({"messages": history})
                    history = update["llm_input_messages"]
            except EOFError:
                break
            except KeyboardInterrupt:  # ends the answer, not the conversation
                _say("stopped; /quit ends")
            except InfraMindError as error:
                _say(f"error: {error}")
        log.finish("complete", {"questions": questions})


def _open(
    stack: ExitStack,
    provider: str,
    model: str | None,
    corpus: Path | None,
    changes: list[str] | None,
    runs: Path,
    subject: Mapping[str, Any],
) -> tuple[MultiAgentCoordinator, QuerySettings, RunLog]:
    """Open the coordinator and its run; whatever is wrong is said before anything is loaded."""
    from inframind_gym.configs import validate
    from inframind_gym.policies import resolve_policy
    from inframind_gym.teams.coordination.app import MultiAgentCoordinator
    from inframind_gym.teams.coordination.retrieval import Corpus
    from inframind_gym.teams.coordination.settings import MODEL, QuerySettings, read_environment
    from inframind_gym.teams.llm import SIMULATED, open_provider

    require("langgraph", "the coordination team", "teams")
    variables = read_environment(os.environ)
    given: dict[str, Any] = variables.settings()
    for change in changes or ():
        key, _, value = change.partition("=")
        try:
            given[key] = value.split(",") if key.startswith("interrupt_") else json.loads(value)
        except ValueError:
            given[key] = value
    settings = validate(given, QuerySettings, source="--set")
    resolve_policy(settings.policy, family="coordination")
    if variables.model_fields_set:
        say(f"set by variables: {', '.join(sorted(variables.model_fields_set))}")
    named = model or (variables.MODEL_PATH if "MODEL_PATH" in variables.model_fields_set else None)
    way = None if provider == SIMULATED else open_provider(provider, named)
    texts = Corpus.load(corpus)
    record = {
        **subject,
        "provider": provider,
        **({} if way is None else {"model": way.model}),
        "corpus": f"{texts.name}, {len(texts.passages)} passages",
        **settings.model_dump(mode="json", exclude_defaults=True),
    }
    log = stack.enter_context(RunLog(stack.enter_context(RunStore(runs)), "coordination", record))
    coordinator = MultiAgentCoordinator(
        named or MODEL,
        variables.MAX_CONTEXT_LENGTH,
        SIMULATED if way is None else "vllm",
        provider=way,
        corpus=texts,
        server=variables.server(),
        log=log,
        ask=_ask,
    )
    team = stack.enter_context(coordinator)
    say(f"reading {texts.name}: {len(texts.passages)} passages")
    team.warm_up()
    return team, settings, log


def _ask(when: str, node: str, value: Any) -> bool:
    """Ask at the terminal whether to go on."""
    shown = value.model_dump_json() if hasattr(value, "model_dump_json") else str(value)
    typer.echo(f"{when} {node}: {_CONTROL.sub('', shown)}", err=True)
    return typer.confirm("go on?", default=True, err=True)


def _print_answer(response: AgentResponse) -> None:
    """Print an answer with its sources, its decisions and what it took."""
    metadata = response.metadata
    _say(response.content)
    if "reason" in metadata:  # it was refused
        _say(metadata["reason"])
        return
    if response.sources:
        _say(f"\nsources{' (not cited)' if metadata['attribution'] == 'given' else ''}")
    for number, document in enumerate(response.sources, 1):
        _say(f"  [{number}] {document.source}")
    _say("\n" + " > ".join(step["action"] for step in metadata["decisions"]))
    for failure in metadata["failures"]:
        _say(f"{failure['agent']} failed ({failure['failure']}): {failure['message']}")
    for doc_id, reason in metadata["withheld"]:
        _say(f"withheld {doc_id}: {reason}")
    score = f"validated {response.validation_score:.2f}"
    trimmed = ", trimmed" if metadata["context_trimmed"] else ""
    _say(
        f"{ENDINGS.get(metadata['ended_by'], metadata['ended_by'])} after "
        f"{response.processing_time:.2f} s, {score if metadata['validation'] else 'not validated'};"
        f" {metadata['calls']} calls, {metadata['input_tokens']:,} + "
        f"{metadata['output_tokens']:,} tokens; context {metadata['context_tokens']:,} of "
        f"{metadata['context_limit']:,} tokens{trimmed}"
    )


def _say(text: str) -> None:
    """Print what others wrote: no markup or emoji, no control characters that steer a terminal."""
    Console().print(Text(_CONTROL.sub("", text)))
