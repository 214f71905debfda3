"""Agents that fail on a scripted server: an answer comes in time, and the log names the agent."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from inframind_gym.teams.coordination.settings import FAULTS
from inframind_gym.teams.llm import Completion, LLMRequest, OpenAICompatible
from tests.teams.coordination.runs import COMPLEX, SIMPLE, Model, agent_of, make, sensible
from tests.teams.stand_in import Reply, StandIn
from tests.teams.token_budget.runs import Log

pytest.importorskip("openai")

DEADLINE_S = 3.0 + 0.25  # the hard deadline, and what a busy machine adds
TASKS = ("router", "planner", "retrieval", "synthesis", "draft", "validation")
NAMED = {"draft": "synthesis"}  # the agent that does a task


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def good(body: dict[str, Any]) -> Reply:
    return Reply(sensible(prompt_of(body)))


def play(answer: Any, query: str, log: Log, **settings: Any) -> tuple[Any, float, StandIn]:
    """One query on a server; returns the answer, its wall time and the server."""
    with StandIn(answer) as server:
        provider = OpenAICompatible("stub", f"{server.url}/v1")
        with make(provider, log=log) as team:
            began_s = time.monotonic()
            response = team.process_query(query, settings={"rewrite": "model", **settings})
            return response, time.monotonic() - began_s, server


@pytest.mark.parametrize(
    ("agent", "reply", "failure"),
    [
        ("router", Reply(cuts=True), "error"),
        ("planner", Reply("{]"), "garbage"),
        ("retrieval", Reply(status=400, message="no"), "error"),
        ("draft", Reply(hangs=True), "timeout"),
    ],
)
def test_a_broken_agent_is_answered_by_basic_retrieval(
    agent: str, reply: Reply, failure: str
) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        return reply if agent_of(prompt_of(body)) == agent else good(body)

    log = Log()
    response, took_s, _ = play(answer, COMPLEX, log)
    assert max(took_s, response.processing_time) < DEADLINE_S
    assert response.metadata["ended_by"] in ("fallback", "deadline")
    assert response.sources and response.content
    failed = log.of("agent_failed")[0]
    assert (failed["agent"], failed["failure"]) == (NAMED.get(agent, agent), failure)
    assert log.of("decision")[-1]["action"] == "fallback"


def test_no_model_at_all_still_quotes_the_passages() -> None:
    response, took_s, _ = play(lambda body: Reply(hangs=True), SIMPLE, Log())
    assert took_s < DEADLINE_S
    assert "16 tokens" in response.content
    assert response.sources[0].doc_id == "a.md#block"


class Slow(Model):
    """Agents that take seconds of their own; the supervisor names a step that is open."""

    def __init__(self, **seconds: float) -> None:
        super().__init__(self._words)
        self._seconds = seconds

    def _words(self, prompt: str) -> str:
        if agent_of(prompt) != "supervisor":
            return sensible(prompt)
        steps = [s for s in ("retrieve vector", "validate") if s in prompt.rpartition("Open")[2]]
        return json.dumps({"step": steps[0] if steps else "answer"})

    async def complete(self, request: LLMRequest) -> Completion:
        agent = agent_of(request.user)
        has_drafted = any(each == "draft" for each, *_ in self.calls)
        is_fallback = agent == "draft" and "at most 2" in request.user and has_drafted
        await asyncio.sleep(60.0 if is_fallback else self._seconds.get(agent, 0.01))
        return await super().complete(request)


@pytest.mark.parametrize(
    ("seconds", "settings", "late"),
    [
        # The draft and its validation are two waves of one decision.
        ({"router": 1.3, "draft": 0.7, "validation": 1.0}, {}, "validation"),
        (
            {"supervisor": 0.7, "draft": 0.6, "validation": 1.0},
            {"policy": "llm_supervisor"},
            "validation",
        ),
        # Three searches, one after the other, each a wave.
        (
            {"planner": 0.6, "retrieval": 0.8},
            {"rewrite": "model", "parallel_tool_calls": False},
            "retrieval",
        ),
    ],
)
def test_all_waves_and_thoughts_end_at_the_one_deadline(
    seconds: dict[str, float], settings: dict[str, Any], late: str
) -> None:
    log = Log()
    with make(Slow(**seconds), log=log) as team:
        began_s = time.monotonic()
        response = team.process_query(COMPLEX if late == "retrieval" else SIMPLE, None, settings)
        took_s = time.monotonic() - began_s
    assert max(took_s, response.processing_time) < DEADLINE_S
    assert [event["agent"] for event in log.of("agent_failed")] == [late]
    assert response.sources and response.content


def test_the_thought_of_a_supervisor_is_charged_to_the_decision() -> None:
    settings = {"policy": "llm_supervisor", "deadline_s": 60.0}
    with make(Slow(supervisor=0.3)) as team:
        metadata = team.process_query(SIMPLE, None, settings).metadata
    assert len(metadata["decisions"]) == 3
    assert metadata["decisions"][-1]["elapsed_ms"] >= 600
    assert metadata["model_ms"] < 500  # of the agents, without those 900


def test_a_search_that_breaks_is_the_retrieval_agents_failure() -> None:
    class Broken:
        def retrieve(self, query: Any, strategy: str = "hybrid", top_k: int = 10) -> list[Any]:
            if query == "warm up":
                return []
            raise RuntimeError("the index is gone")

    log = Log()
    with make(searcher=Broken(), log=log) as team:
        response = team.process_query(SIMPLE)
    failed = log.of("agent_failed")[0]
    assert (failed["agent"], "index is gone" in failed["message"]) == ("retrieval", True)
    assert response.metadata["ended_by"] == "failed"


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("agent", TASKS)
def test_faults_on_purpose(agent: str, kind: str) -> None:
    log = Log()
    query = COMPLEX if agent in ("planner", "synthesis") else SIMPLE
    with make(log=log) as team:
        settings = {"rewrite": "model", "fault": f"{agent}:{kind}"}
        response = team.process_query(query, settings=settings)
    assert response.processing_time <= 3.0
    assert response.content
    if (agent, kind) != ("draft", "garbage"):
        assert log.of("agent_failed")[0]["failure"] == kind
