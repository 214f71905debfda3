"""The eight acceptance scenarios on the application: a question, what happens, and its checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from inframind_gym.teams.coordination import serving
from inframind_gym.teams.coordination.contracts import AgentResponse
from inframind_gym.teams.coordination.options import QuerySettings
from inframind_gym.teams.coordination.retrieval.questions import Question, load_questions
from inframind_gym.teams.coordination.scenarios import find_scenario
from inframind_gym.teams.coordination.system import MultiAgentCoordinator

SIMPLE: Final = "What is the default block size of vLLM's KV cache?"
COMPLEX: Final = (
    "Compare continuous batching with static batching and explain what chunked prefill changes"
)
OTHER_WORDS: Final = "why is the first tocken late when promts are long?"
FOLLOW_UP: Final = "And how large is it for a context of 4,000 tokens?"
_EXCHANGES: Final = (
    ("What is paged attention?", "Keys and values lie in blocks, so that no memory is lost."),
    ("How large is a block?", "16 tokens on GPUs."),
    ("What is prefix caching?", "Requests with the same beginning share its blocks."),
    ("What is kept for a token?", "Keys and values of every layer: the KV cache."),
    ("What does it take in FP8 for Qwen3-4B?", "The KV cache takes 73,728 bytes a token."),
)
_REFERRED: Final = "73,728"  # bytes a token, in the passages that FOLLOW_UP is about
_LONG_TOKENS: Final = 126_000  # of a conversation near the end of the context
_HISTORY_CHARS: Final = 2_000  # of one of its messages


@dataclass
class Result:
    """A scenario that was played.

    Attributes:
        name: "S1" to "S8".
        response: Answer; None where the scenario has no question.
        checks: What has to hold, and whether it does; None: it could not be seen here.
        notes: Figures, a line each.
    """

    name: str
    response: AgentResponse | None
    checks: dict[str, bool | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return all(held is not False for held in self.checks.values())

    def summary(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        told = {} if self.response is None else {"content": self.response.content}
        return {"scenario": self.name, "checks": self.checks, "notes": self.notes, **told}


def play_scenario(coordinator: MultiAgentCoordinator, name: str, settings: QuerySettings) -> Result:
    """Play a scenario and check it.

    Args:
        coordinator: The team, warmed up.
        name: "S1" to "S8".
        settings: Settings of its queries.

    Raises:
        ConfigError: There is no such scenario.
    """
    find_scenario(name)
    return _PLAYS[name](coordinator, settings)


def _decided(response: AgentResponse) -> list[str]:
    return [str(step["action"]) for step in response.metadata["decisions"]]


def _simple(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    response = coordinator.process_query(SIMPLE, settings=settings)
    route, decided = response.metadata["route"] or {}, _decided(response)
    limit_s = coordinator.limits(settings).simple_s
    return Result(
        "S1",
        response,
        {
            "routed as simple": route.get("complexity") == "simple",
            "searched by vector": "retrieve vector" in decided,
            "no plan, no synthesis": not {"plan", "synthesize"} & set(decided),
            f"under {limit_s:g} s": response.processing_time < limit_s,
            "its sources are named": response.metadata["attribution"] == "cited",
        },
    )


def _complex(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    response = coordinator.process_query(COMPLEX, settings=settings)
    told, decided = response.metadata, _decided(response)
    sub_tasks = (told["plan"] or {}).get("sub_tasks", [])
    return Result(
        "S2",
        response,
        {
            "routed as complex": (told["route"] or {}).get("complexity") == "complex",
            "three sub-tasks": len(sub_tasks) == 3,
            "a search for each": len(told["queries"]) >= len(sub_tasks) > 0,
            "results were merged": "synthesize" in decided,
            "validated": told["validation"] is not None,
        },
    )


def _failing(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    with coordinator.failing("planner:timeout"):
        response = coordinator.process_query(COMPLEX, settings=settings)
    failures = response.metadata["failures"]
    limit_s = coordinator.limits(settings).hard_s
    return Result(
        "S3",
        response,
        {
            "basic retrieval answered": _decided(response)[-1] == "fallback",
            f"an answer within {limit_s:g} s": response.processing_time <= limit_s
            and bool(response.sources),
            "the failure names its agent": any(f["agent"] == "planner" for f in failures),
        },
    )


def _follow_up(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    history = [
        {"role": role, "content": text}
        for exchange in _EXCHANGES
        for role, text in zip(("user", "assistant"), exchange, strict=True)
    ]
    response = coordinator.process_query(FOLLOW_UP, history, settings)
    alone = coordinator.process_query(FOLLOW_UP, settings=settings)
    uses, would_anyway = (
        any(_REFERRED in document.text for document in each.sources) for each in (response, alone)
    )
    told = response.metadata
    return Result(
        "S4",
        response,
        {
            "a source is about what the question refers to": uses,
            "without the exchanges none is": not would_anyway,
            "within 128,000 tokens": told["context_tokens"] <= 128_000,
            "answered": told["ended_by"] == "answer",
        },
        [f"without the exchanges: {alone.content}"],
    )


def _rewritten(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    response = coordinator.process_query(OTHER_WORDS, settings=settings)
    queries = [query for search in response.metadata["queries"] for query in search]
    began_s = time.perf_counter()
    coordinator.rewrite(OTHER_WORDS)
    took_ms = 1000.0 * (time.perf_counter() - began_s)
    before, after = (_recall(coordinator, rewritten=wanted) for wanted in (False, True))
    return Result(
        "S5",
        response,
        {
            "the query was rewritten": len(set(queries)) > 1,
            "in less than 100 ms": took_ms < 100.0,
            "a fifth more passages found": after >= 1.2 * before,
        },
        [
            f"rewriting: {took_ms:.1f} ms; searched for: {'; '.join(queries)}",
            f"recall of needed passages in the first 4, hybrid, {len(_asked())} questions: "
            f"{before:.3f} plain, {after:.3f} rewritten",
        ],
    )


def _asked() -> list[Question]:
    """Questions with labels that nothing was tuned on."""
    return [question for question in load_questions() if question.half == "test"]


def _recall(coordinator: MultiAgentCoordinator, *, rewritten: bool) -> float:
    """Return the mean share of needed passages among the first four of one search."""
    shares = []
    for question in _asked():
        queries = coordinator.rewrite(question.text) if rewritten else [question.text]
        found = coordinator.searcher.retrieve(queries, "hybrid", 4)
        hits = len(question.answers & {document.doc_id for document in found})
        shares.append(min(hits / question.needed, 1.0))
    return sum(shares) / len(shares)


def _speed(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    speeds = [serving.estimate(gpu, coordinator.server) for gpu in serving.GPUS]
    result = Result("S6", None)
    for speed in speeds:
        held = ", ".join(f"{k}: {'yes' if v else 'no'}" for k, v in speed.checks().items())
        result.notes.append(
            f"{speed.where}: {speed.decode_tok_s:.0f} tok/s decode, {speed.prefill_tok_s:,.0f} "
            f"prefill, {speed.memory_gb:.1f} GB (estimate); {held}"
        )
    result.checks = {f"{speeds[0].where}: {k}": v for k, v in speeds[0].checks().items()}
    if not coordinator.is_simulated:
        measured = coordinator.measure()
        result.notes.append(
            f"{measured.where}: {measured.decode_tok_s:.0f} tok/s decode, "
            f"{measured.prefill_tok_s:,.0f} prefill (measured)"
        )
        result.checks |= {f"measured: {k}": v for k, v in measured.checks().items()}
    return result


def _long(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    context = coordinator.context
    history: list[Mapping[str, Any]] = [{"role": "system", "content": "Answer in short."}]
    number = 0
    while context.estimate_tokens(history) < _LONG_TOKENS * context.limits.max_tokens / 131_072:
        role = ("user", "assistant")[number % 2]
        text = f"Message {number}. ".ljust(_HISTORY_CHARS, "x")
        history.append({"role": role, "content": text})
        number += 1
    response = coordinator.process_query(SIMPLE, history, settings)
    kept, told = response.history, response.metadata
    said = [{"role": "user", "content": SIMPLE}, {"role": "assistant", "content": response.content}]
    coordinator.read_ahead([*kept, *said])
    later = coordinator.process_query(SIMPLE, [*kept, *said], settings)
    target, share = context.limits.trim_to_tokens, context.limits.oldest_share
    oldest = [m for i, m in enumerate(kept) if i < len(history) and m == history[i]]
    return Result(
        "S7",
        response,
        {
            f"trimmed to {target:,} tokens": told["context_trimmed"]
            and context.estimate_tokens(kept) <= target,
            f"{share:.0%} of what is kept is the oldest": context.estimate_tokens(oldest)
            >= 0.95 * share * target,
            "the system message is there": bool(kept) and kept[0] == history[0],
            "the newest message is there": bool(kept) and kept[-1] == history[-1],
            "answered": told["ended_by"] == "answer",
            "the next question is answered": later.metadata["ended_by"] == "answer",
        },
        [f"{len(history)} messages, {len(kept)} kept"],
    )


def _parallel(coordinator: MultiAgentCoordinator, settings: QuerySettings) -> Result:
    wanted = settings.model_copy(update={"output_mode": "structured"})
    one = settings.model_copy(update={"policy": "sequential_supervisor"})
    response = coordinator.process_query(COMPLEX, settings=wanted)
    sequential = coordinator.process_query(COMPLEX, settings=one)
    told = response.metadata
    # What a supervisor that is a model would read and write: the context at each of its turns.
    turns = [
        sum(step["context_tokens"] for step in each.metadata["decisions"])
        for each in (response, sequential)
    ]
    saved = 1.0 - turns[0] / max(turns[1], 1)
    return Result(
        "S8",
        response,
        {
            "three searches at once": told["parallel"] == 3,
            "returns to the supervisor are tracked": told["handoffs"] > 2,
            "structured output": "response" in told.get("structured", {}),
            "the answer was forwarded": _decided(response)[-1] == "answer",
            "overhead under 200 ms a decision": told["overhead_ms_median"] < 200.0,
            "supervisor's tokens 50 % fewer": saved >= 0.5,
        },
        [
            f"tokens of the supervisor's turns: {turns[0]:,} in parallel, {turns[1]:,} one after "
            f"the other ({saved:.0%} fewer)"
        ],
    )


_PLAYS: Final[dict[str, Callable[[MultiAgentCoordinator, QuerySettings], Result]]] = {
    "S1": _simple,
    "S2": _complex,
    "S3": _failing,
    "S4": _follow_up,
    "S5": _rewritten,
    "S6": _speed,
    "S7": _long,
    "S8": _parallel,
}
