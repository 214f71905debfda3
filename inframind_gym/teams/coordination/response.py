"""The answer to a query, from the session that made it."""

from __future__ import annotations

from statistics import median
from typing import Any, Final

from inframind_gym.teams.coordination.context import ContextManager
from inframind_gym.teams.coordination.contracts import AgentResponse
from inframind_gym.teams.coordination.grounding import is_abstention
from inframind_gym.teams.coordination.reading import cited
from inframind_gym.teams.coordination.session import Session
from inframind_gym.teams.coordination.state import REASONS

NO_ANSWER: Final = "No answer could be found in time."
TOO_LONG: Final = "The conversation is longer than the context of the model."
REFUSED: Final = "This query was not processed: it looks like a prompt injection."
UNANSWERED: Final = ("stopped", "failed", "context")  # endings without an answer


def refusal(reason: str, *, simulated: bool) -> AgentResponse:
    """Return the answer to a query that the screen keeps back."""
    return AgentResponse(
        content=REFUSED,
        sources=(),
        metadata={
            "ended_by": "refused",
            "reason": reason,
            "decisions": [],
            "failures": [],
            "simulated": simulated,
        },
        validation_score=0.0,
        processing_time=0.0,
    )


def respond(
    session: Session,
    handoffs: list[dict[str, Any]],
    context: ContextManager,
    seconds: float,
) -> AgentResponse:
    """Return the answer of a session that has ended.

    Args:
        session: The session.
        handoffs: Messages of its coordination.
        context: Manager of the conversation.
        seconds: From query to answer.
    """
    work, options = session.product, session.options
    ended_by = REASONS[int(session.state.reason[0])]
    if session.was_stopped or session.is_refused:
        ended_by = "stopped" if session.was_stopped else "failed"
    elif not work.draft and ended_by != "context":  # the fallback itself failed
        ended_by = "failed"
    content = TOO_LONG if ended_by == "context" else NO_ANSWER
    sources, attribution = work.documents[:0], "none"
    if work.draft and ended_by not in UNANSWERED:
        is_empty = is_abstention(work.query, cited(work.draft, ())[0])
        given = () if is_empty else work.documents  # nothing is said of which one is a source
        content, sources = cited(work.draft, given)
        attribution = "cited" if sources else "none"
        if not sources and given:  # the writer had them and named none
            sources, attribution = given, "given"
    metadata = {
        "ended_by": ended_by,
        "attribution": attribution,
        **_said(session),
        **_measured(session, context),
        "handoffs": len(handoffs),
    }
    if options.output_mode == "structured":
        metadata["structured"] = _structured(session, context, content)
    if options.output_mode == "full_history":
        metadata["messages"] = handoffs
    return AgentResponse(
        content=content,
        sources=sources,
        metadata=metadata,
        validation_score=_score(session),
        processing_time=seconds,
        history=tuple(map(dict, work.history)),
    )


def _said(session: Session) -> dict[str, Any]:
    work = session.product
    told = {"route": work.route, "plan": work.plan, "validation": work.validation}
    passages = [pair for result in work.found for pair in result.withheld]
    return {
        **{k: None if v is None else v.model_dump(mode="json") for k, v in told.items()},
        "decisions": session.audit.decisions,
        "failures": session.audit.failures,
        "queries": [list(result.queries) for result in work.found],
        "withheld": [list(pair) for pair in (*work.withheld, *passages)],
        "missing": list(work.missing),
    }


def _measured(session: Session, context: ContextManager) -> dict[str, Any]:
    state, overheads = session.state, session.audit.overheads_ms or [0.0]
    cost, history = session.service.get_cost_summary(), session.product.history
    return {
        "simulated": session.service.is_simulated,
        "iterations": int(state.iteration[0]),
        "calls": cost["calls"],
        "input_tokens": cost["input_tokens"],
        "output_tokens": cost["output_tokens"],
        "cost_usd": cost["cost_usd"],
        "overhead_ms_median": median(overheads),
        "overhead_ms_max": max(overheads),
        "model_ms": int(state.model_ms[0]),
        "parallel": int(state.widest[0]),
        "context_tokens": int(state.context[0]),
        "context_limit": context.limits.max_tokens,
        "context_trimmed": bool(state.trimmed[0]),
        "history_messages": len(history),
        "history_tokens": context.estimate_tokens(history),
    }


def _structured(session: Session, context: ContextManager, content: str) -> dict[str, Any]:
    product, state = session.product, session.state
    question = {"role": "user", "content": product.query}
    return context.post_model_hook(
        {
            "output_mode": "structured",
            "response": content,
            "messages": [*product.history, question],
            "context_trimmed": bool(state.trimmed[0]),
            "parallel_tool_calls": int(state.widest[0]) > 1,
        }
    )


def _score(session: Session) -> float:
    """Return how sure it is that the answer is valid; 0 where nobody checked."""
    found = session.product.validation
    if found is None or not session.state.judged[0]:
        return 0.0
    return found.confidence if found.valid else min(found.confidence, 1.0 - found.confidence)
