"""Agents that fail on a scripted server: an answer comes in time, and the log names the agent."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from inframind_gym.teams.coordination.settings import FAULTS
from inframind_gym.teams.llm import LLMRequest, LLMResponse, OpenAICompatible
from tests.live.vllm_server.fake import Answer, FakeServer
from tests.teams.coordination.runs import COMPLEX, SIMPLE, Model, agent_of, make, sensible
from tests.teams.token_budget.runs import Log

pytest.importorskip("openai")

DEADLINE_S = 3.0 + 2.0  # the hard deadline, and what a busy machine adds
TASKS = ("router", "planner", "retrieval", "synthesis", "draft", "validation")
NAMED = {"draft": "synthesis"}  # the agent that does a task


@pytest.mark.parametrize(
    ("agents", "query", "reply", "failure"),
    [
        (("router",), COMPLEX, Answer(reset_after=0), "timeout"),  # of its attempts
        (("planner",), COMPLEX, Answer("{]"), "garbage"),
        (("retrieval",), COMPLEX, Answer(status=400, message="no"), "error"),
        (("draft",), COMPLEX, Answer(hang=True), "timeout"),
        (TASKS, SIMPLE, Answer(hang=True), "timeout"),  # passages are quoted
    ],
)
def test_a_broken_agent_is_answered_by_basic_retrieval(
    agents: tuple[str, ...], query: str, reply: Answer, failure: str
) -> None:
    def answer(body: dict[str, Any], _: int) -> Answer:
        prompt = str(body["messages"][-1]["content"])
        return reply if agent_of(prompt) in agents else Answer(sensible(prompt))

    log = Log()
    with FakeServer(answer) as server:
        provider = OpenAICompatible("stub", f"{server.url}/v1")
        with make(provider, log=log) as team:
            began_s = time.monotonic()
            response = team.process_query(query, settings={"rewrite": "model"})
            took_s = time.monotonic() - began_s
    assert max(took_s, response.processing_time) < DEADLINE_S
    assert response.metadata["ended_by"] in ("fallback", "deadline")
    assert response.sources and ("16 tokens" in response.content or query == COMPLEX)
    failed = log.of("agent_failed")[0]
    assert (failed["agent"], failed["failure"]) == (NAMED.get(agents[0], agents[0]), failure)
    assert log.of("decision")[-1]["action"] == "fallback"


class Slow(Model):
    """Agents that take seconds of their own; the fallback's writer never answers."""

    def __init__(self, **seconds: float) -> None:
        super().__init__()
        self._seconds, self.begun = seconds, list[str]()

    async def complete(self, request: LLMRequest) -> LLMResponse:
        agent = agent_of(request.user)
        self.begun.append(agent)
        has_drafted = any(each == "draft" for each, *_ in self.calls)
        is_fallback = agent == "draft" and "at most 2" in request.user and has_drafted
        await asyncio.sleep(60.0 if is_fallback else self._seconds.get(agent, 0.01))
        return await super().complete(request)


@pytest.mark.parametrize(
    ("seconds", "query", "settings", "late", "wave"),
    [
        # The draft and its validation are two waves of one decision.
        ({"router": 1.3, "draft": 0.7, "validation": 1.0}, SIMPLE, {}, "validation", 1),
        # Three searches, one after the other, each a wave.
        (
            {"planner": 0.6, "retrieval": 0.8},
            COMPLEX,
            {"rewrite": "model", "parallel_tool_calls": False},
            "retrieval",
            3,
        ),
    ],
)
def test_all_waves_end_at_the_one_deadline(
    seconds: dict[str, float], query: str, settings: dict[str, Any], late: str, wave: int
) -> None:
    log, model = Log(), Slow(**seconds)
    with make(model, log=log) as team:
        began_s = time.monotonic()
        response = team.process_query(query, None, settings)
        took_s = time.monotonic() - began_s
    assert max(took_s, response.processing_time) < DEADLINE_S
    assert response.metadata["ended_by"] in ("fallback", "deadline")
    failed = [event["agent"] for event in log.of("agent_failed")]
    # On a machine that is late itself the last wave may not begin any more.
    assert failed == [late] or (not failed and model.begun.count(late) < wave)
    assert response.sources and response.content


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
