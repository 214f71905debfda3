"""Production: greedy routing, rate limit, online learning in its three variants."""

from __future__ import annotations

from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.coordinator import LeastBusy
from inframind_gym.teams.assignment.judge import LLMJudge
from inframind_gym.teams.assignment.model import all_agents
from inframind_gym.teams.assignment.names import Variant
from inframind_gym.teams.assignment.states import PRODUCTION
from inframind_gym.teams.assignment.system import ProductionMultiAgentSystem
from inframind_gym.teams.assignment.tracker import LoadTracker
from inframind_gym.teams.assignment.training import Options, make_run
from tests.teams.assignment.scripted import GOOD, learner, service_of
from tests.teams.assignment.test_training import Notes
from tests.teams.ceiling import TokenCeiling


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def system_of(
    say: Any = lambda request: GOOD,
    learned: float = 0.0,
    guard: TokenCeiling | None = None,
    **arguments: Any,
) -> ProductionMultiAgentSystem:
    """A system whose coordinator prefers the coder on OpenAI for coding."""
    service, _ = service_of(say, guard)
    coordinator = learner(epsilon=0.4)
    for row in coordinator.q_table.values():
        row[:] = learned
    coordinator.q_table["coding", "balanced"][2] = learned + 0.5
    parts = (coordinator, service, LLMJudge(service), all_agents(), LoadTracker())
    return ProductionMultiAgentSystem(*parts, **arguments)


def test_a_request_is_answered() -> None:
    notes = Notes()
    system = system_of(log=notes)
    result = system.process("Write a sort.", "coding")
    assert system.coordinator.epsilon == 0.0
    assert (result["agent"], result["provider"], result["response"]) == ("coder", "openai", GOOD)
    cost_usd = (100 * 0.15 + 50 * 0.60) / 1e6
    raw = 0.75 - 0.10 * cost_usd / 0.002 - 0.05 * 1.0 / 5.0
    assert result["raw_reward"] == result["reward"] == pytest.approx(raw)
    assert (result["load_state"], result["load_penalty"]) == ("balanced", 0.0)
    assert result["scores"]["relevance"] == 0.9
    assert system.request_log == [result]
    assert system.agents["coder"].completed_tasks == 1
    assert list(system.load_tracker.recent) == ["coder"]
    states = [event["state"] for event in notes.of("state")]
    assert states == [
        *("Ready", "RateLimitCheck", "LoadAwareRouting", "Executing", "Judging", "Scoring"),
        *("LoadPenaltyCalc", "OnlineLearning", "Logging", "Ready"),
    ]
    assert set(states) <= set(PRODUCTION)
    second = system.process("Write a sort.", "coding")  # the window holds one task: the coder's
    assert second["load_penalty"] == pytest.approx(0.2)
    assert second["reward"] == pytest.approx(raw - 0.2)


def test_a_hot_agent_loses_its_tasks_to_another_row() -> None:
    system = system_of()
    for load_state in ("coder_hot",):
        system.coordinator.q_table["coding", load_state][0] = 0.4  # type: ignore[attr-defined]
    agents = [system.process("Write a sort.", "coding")["agent"] for _ in range(4)]
    assert agents == ["coder", "coder", "coder", "analyst"]
    assert system.health()["current_load_state"] == "coder_hot"


def test_requests_beyond_the_limit_are_refused_until_the_minute_is_over() -> None:
    clock = Clock()
    system = system_of(max_rpm=3, clock=clock)
    for second in range(3):
        clock.now_s = float(second)
        assert "error" not in system.process("x", "coding")
    clock.now_s = 59.9
    assert system.process("x", "coding") == {"error": "Rate limit exceeded"}
    assert system.health()["status"] == "rate limited"
    assert system.llm_service.call_count == 6  # the refused request called nobody
    clock.now_s = 60.0  # the first request has left the window
    assert "error" not in system.process("x", "coding")
    assert system.process("x", "coding") == {"error": "Rate limit exceeded"}
    health = system.health()
    assert (health["requests"], health["rejected"], health["requests_last_minute"]) == (4, 2, 3)


def test_health() -> None:
    system = system_of()
    assert system.health()["mean_reward"] is None
    for _ in range(3):
        system.process("x", "coding")
    health = system.health()
    assert health["status"] == "ok"
    assert health["current_load_state"] == "coder_hot"
    assert health["agent_utilization"]["coder"] == 1.0
    assert health["imbalance_score"] == pytest.approx(3**0.5)
    assert health["agents"]["coder"]["completed_tasks"] == 3
    assert (health["llm_calls"], health["total_cost_usd"]) == (6, system.llm_service.total_cost)


def learned_cell(variant: Variant, learned: float, **arguments: Any) -> float:
    system = system_of(learned=learned, variant=variant, **arguments)
    system.process("x", "coding")
    cell = system.coordinator.q_table["coding", "balanced"][2]  # type: ignore[attr-defined]
    return float(cell)


def test_variants_of_online_learning() -> None:
    """A table of values near 13, as a discount of 0.95 makes them."""
    before, reward = 13.5, 0.73775
    assert learned_cell("source", 13.0) == pytest.approx(before + 0.15 * (reward - before))
    kept = learned_cell("bootstrap", 13.0)
    next_values = [13.0, before]  # of the sampled type
    assert any(
        kept == pytest.approx(before + 0.15 * (reward + 0.95 * q - before)) for q in next_values
    )
    assert kept > 13.0 > learned_cell("source", 13.0)
    assert learned_cell("source", 13.0, online_learning=False) == before


def test_the_source_unlearns_and_the_bandit_does_not() -> None:
    def change(variant: Variant) -> float:
        run = make_run(Options(variant=variant, iterations=200))
        run.train()
        table = run.router.q_table  # type: ignore[attr-defined]
        before = {state: row.copy() for state, row in table.items()}
        system = run.production()
        system.max_rpm = 10**6
        for number in range(40):
            system.process("x", rules.TASK_TYPES[number % 4])
        learned = [state for state in table if before[state].max() > 0.0]
        return float(
            min((table[state] - before[state]).min() / before[state].max() for state in learned)
        )

    changes = change("source"), change("bandit")
    assert changes[0] < -0.5 < changes[1]  # cells lose most of their value, or little


def test_a_call_that_fails_is_told_and_changes_nothing() -> None:
    system = system_of(say=lambda request: None)
    result = system.process("x", "coding")
    assert "http_400" in result["error"]
    assert system.machine.state == "Ready"
    assert not system.load_tracker.recent
    assert system.health()["failed"] == 1


def test_a_spent_budget_fails_a_request_and_not_the_next_one() -> None:
    """The judge's call is refused after an answer that was paid for."""
    notes = Notes()
    guard = TokenCeiling(10_000, refuses="judge")
    system = system_of(guard=guard, log=notes)
    for number in (1, 2):
        result = system.process("Write a sort.", "coding")
        assert "refused" in result["error"]
        assert (result["response"], result["agent"]) == (GOOD, "coder")
        assert (system.health()["failed"], system.health()["requests"]) == (number, 0)
        assert system.machine.state == "Ready"
    assert [event["response"] for event in notes.of("request_failed")] == [GOOD, GOOD]
    guard.refuses = ""
    assert "error" not in system.process("Write a sort.", "coding")


def test_an_unforeseen_error_leaves_the_system_ready() -> None:
    system = system_of(say=lambda request: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            system.process("x", "coding")
    assert (system.machine.state, system.health()["failed"]) == ("Ready", 2)


@pytest.mark.parametrize("say", [lambda request: GOOD, lambda request: None])
def test_calls_in_flight_end_without_learning_and_in_failure(say: Any) -> None:
    service, _ = service_of(say)
    router = LeastBusy()
    parts = (router, service, LLMJudge(service), all_agents(), LoadTracker())
    system = ProductionMultiAgentSystem(*parts, online_learning=False)
    for _ in range(3):
        system.process("x", "coding")
    assert router.in_flight == [0] * 8


def test_a_judge_that_fails_scores_one_half() -> None:
    system = system_of(say=lambda request: "ok" if request.response_format is None else None)
    assert system.process("x", "coding")["scores"]["accuracy"] == 0.5


def test_wrong_arguments() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'coding'"):
        system_of().process("x", "codin")
    with pytest.raises(ConfigError, match="max_rpm is 0"):
        system_of(max_rpm=0)
    with pytest.raises(ConfigError, match="Did you mean 'bandit'"):
        system_of(variant="bandits")
