"""Faults between the team and its model: nothing is spent twice, nothing is lost."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from inframind_gym.teams.llm import LLMError, LLMRequest, LLMResponse, Spent
from tests.teams.token_budget.runs import Log, Model, agent_of, make, run, sensible


def charged(log: Log) -> int:
    """Tokens of all attempts by the log."""
    return sum(a.get("total_tokens", 0) for a in log.of("llm_attempt"))


def changed(change: Callable[[LLMRequest, LLMResponse], LLMResponse], *agents: str) -> Model:
    """A model whose answers to some agents, or to all of them, are changed."""

    def answer(request: LLMRequest) -> LLMResponse:
        is_changed = not agents or agent_of(request) in agents
        return change(request, sensible(request)) if is_changed else sensible(request)

    return Model(answer)


def failing(agent: str, spent: Spent) -> Model:
    """A model whose calls by an agent fail."""

    def fail(*_: object) -> LLMResponse:
        raise LLMError("http_429", "busy", spent)

    return changed(fail, agent)


def test_a_run_of_a_model_counts_every_token_once() -> None:
    log, summary = run(Model())
    report = summary["cost_report"]
    assert log.status == "complete"
    parts = sum(report["by_agent"].values()) + report["overhead_tokens"]
    assert report["tokens"] == charged(log) == parts
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


@pytest.mark.parametrize("spent", ["nothing", "unknown"])
def test_a_call_that_fails_for_good_ends_the_run_with_what_there_is(spent: Spent) -> None:
    log, summary = run(failing("critic", spent))
    assert log.status == "failed"
    assert summary["ended_by"] == "error"
    assert "http_429" in summary["error"]
    assert summary["output"].startswith("## One")
    report = summary["cost_report"]
    assert (report["lost_tokens"] > 0) == (spent == "unknown")  # charged in full
    assert report["tokens"] == charged(log) + report["lost_tokens"]
    assert [step["agent"] for step in log.of("agent_step")] == ["planner", "executor"]


def test_a_run_that_is_broken_off_keeps_what_it_has_spent() -> None:
    log = Log()

    async def leave() -> None:
        task = asyncio.create_task(make(log, Model(wait_s=0.02)).run())
        while not log.of("agent_step"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert log.status == "interrupted"
    assert log.summary["cost_report"]["by_agent"]["planner"] > 0


@pytest.mark.parametrize("agent", ["preflight", "self_eval"])
def test_a_run_goes_on_without_a_rating(agent: str) -> None:
    log, summary = run(failing(agent, "nothing"))
    missing = "preflight_missing" if agent == "preflight" else "rating_missing"
    assert log.status == "complete" and log.of(missing)
    assert summary["cost_report"]["tokens"] == charged(log)


@pytest.mark.parametrize("agent", ["preflight", "planner", "critic", "self_eval"])
@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"a": 1'])
def test_malformed_answers_are_paid_and_change_little(agent: str, text: str) -> None:
    log, summary = run(changed(lambda _, good: dataclasses.replace(good, content=text), agent))
    assert log.status == "complete"
    assert summary["cost_report"]["tokens"] == charged(log)
    assert summary["output"].startswith("## One")
    assert log.of("malformed")[0]["agent"] == agent
    if agent == "self_eval":  # the other proxies count alone
        assert [step["quality_score"] for step in log.of("agent_step")[:2]] == [75.0, 50.0]


def test_a_model_that_ignores_its_limit_is_charged_and_not_called_again() -> None:
    model = changed(lambda _, good: dataclasses.replace(good, output_tokens=30_000), "executor")
    log, summary = run(model)
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

    def long(request: LLMRequest, good: LLMResponse) -> LLMResponse:
        return LLMResponse(good.content, 2 * request.prompt_tokens_estimate, request.max_tokens)

    model = changed(long)
    log, summary = run(model, strategy="spend_all", budget=6_000)
    last = model.requests[-2:]
    assert summary["cost_report"]["overshoot"] <= sum(r.prompt_tokens_estimate for r in last)
    assert log.status == "complete"
