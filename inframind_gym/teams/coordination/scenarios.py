"""The eight acceptance scenarios on the application; those of the environment are in `simulate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from inframind_gym.simulator.estimate.architecture import find_architecture
from inframind_gym.simulator.estimate.roofline import Server, find_gpu
from inframind_gym.teams.coordination.app import MultiAgentCoordinator as Team
from inframind_gym.teams.coordination.retrieval import load_questions, rewrite
from inframind_gym.teams.coordination.settings import MOST_CONTEXT, AgentResponse, QuerySettings


class Played(NamedTuple):
    """A scenario that was played."""

    response: AgentResponse | None  # None where the scenario has no question
    checks: dict[str, bool]  # what has to hold, and whether it does
    notes: tuple[str, ...] = ()  # figures, a line each


QUESTION: Final = "What is the default block size of vLLM's KV cache?"
COMPARISON: Final = (
    "Compare continuous batching with static batching and explain what chunked prefill changes"
)
OTHER_WORDS: Final = "why is the first tocken late when promts are long?"
FOLLOW_UP: Final = "And how large is it for a context of 4,000 tokens?"
_EXCHANGES: Final = (
    "What is paged attention?",
    "Keys and values lie in blocks, so that no memory is lost.",
    "How large is a block?",
    "16 tokens on GPUs.",
    "What is prefix caching?",
    "Requests with the same beginning share its blocks.",
    "What is kept for a token?",
    "Keys and values of every layer: the KV cache.",
    "What does it take in FP8 for Qwen3-4B?",
    "The KV cache takes 73,728 bytes a token.",
)
_REFERRED: Final = "73,728"  # bytes a token, in the passages that FOLLOW_UP is about
_LONG_TOKENS: Final = 126_000  # of a conversation near the end of the context
_HISTORY_CHARS: Final = 2_000  # of one of its messages
GPU: Final = "RTX-4090-LAPTOP"  # of the design


def _decided(response: AgentResponse) -> list[str]:
    return [str(step["action"]) for step in response.metadata["decisions"]]


def _said(number: int, content: str) -> dict[str, Any]:
    return {"role": ("user", "assistant")[number % 2], "content": content}


def _simple(team: Team, settings: QuerySettings) -> Played:
    response = team.process_query(QUESTION, settings=settings)
    route, decided = response.metadata["route"] or {}, _decided(response)
    limit_s = team.settings.of_query(settings, slow=False).limits.simple_s
    checks = {
        "routed as simple": route.get("complexity") == "simple",
        "searched by vector": "retrieve vector" in decided,
        "no plan, no synthesis": not {"plan", "synthesize"} & set(decided),
        f"under {limit_s:g} s": response.processing_time < limit_s,
        "its sources are named": response.metadata["attribution"] == "cited",
    }
    return Played(response, checks)


def _comparison(team: Team, settings: QuerySettings) -> Played:
    response = team.process_query(COMPARISON, settings=settings)
    metadata = response.metadata
    sub_tasks = (metadata["plan"] or {}).get("sub_tasks", [])
    checks = {
        "routed as complex": (metadata["route"] or {}).get("complexity") == "complex",
        "three sub-tasks": len(sub_tasks) == 3,
        "a search for each": len(metadata["queries"]) >= len(sub_tasks) > 0,
        "results were merged": "synthesize" in _decided(response),
        "validated": metadata["validation"] is not None,
    }
    return Played(response, checks)


def _failing(team: Team, settings: QuerySettings) -> Played:
    settings = settings.model_copy(update={"fault": "planner:timeout"})
    response = team.process_query(COMPARISON, settings=settings)
    limit_s = team.settings.of_query(settings, slow=False).limits.hard_s
    failed = [failure["agent"] for failure in response.metadata["failures"]]
    checks = {
        "basic retrieval answered": _decided(response)[-1] == "fallback" and response.sources != (),
        f"an answer within {limit_s:g} s": response.processing_time <= limit_s,
        "the failure names its agent": "planner" in failed,
    }
    return Played(response, checks)


def _follow_up(team: Team, settings: QuerySettings) -> Played:
    history = [_said(i, text) for i, text in enumerate(_EXCHANGES)]
    response = team.process_query(FOLLOW_UP, history, settings)
    alone = team.process_query(FOLLOW_UP, settings=settings)
    uses, would_anyway = (
        any(_REFERRED in document.text for document in each.sources) for each in (response, alone)
    )
    checks = {
        "a source is about what the question refers to": uses,
        "without the exchanges none is": not would_anyway,
        "within 128,000 tokens": response.metadata["context_tokens"] <= 128_000,
        "answered": response.metadata["ended_by"] == "answer",
    }
    return Played(response, checks, (f"without the exchanges: {alone.content}",))


def _rewritten(team: Team, settings: QuerySettings) -> Played:
    response = team.process_query(OTHER_WORDS, settings=settings)
    queries = [query for search in response.metadata["queries"] for query in search]
    began_s = time.perf_counter()
    rewrite(OTHER_WORDS, team.searcher.corpus)
    took_ms = 1000.0 * (time.perf_counter() - began_s)
    # The share of needed passages among the first four, of questions that nothing was tuned on.
    questions = [question for question in load_questions() if question.half == "test"]
    hits = np.zeros((2, len(questions)))  # plain, rewritten
    for i, question in enumerate(questions):
        rewritten = rewrite(question.text, team.searcher.corpus)
        for form, asked in enumerate(([question.text], rewritten)):
            documents = team.searcher.retrieve(asked, "hybrid", 4)
            found = len(question.answers & {each.doc_id for each in documents})
            hits[form, i] = min(found / question.needed, 1.0)
    before, after = hits.mean(axis=1)
    checks = {
        "the query was rewritten": len(set(queries)) > 1,
        "in less than 100 ms": took_ms < 100.0,
        "a fifth more passages found": bool(after >= 1.2 * before),
    }
    notes = (
        f"rewriting: {took_ms:.1f} ms; searched for: {'; '.join(queries)}",
        f"recall of needed passages in the first 4, hybrid, {len(questions)} questions: "
        f"{before:.3f} plain, {after:.3f} rewritten",
    )
    return Played(response, checks, notes)


def _long(team: Team, settings: QuerySettings) -> Played:
    context, limits = team.context, team.context.limits
    history: list[Mapping[str, Any]] = [{"role": "system", "content": "Answer in short."}]
    while context.estimate_tokens(history) < _LONG_TOKENS * limits.max_tokens / 131_072:
        number = len(history) - 1
        history.append(_said(number, f"Message {number}. ".ljust(_HISTORY_CHARS, "x")))
    response = team.process_query(QUESTION, history, settings)
    kept, metadata = list(response.history), response.metadata
    later = team.process_query(
        QUESTION, [*kept, _said(0, QUESTION), _said(1, response.content)], settings
    )
    target, share = limits.trim_to_tokens, limits.oldest_share
    oldest = [m for i, m in enumerate(kept) if i < len(history) and m == history[i]]
    is_trimmed = metadata["context_trimmed"] and context.estimate_tokens(kept) <= target
    oldest_tokens = context.estimate_tokens(oldest)
    checks = {
        f"trimmed to {target:,} tokens": is_trimmed,
        f"{share:.0%} of what is kept is the oldest": oldest_tokens >= 0.95 * share * target,
        "the system message is there": bool(kept) and kept[0] == history[0],
        "the newest message is there": bool(kept) and kept[-1] == history[-1],
        "answered": metadata["ended_by"] == "answer",
        "the next question is answered": later.metadata["ended_by"] == "answer",
    }
    return Played(response, checks, (f"{len(history)} messages, {len(kept)} kept",))


def _parallel(team: Team, settings: QuerySettings) -> Played:
    response, sequential = (
        team.process_query(COMPARISON, settings=settings.model_copy(update=changes))
        for changes in ({"output_mode": "structured"}, {"policy": "sequential_supervisor"})
    )
    metadata = response.metadata
    # What a supervisor that is a model would read and write: the context at each of its turns.
    turns = [
        sum(step["context_tokens"] for step in each.metadata["decisions"])
        for each in (response, sequential)
    ]
    saved = 1.0 - turns[0] / max(turns[1], 1)
    checks = {
        "three searches at once": metadata["parallel"] == 3,
        "returns to the supervisor are tracked": metadata["handoffs"] > 2,
        "structured output": "response" in metadata.get("structured", {}),
        "the answer was forwarded": _decided(response)[-1] == "answer",
        "overhead under 200 ms a decision": metadata["overhead_ms_median"] < 200.0,
        "supervisor's tokens 50 % fewer": saved >= 0.5,
    }
    note = (
        f"tokens of the supervisor's turns: {turns[0]:,} in parallel, {turns[1]:,} one after "
        f"the other ({saved:.0%} fewer)"
    )
    return Played(response, checks, (note,))


def _speed(team: Team, settings: QuerySettings) -> Played:
    """Estimate rates of Qwen3-4B at one call, and its memory with one context of full length.

    It is the roofline of `inframind pool new`, with weights, keys and values in FP8.
    """
    gpu = find_gpu(GPU)[1]
    model = find_architecture("qwen3-4b").model_copy(update={"quantization": "fp8"})
    host = Server(model, gpu, 1, 3, 2048, MOST_CONTEXT)
    card = host.card(1e9 * gpu.memory_gb)
    step = card.step.model_copy(update={"per_kv_token_s": card.step.per_kv_token_s / 2})
    card = card.model_copy(update={"step": step})
    prefill_s = card.call_s(1024, 1)
    decode, prefill = 128 / (card.call_s(1024, 129) - prefill_s), 1024 / prefill_s
    cache = MOST_CONTEXT * model.kv_token_bytes / 2
    memory_gb = (host.weight_bytes + host.reserved_bytes + cache) / 1e9
    checks = {
        f"{GPU}: memory < 16 GB": memory_gb < 16.0,
        f"{GPU}: decode >= 100 tok/s": decode >= 100.0,
        f"{GPU}: prefill >= 800 tok/s": prefill >= 800.0,
    }
    note = f"{GPU}: {decode:.0f} tok/s decode, {prefill:,.0f} prefill, {memory_gb:.1f} GB"
    return Played(None, checks, (f"{note} (estimate)",))


# One line about each, and how it is played on a coordinator that is warmed up.
SCENARIOS: Final[dict[str, tuple[str, Callable[[Team, QuerySettings], Played]]]] = {
    "S1": ("a simple question", _simple),
    "S2": ("a comparison that needs a plan", _comparison),
    "S3": ("an agent that times out", _failing),
    "S4": ("a question about one of five exchanges", _follow_up),
    "S5": ("a question in other words", _rewritten),
    "S6": ("rates of the server", _speed),
    "S7": ("a conversation near the end of the context", _long),
    "S8": ("three searches at once", _parallel),
}
