"""Agents that fail on a scripted server: an answer comes in time, and the log names the agent."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from typing import Any

import pytest

from inframind_gym.teams.coordination.faults import Faulty
from inframind_gym.teams.coordination.supervisor import NAME
from inframind_gym.teams.llm.providers import OpenAICompatible
from inframind_gym.teams.llm.types import Completion, LLMRequest
from tests.teams.coordination.runs import COMPLEX, SIMPLE, Model, agent_of, make, sensible
from tests.teams.stand_in import Reply, StandIn
from tests.teams.token_budget.runs import Log

pytest.importorskip("openai")

AGENTS = ("router", "planner", "retrieval", "synthesis", "draft", "validation")
FAULTS = {
    "timeout": Reply(hangs=True),
    "garbage": Reply("{]"),
    "exception": Reply(status=400, message="no"),
    "cut": Reply(cuts=True),
    "no JSON": Reply(raw="<html>"),
}
DEADLINE_S = 3.0 + 0.25  # the hard deadline, and what a busy machine adds
NAMED = {"draft": "synthesis"}  # the agent that does a task


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


def play(
    answer: Any, query: str = COMPLEX, *, log: Log | None = None, **settings: Any
) -> tuple[Any, float, StandIn]:
    """One query on a server; returns the answer, its wall time and the server."""
    with StandIn(answer) as server:
        provider = OpenAICompatible("stub", f"{server.url}/v1")
        with make(provider, log=log) as team:
            given = {"rewrite": "model", **settings}
            began_s = time.monotonic()
            response = team.process_query(query, settings=given)
            return response, time.monotonic() - began_s, server


def good(body: dict[str, Any]) -> Reply:
    return Reply(sensible(prompt_of(body)))


def broken(agent: str, reply: Reply) -> Any:
    def answer(body: dict[str, Any]) -> Reply:
        prompt = prompt_of(body)
        return reply if agent_of(prompt) == agent else Reply(sensible(prompt))

    return answer


def test_a_server_that_answers() -> None:
    log = Log()
    response, _, server = play(good, log=log, deadline_s=30.0)
    assert response.metadata["ended_by"] == "answer"
    assert response.content == "A block holds 16 tokens [1]."
    assert [document.doc_id for document in response.sources]
    assert response.validation_score == 0.8
    assert not response.metadata["failures"]
    # One after the other the agents read the same beginning, which a server keeps.
    prompts = [prompt_of(body) for body in server.requests]
    drafts = [p for p in prompts if agent_of(p) in ("synthesis", "draft", "validation")]
    shared = drafts[0].partition("Question: ")[0]
    assert shared.count("<source>") >= 3
    assert all(p.startswith(shared) for p in drafts)
    assert len({body["messages"][0]["content"] for body in server.requests}) == 1


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_broken_agent_is_answered_by_basic_retrieval(agent: str, fault: str) -> None:
    if (agent, fault) == ("draft", "garbage"):
        pytest.skip("any text is an answer")
    log = Log()
    response, took_s, _ = play(broken(agent, FAULTS[fault]), log=log)
    assert took_s < DEADLINE_S
    assert response.processing_time <= DEADLINE_S
    assert response.metadata["ended_by"] in ("fallback", "deadline")
    assert response.sources
    assert response.content
    failed = log.of("agent_failed")[0]
    assert failed["agent"] == NAMED.get(agent, agent)
    assert failed["failure"] == {"timeout": "timeout", "garbage": "garbage"}.get(fault, "error")
    assert log.of("answer")[0]["sources"]
    assert log.of("decision")[-1]["action"] == "fallback"


def test_no_model_at_all_still_quotes_the_passages() -> None:
    response, took_s, _ = play(lambda body: Reply(hangs=True), SIMPLE)
    assert took_s < DEADLINE_S
    assert "16 tokens" in response.content
    assert response.sources[0].doc_id == "a.md#block"


def test_a_slow_agent_has_its_answer_taken() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        time.sleep(0.3 if agent_of(prompt_of(body)) == "planner" else 0.0)
        return good(body)

    response, _, _ = play(answer, deadline_s=30.0)
    assert response.metadata["ended_by"] == "answer"
    assert not response.metadata["failures"]


def test_agents_that_are_all_slow_end_at_the_deadline() -> None:
    def answer(body: dict[str, Any]) -> Reply:
        time.sleep(0.6)
        return good(body)

    log = Log()
    response, took_s, _ = play(answer, log=log)
    assert took_s < DEADLINE_S
    assert response.metadata["ended_by"] == "deadline"
    assert response.sources


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
        is_fallback = agent == "draft" and "at most 2" in request.user and self._falls_back
        await asyncio.sleep(60.0 if is_fallback else self._seconds.get(agent, 0.01))
        return await super().complete(request)

    @property
    def _falls_back(self) -> bool:
        return any(agent == "draft" for agent, *_ in self.calls)


@pytest.mark.parametrize(
    ("seconds", "settings", "late"),
    [
        # The draft and its validation are two waves of one decision.
        ({"router": 1.3, "draft": 0.7, "validation": 1.0}, {}, "validation"),
        ({"supervisor": 0.7, "draft": 0.6, "validation": 1.0}, {"policy": NAME}, "validation"),
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
    assert took_s < DEADLINE_S
    assert response.processing_time < DEADLINE_S
    assert [event["agent"] for event in log.of("agent_failed")] == [late]
    assert response.sources
    assert response.content


def test_the_thought_of_a_supervisor_is_charged_to_the_decision() -> None:
    with make(Slow(supervisor=0.3)) as team:
        told = team.process_query(SIMPLE, None, {"policy": NAME, "deadline_s": 60.0}).metadata
    assert len(told["decisions"]) == 3
    assert told["decisions"][-1]["elapsed_ms"] >= 600
    assert told["model_ms"] < 500  # of the agents, without those 900


@pytest.mark.parametrize("status", [429, 500, 503])
def test_refused_calls_are_tried_again_with_growing_waits(status: int) -> None:
    times: list[float] = []

    def answer(body: dict[str, Any]) -> Reply:
        if agent_of(prompt_of(body)) == "router":
            times.append(time.monotonic())
            if len(times) <= 3:
                return Reply(status=status, message="busy")
        return good(body)

    response, _, _ = play(answer, SIMPLE, deadline_s=30.0)
    assert response.metadata["ended_by"] == "answer"
    assert len(times) == 4
    waits = [b - a for a, b in itertools.pairwise(times)]
    # 50 ms, then 1.5 times as much each time; a draw takes 50 to 150 % of it.
    assert all(w > 0.5 * 0.05 * 1.5**i for i, w in enumerate(waits))


def test_more_refusals_than_retries_fail_the_agent() -> None:
    busy = broken("router", Reply(status=503, message="busy"))
    response, took_s, server = play(busy, SIMPLE, retry={"max_retries": 1})
    routed = [body for body in server.requests if agent_of(prompt_of(body)) == "router"]
    assert len(routed) == 2
    assert response.metadata["ended_by"] == "fallback"
    assert took_s < DEADLINE_S


def test_without_the_fallback_a_query_fails() -> None:
    response, _, _ = play(
        broken("router", FAULTS["exception"]), SIMPLE, fallback_to_basic_rag=False
    )
    assert response.metadata["ended_by"] == "failed"
    assert response.sources == ()


def test_a_search_that_breaks_is_the_retrieval_agents_failure() -> None:
    class Broken:
        def retrieve(self, query: Any, strategy: str = "hybrid", top_k: int = 10) -> list[Any]:
            if query == "warm up":
                return []
            raise RuntimeError("the index is gone")

    log = Log()
    with make(searcher=Broken(), log=log) as team:
        response = team.process_query(SIMPLE)
    assert log.of("agent_failed")[0]["agent"] == "retrieval"
    assert "index is gone" in log.of("agent_failed")[0]["message"]
    assert response.content == "No answer could be found in time."
    assert response.metadata["ended_by"] == "failed"


@pytest.mark.parametrize("kind", ["timeout", "garbage", "error", "slow"])
@pytest.mark.parametrize("agent", AGENTS)
def test_faults_on_purpose(agent: str, kind: str) -> None:
    log = Log()
    query = COMPLEX if agent in ("planner", "synthesis") else SIMPLE
    with make(log=log, fault=f"{agent}:{kind}") as team:
        response = team.process_query(query, settings={"rewrite": "model"})
    assert response.processing_time <= 3.0
    assert response.content
    if kind != "slow" and (agent, kind) != ("draft", "garbage"):
        assert log.of("agent_failed")[0]["failure"] == kind


def test_a_fault_that_is_not_known() -> None:
    with pytest.raises(ValueError, match="Did you mean 'planner'"):
        Faulty(None, "planer:timeout")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Did you mean 'timeout'"):
        Faulty(None, "planner:time-out")  # type: ignore[arg-type]
