"""A model as the supervisor: its steps are taken where they are open, else the rule's."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.teams.coordination.supervisor import NAME
from inframind_gym.teams.llm.types import AttemptError, Completion, LLMRequest
from tests.teams.coordination.runs import COMPLEX, SIMPLE, Model, agent_of, make, sensible
from tests.teams.token_budget.runs import Log

MODEL = {"policy": NAME, "deadline_s": 60.0}
ORDER = ("route", "plan", "retrieve in parallel, hybrid", "synthesize", "answer")
APART = ("route", "plan", "retrieve hybrid", "synthesize", "answer")


def open_steps(prompt: str) -> list[str]:
    listed = prompt.rpartition("Open steps: ")[2].rstrip(".")
    return re.split(r", (?!vector|hybrid|graphrag)", listed)


def naming(choose: Callable[[list[str]], str]) -> Model:
    def answer(prompt: str) -> str:
        if agent_of(prompt) != "supervisor":
            return sensible(prompt)
        return choose(open_steps(prompt))

    return Model(answer)


def step(names: list[str]) -> str:
    return json.dumps({"step": next(name for name in ORDER if name in names)})


def test_the_model_decides() -> None:
    log, model = Log(), naming(step)
    with make(model, log=log) as team:
        told = team.process_query(COMPLEX, settings=MODEL).metadata
    taken = [each["action"] for each in told["decisions"]]
    assert taken == ["route", "plan", "retrieve in parallel, hybrid", "synthesize", "answer"]
    assert [agent for agent, *_ in model.calls].count("supervisor") == len(taken)
    assert not log.of("supervisor_failed")
    agents = {a["agent"] for a in log.of("llm_attempt")}
    assert "supervisor" in agents
    spent = sum(a["input_tokens"] + a["output_tokens"] for a in log.of("llm_attempt"))
    assert told["input_tokens"] + told["output_tokens"] == spent


@pytest.mark.parametrize("text", ["", "{", '{"step": "dance"}', '{"step": "synthesize"}', "[1]"])
def test_a_step_that_is_not_open_is_left_to_the_rule(text: str) -> None:
    log = Log()
    with make(naming(lambda names: text), log=log) as team:
        model = team.process_query(SIMPLE, settings=MODEL)
    with make(Model()) as team:
        rule = team.process_query(SIMPLE, settings={"deadline_s": 60.0})
    steps = [[each["action"] for each in r.metadata["decisions"]] for r in (model, rule)]
    assert steps[0] == steps[1]
    assert len(log.of("supervisor_failed")) == len(steps[0])


def test_a_model_that_fails_leaves_all_to_the_rule() -> None:
    class Failing(Model):
        async def complete(self, request: LLMRequest) -> Completion:
            if agent_of(request.user) == "supervisor":
                raise AttemptError("http_400", "no", is_retryable=False, spent="nothing")
            return await super().complete(request)

    with make(Failing()) as team:
        assert team.process_query(SIMPLE, settings=MODEL).metadata["ended_by"] == "answer"


def test_a_model_that_hangs_does_not_hold_up_the_answer() -> None:
    class Hanging(Model):
        async def complete(self, request: LLMRequest) -> Completion:
            if agent_of(request.user) == "supervisor":
                await asyncio.sleep(60.0)
            return await super().complete(request)

    with make(Hanging()) as team:
        response = team.process_query(SIMPLE, settings={"policy": NAME})
    assert response.processing_time < 3.0 + 0.25
    assert response.sources


def test_searches_at_once_save_turns() -> None:
    def turns(order: tuple[str, ...]) -> int:
        def choose(names: list[str]) -> str:
            return json.dumps({"step": next(name for name in order if name in names)})

        log = Log()
        with make(naming(choose), log=log) as team:
            team.process_query(COMPLEX, settings=MODEL)
        asked: list[dict[str, Any]] = log.of("llm_attempt")
        return sum(a["input_tokens"] for a in asked if a["agent"] == "supervisor")

    together = turns(ORDER)
    apart = turns(APART)
    assert 0.2 < 1.0 - together / apart < 0.5  # five turns in place of eight: no half


def test_without_a_model_there_is_nobody_to_ask() -> None:
    with make() as team, pytest.raises(ConfigError, match="name one with --provider"):
        team.process_query(SIMPLE, settings=MODEL)
