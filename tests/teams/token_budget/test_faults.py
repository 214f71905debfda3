"""Faults between the team and its model: nothing is spent twice, nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inframind_gym.teams.llm import (
    AttemptError,
    Completion,
    LLMRequest,
)
from inframind_gym.teams.token_budget.app import play
from tests.teams.token_budget.runs import Log, Model, agent_of, make, sensible


def finish(provider: Model, **order: Any) -> tuple[Log, dict[str, Any]]:
    """Play a run to its end, whatever the model does."""
    log = Log()
    summary = asyncio.run(play(make(log, provider, **order), log))
    return log, summary


def charged(log: Log) -> int:
    """Tokens of all attempts by the log."""
    return sum(a.get("total_tokens", 0) for a in log.of("llm_attempt"))


def failing(kind: str, times: int, **failure: Any) -> Model:
    """A model whose first calls by an agent fail."""
    left = [times]

    def answer(request: LLMRequest) -> Completion:
        if agent_of(request) == kind and left[0]:
            left[0] -= 1
            raise AttemptError("http_429", "busy", **{"spent": "nothing", **failure})
        return sensible(request)

    return Model(answer)


def test_a_run_of_a_model_counts_every_token_once() -> None:
    log, summary = finish(Model())
    report = summary["cost_report"]
    assert log.status == "complete"
    assert (
        report["tokens"]
        == charged(log)
        == sum(report["by_agent"].values()) + report["overhead_tokens"]
    )
    assert summary["calls"] == len(log.of("llm_attempt"))
    first = log.of("agent_step")[0]
    # The plan has three of four parts; 70 is the mean of the rating's three numbers.
    assert first["quality_score"] == pytest.approx((0.6 * 70 + 0.2 * 75) / 0.8, abs=1e-3)
    draft = log.of("agent_step")[1]
    assert draft["quality_score"] == pytest.approx((0.6 * 70 + 0.2 * 50) / 0.8, abs=1e-3)
    review = log.of("agent_step")[2]
    assert review["quality_delta"] == 9.0  # of the one flag that says what is wrong
    revision = log.of("agent_step")[3]  # its rating says that the flag is resolved
    assert revision["quality_score"] == pytest.approx(0.6 * 70 + 0.2 * 100 + 0.2 * 50)


@pytest.mark.parametrize("agent", ["preflight", "planner", "executor", "critic", "self_eval"])
def test_refused_attempts_cost_nothing_and_are_tried_again(agent: str) -> None:
    log, summary = finish(failing(agent, 2, is_retryable=True))
    plain_log, plain = finish(Model())
    assert summary["cost_report"] == plain["cost_report"]
    assert log.of("agent_step") == plain_log.of("agent_step")
    assert len(log.of("llm_attempt")) == len(plain_log.of("llm_attempt")) + 2


def test_a_lost_call_reports_its_own_tokens() -> None:
    """The revision never comes back, and after two attempts no room is left for a third."""
    drafts = []

    def answer(request: LLMRequest) -> Completion:
        if agent_of(request) == "executor":
            drafts.append(request)
            if len(drafts) > 1:
                raise AttemptError("timeout", "lost", is_retryable=True, spent="unknown")
        return sensible(request)

    log, summary = finish(Model(answer), budget=5_000)
    report, steps = summary["cost_report"], log.of("agent_step")
    assert len(drafts) == 1 + 2
    last = steps[-1]
    assert (last["agent"], last["iteration"], last["status"]) == ("executor", 2, "complete")
    assert last["tokens_used"] == report["lost_tokens"] == log.of("call_lost")[0]["tokens"] > 1000
    assert last["quality_delta"] == last["roi"] == 0.0
    for told, key in ((steps, "tokens_used"), (log.of("trace"), "tokens")):
        spent = sum(step[key] for step in told) + report["overhead_tokens"]
        assert spent == told[-1]["cumulative_tokens"] == report["tokens"]


def test_a_call_that_fails_for_good_ends_the_run_with_what_there_is() -> None:
    log, summary = finish(failing("critic", 1, is_retryable=False))
    assert log.status == "failed"
    assert summary["ended_by"] == "error"
    assert "http_429" in summary["error"]
    assert summary["output"].startswith("## One")
    assert summary["cost_report"]["tokens"] == charged(log)
    assert [step["agent"] for step in log.of("agent_step")] == ["planner", "executor"]


@pytest.mark.parametrize("agent", ["preflight", "planner", "critic", "self_eval"])
@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"a": 1'])
def test_malformed_answers_are_paid_and_change_little(agent: str, text: str) -> None:
    def answer(request: LLMRequest) -> Completion:
        good = sensible(request)
        if agent_of(request) != agent:
            return good
        return Completion(text, good.input_tokens, good.output_tokens)

    log, summary = finish(Model(answer))
    assert log.status == "complete"
    assert summary["cost_report"]["tokens"] == charged(log)
    assert summary["output"].startswith("## One")
    assert log.of("malformed")[0]["agent"] == agent
    if agent == "self_eval":  # the other proxies count alone
        assert [step["quality_score"] for step in log.of("agent_step")[:2]] == [75.0, 50.0]


def test_a_model_that_ignores_its_limit_is_charged_and_not_called_again() -> None:
    def answer(request: LLMRequest) -> Completion:
        good = sensible(request)
        if agent_of(request) == "executor":
            return Completion(good.content, good.input_tokens, 30_000)
        return good

    model = Model(answer)
    log, summary = finish(model)
    report = summary["cost_report"]
    assert report["by_agent"]["executor"] > 30_000
    assert report["overshoot"] == report["tokens"] - 20_000 > 10_000
    after = [agent_of(r) for r in model.requests]
    assert after.index("executor") == len(after) - 1  # not even its rating is sent
    assert log.of("rating_missing")
    assert log.of("agent_step")[-1]["status"] == "complete"
    assert log.of("agent_step")[-1]["tokens_remaining"] < 0


def test_an_overshoot_is_at_most_the_error_of_prompt_estimates() -> None:
    """Prompts are twice as long as estimated: each call may exceed by that, and no more."""

    def answer(request: LLMRequest) -> Completion:
        good = sensible(request)
        return Completion(good.content, 2 * request.prompt_tokens_estimate, request.max_tokens)

    model = Model(answer)
    log, summary = finish(model, strategy="spend_all", budget=6_000)
    last = model.requests[-2:]
    assert summary["cost_report"]["overshoot"] <= sum(r.prompt_tokens_estimate for r in last)
    assert log.status == "complete"
