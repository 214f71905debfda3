"""Trimming of conversations: its trigger, in LangGraph, and for what hypothesis comes up with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.teams.coordination.prompts import ContextManager, message_tokens
from inframind_gym.teams.coordination.settings import ContextLimits

MANAGER = ContextManager()


def message(role: str, tokens: int, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": "word" * tokens, **more}


def calls(*ids: str, tokens: int = 0) -> dict[str, Any]:
    made = [{"id": one, "function": {"name": "", "arguments": ""}} for one in ids]
    return message("assistant", tokens, tool_calls=made)


def result(of: str, tokens: int) -> dict[str, Any]:
    return message("tool", tokens, tool_call_id=of)


def test_nothing_happens_up_to_the_trigger() -> None:
    for tokens, trimmed in ((120_000, False), (120_001, True)):
        state = {"messages": [message("user", 60_000), message("assistant", tokens - 60_000)]}
        assert MANAGER.pre_model_hook(state)["context_trimmed"] is trimmed


def test_the_hook_trims_what_langgraph_sends() -> None:
    """A shorter list of messages is merged by the reducer and trims nothing."""
    core = pytest.importorskip("langchain_core.messages")
    graphs = pytest.importorskip("langgraph.graph")

    class State(graphs.MessagesState):  # type: ignore[misc, name-defined]
        llm_input_messages: list[Any]
        context_trimmed: bool
        tokens_trimmed: int

    graph = graphs.StateGraph(State)
    graph.add_node("trim", MANAGER.pre_model_hook)
    graph.add_edge(graphs.START, "trim")
    messages = [core.SystemMessage("s" * 400, id="s")]
    messages += [core.HumanMessage("x" * 4000, id=f"u{i}") for i in range(130)]
    state = graph.compile().invoke({"messages": messages})
    kept = state["llm_input_messages"]
    assert (len(state["messages"]), len(kept), state["tokens_trimmed"]) == (131, 109, 22_000)
    assert kept[0].id == "s" and kept[-1].id == "u129"


KINDS = st.sampled_from(["system", "user", "assistant", "call", "result", "orphan"])


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for i, kind in enumerate(draw(st.lists(KINDS, max_size=40))):
        tokens = draw(st.integers(0, 60))
        if kind == "call":
            ids = [f"{i}-{k}" for k in range(draw(st.integers(1, 3)))]
            made.append(calls(*ids, tokens=tokens))
            open_calls += ids
        elif kind == "result" and open_calls:
            made.append(result(open_calls.pop(draw(st.integers(0, len(open_calls) - 1))), tokens))
        elif kind in ("result", "orphan"):
            made.append(result("none", tokens))
        else:
            made.append(message(kind, tokens))
    return made


@settings(max_examples=100, deadline=None)
@given(conversations(), st.integers(-20, 1200), st.sampled_from([0.0, 0.3, 1.0]))
def test_what_holds_of_every_trim(
    messages: list[dict[str, Any]], target: int, share: float
) -> None:
    manager = ContextManager(ContextLimits(oldest_share=share))
    before = [dict(m) for m in messages]
    trimmed = manager.trim(messages, target)
    assert messages == before  # the caller's conversation is left alone
    places = [next(i for i, m in enumerate(messages) if m is kept) for kept in trimmed.messages]
    assert places == sorted(set(places))
    assert trimmed.tokens_after == manager.estimate_tokens(trimmed.messages)
    if trimmed.tokens_before <= target:
        assert trimmed.messages == messages
        return
    users = [i for i, m in enumerate(messages) if m["role"] == "user"]
    pinned = {i for i, m in enumerate(messages) if m["role"] == "system"} | set(users[-1:])
    assert pinned <= set(places)
    assert trimmed.tokens_after <= max(target, sum(message_tokens(messages[i]) for i in pinned))
    asked = {c["id"] for m in trimmed.messages for c in m.get("tool_calls", ())}
    answered = [m["tool_call_id"] for m in trimmed.messages if m["role"] == "tool"]
    assert sorted(asked) == sorted(answered)
