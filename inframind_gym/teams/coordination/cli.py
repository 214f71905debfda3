"""`inframind team run coordination`."""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from inframind_gym.errors import ConfigError, friendly, require, unknown
from inframind_gym.progress import say
from inframind_gym.teams.runs import DEFAULT_FILE, AsJson, ProviderName, RunLog, Runs, RunStore

if TYPE_CHECKING:
    from inframind_gym.teams.coordination.scenarios import Played
    from inframind_gym.teams.coordination.settings import AgentResponse

DEMONSTRATION: Final = "How does continuous batching change the latency of a request?"
VARIABLES: Final = {  # of the process, and the settings of queries that they give; --set wins
    "ENABLE_MULTI_AGENT": "enable_multi_agent",
    "AGENT_DECISION_TIMEOUT": "agent_decision_timeout_ms",
    "FALLBACK_TO_BASIC_RAG": "fallback_to_basic_rag",
}
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line breaks


def run_coordination(
    question: Annotated[
        str | None, typer.Argument(help="The question. Default: one to show.", show_default=False)
    ] = None,
    scenario: Annotated[
        str | None, typer.Option(metavar="S1-S8", help="Play an acceptance scenario and check it.")
    ] = None,
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
    as_json: AsJson = False,
) -> None:
    """Answer a question from texts with five agents before a deadline, sources included.

    A supervisor calls router, planner, retrieval, synthesis and validation. Where one of them
    fails or is late, basic retrieval answers. Without a provider, rules on the words stand in
    for the model, in virtual time.
    """
    with friendly(), ExitStack() as stack:
        from inframind_gym.configs import read_setting, validate
        from inframind_gym.policies import resolve_policy
        from inframind_gym.teams.coordination.app import MultiAgentCoordinator
        from inframind_gym.teams.coordination.retrieval import Corpus
        from inframind_gym.teams.coordination.scenarios import SCENARIOS, Played
        from inframind_gym.teams.coordination.settings import MODEL, Query, QuerySettings
        from inframind_gym.teams.llm import SIMULATED, open_provider

        # Whatever is wrong is said before anything is loaded.
        if question is not None and scenario is not None:
            raise ConfigError("give a question, or --scenario S1 … S8, and not both.")
        if scenario is not None and scenario not in SCENARIOS:
            raise ConfigError(unknown("scenario", scenario, tuple(SCENARIOS)))
        question = DEMONSTRATION if question is None else question
        validate({"query": question}, Query, source="question")
        require("langgraph", "the coordination team", "teams")
        variables = [f"{VARIABLES[k]}={v}" for k, v in os.environ.items() if k in VARIABLES]
        given = dict(read_setting(one, QuerySettings) for one in (*variables, *(changes or ())))
        settings = validate(given, QuerySettings, source="--set")
        resolve_policy(settings.policy, family="coordination")
        way = None if provider == SIMULATED else open_provider(provider, model)
        texts = Corpus.load(corpus)
        record = {
            "question": question if scenario is None else f"{scenario}, {SCENARIOS[scenario][0]}",
            "provider": provider if way is None else f"{provider}, {way.model}",
            "corpus": f"{texts.name}, {len(texts.passages)} passages",
            **settings.model_dump(mode="json", exclude_defaults=True),
        }
        store = stack.enter_context(RunStore(runs))
        log = stack.enter_context(RunLog(store, "coordination", record))
        backend = SIMULATED if way is None else "vllm"
        parts: dict[str, Any] = {"provider": way, "corpus": texts, "log": log, "ask": _ask}
        team = stack.enter_context(
            MultiAgentCoordinator(model or MODEL, max_context_length, backend, **parts)
        )
        say(f"reading {texts.name}: {len(texts.passages)} passages")
        team.warm_up()
        if scenario is None:
            played = Played(team.process_query(question, settings=settings), {})
        else:
            played = SCENARIOS[scenario][1](team, settings)
        fails = _finish(played, scenario, log, as_json)
    raise typer.Exit(fails)


def _finish(played: Played, scenario: str | None, log: RunLog, as_json: bool) -> bool:
    """Finish the run of a question or a scenario, and print it; returns whether it failed."""
    response, metadata = played.response, dict[str, Any]()
    summary: dict[str, Any] = {"scenario": scenario, "checks": played.checks, "notes": played.notes}
    fails = not all(played.checks.values())
    if response is not None:
        metadata = response.metadata
        if scenario is None:
            fails = metadata["ended_by"] in ("failed", "context")
            summary = {k: v for k, v in metadata.items() if isinstance(v, str | int | float)}
        summary["content"] = response.content
    log.finish("failed" if fails and scenario is None else "complete", summary)
    if as_json:
        whole = response.model_dump(mode="json") if response is not None and not scenario else {}
        print(json.dumps({"run_id": log.run_id, **(whole or {"passed": not fails, **summary})}))
        return fails
    simulated = " [simulated]" if metadata.get("simulated") else ""
    _say(f"run {log.run_id}{simulated}{f': {scenario}' if scenario else ''}")
    if response is not None:
        _print_answer(response)
    for line in played.notes:
        _say(line)
    for check, held in played.checks.items():
        _say(f"{'ok    ' if held else 'MISSED'} {check}")
    return fails


def _ask(when: str, node: str, value: Any) -> bool:
    """Ask at the terminal whether to go on."""
    shown = value.model_dump_json() if hasattr(value, "model_dump_json") else str(value)
    typer.echo(f"{when} {node}: {_CONTROL.sub('', shown)}", err=True)
    return typer.confirm("go on?", default=True, err=True)


def _print_answer(response: AgentResponse) -> None:
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
        f"{metadata['ended_by']} after "
        f"{response.processing_time:.2f} s, {score if metadata['validation'] else 'not validated'};"
        f" {metadata['calls']} calls, {metadata['input_tokens']:,} + "
        f"{metadata['output_tokens']:,} tokens; context {metadata['context_tokens']:,} of "
        f"{metadata['context_limit']:,} tokens{trimmed}"
    )


def _say(text: str) -> None:
    """Print what others wrote: no markup or emoji, no control characters that steer a terminal."""
    Console().print(Text(_CONTROL.sub("", text)))
