"""The application: judge, training, production; and that it is the environment's team."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401 (registers the environments)
from inframind_gym.errors import ConfigError
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.agents import (
    JUDGE_SYSTEM,
    LLMJudge,
    LoadTracker,
    QLearningCoordinator,
    all_agents,
    uniform,
)
from inframind_gym.teams.assignment.app import (
    STREAM_NEXT_TYPE,
    Options,
    ProductionMultiAgentSystem,
    Training,
    make_run,
)
from inframind_gym.teams.assignment.rules import ARRIVALS, TASK_TYPES, Arrivals
from inframind_gym.teams.llm import BudgetError, LLMError, LLMRequest, LLMResponse, LLMService
from inframind_gym.teams.state import key_of
from tests.teams.token_budget.runs import Log, Model

pytest.importorskip("langgraph")
GOOD = '{"relevance": 0.9, "accuracy": 0.8, "completeness": 0.7, "agent_match": 0.6}'


def service_of(say: Callable[[LLMRequest], str | None]) -> tuple[LLMService, Model]:
    """A service whose two providers say what a function returns; None is a call that fails."""

    def answer(request: LLMRequest) -> LLMResponse:
        content = say(request)
        if content is None:
            raise LLMError("http_400", "no")
        return LLMResponse(content, 100, 50, latency_s=1.0)

    provider = Model(answer)
    provider.model = "gpt-4o-mini"
    return LLMService({"openai": provider, "anthropic": provider}), provider


def trained(log: Log | None = None, **options: Any) -> Training:
    run = make_run(Options(**options), log=log)
    run.train()
    return run


# The judge


@pytest.mark.parametrize(
    ("content", "how"),
    [
        (GOOD, "json"),
        (f"```json\n{GOOD}\n```", "json"),
        (f"Here you are:\n```\n{GOOD}\n```\nDone.", "json"),
        ("", "default"),
        ("I give it 8 of 10.", "default"),
        (GOOD[:-5], "default"),
        ("[0.9, 0.8]", "default"),
        (GOOD.replace("0.9", "9"), "default"),
        (GOOD.replace("0.9", "NaN"), "default"),
        (GOOD.replace('"relevance": 0.9, ', ""), "default"),
        ("{" * 100_000, "default"),
        (None, "failed"),  # the call fails for good
    ],
)
def test_the_judge_reads_what_it_can(content: str | None, how: str) -> None:
    service, provider = service_of(lambda request: content)
    judge = LLMJudge(service)
    scores = judge.evaluate("Add.", "coding", "coder", "x" * 1999 + "yyyy")
    values = [getattr(scores, criterion) for criterion in rules.CRITERIA]
    assert values == ([0.9, 0.8, 0.7, 0.6] if how == "json" else [0.5] * 4)
    assert judge.log[0]["read"] == how
    assert provider.requests[0].system == JUDGE_SYSTEM
    assert provider.requests[0].user.endswith("x" * 1999 + "y")  # 2,000 characters are judged


# Training


def test_fifty_tasks_are_a_hundred_calls() -> None:
    log = Log()
    run = trained(log, iterations=50)
    assert run.final is not None and run.final["iteration"] == 50
    assert len(log.of("llm_attempt")) == run.llm_service.call_count == 100
    assert run.llm_service.get_cost_summary()["by_agent"]["judge"]["calls"] == 50
    summary = run.summary()
    assert summary["final_epsilon"] == pytest.approx(0.98**50)
    assert summary["mean_adjusted_reward"] == pytest.approx(sum(run.final["rewards_log"]) / 50)
    assert summary["cost_usd"] == pytest.approx(run.llm_service.total_cost)
    assert sum(summary["assignments"].values()) == 50
    around = [
        *("PickingTask", "QueryingLoad", "AssigningAgent", "ExecutingLLM", "JudgingOutput"),
        *("ComputingPenalty", "RecordingLoad", "UpdatingRL", "CheckingDone"),
    ]
    states = [event["state"] for event in log.of("state")]
    assert states == ["Setup", "Initialized", "GraphCompiled", *around * 50]


def rows_of_the_environment(arrivals: Arrivals, tasks: int, seed: int) -> list[dict[str, Any]]:
    """Play a learner through the environment; a row a task, as the application logs it."""
    env = gym.make(
        "InfraMind-Assignment-v0", arrivals=arrivals, observation="tabular", num_tasks=tasks
    )
    coordinator, key = QLearningCoordinator(seed=seed), key_of(seed)
    rows, over = [], False
    state, info = env.reset(seed=seed)
    while not over:
        task_type, load_state = TASK_TYPES[int(state) // 5], rules.LOAD_STATES[int(state) % 5]
        action, assignment = coordinator.select_action(task_type, load_state)
        state, reward, _, over, info = env.step(action)
        now = rules.LOAD_STATES[info["load_state"]]
        next_type = TASK_TYPES[int(uniform(key, STREAM_NEXT_TYPE, len(rows)) * 4)]
        coordinator.update(task_type, load_state, action, float(reward), next_type, now)
        coordinator.decay_epsilon()
        rows.append(
            {
                "key": assignment.key(),
                "load_state": load_state,
                "next_load_state": now,
                "adjusted_reward": float(reward),
                "raw_reward": info["raw_reward"],
                "load_penalty": info["load_penalty"],
                "cost_usd": info["cost"],
                "latency_s": info["latency_s"],
                "total_tokens": int(info["tokens"]),
                "utilization": dict(zip(rules.AGENTS, info["utilization"].tolist(), strict=True)),
                "imbalance": info["imbalance"],
                "epsilon": coordinator.epsilon,
                "q": float(coordinator.q_table[task_type, load_state][action]),
            }
        )
    env.close()
    return rows


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_the_application_is_the_environment(arrivals: Arrivals) -> None:
    log = Log()
    trained(log, iterations=60, seed=7, arrivals=arrivals)
    rows = rows_of_the_environment(arrivals, 60, 7)
    assert [{key: event[key] for key in rows[0]} for event in log.of("iteration")] == rows


# Production


def system_of(
    say: Any = lambda request: GOOD, learned: float = 0.0, online_learning: bool = True, **more: Any
) -> ProductionMultiAgentSystem:
    """A system whose coordinator prefers the coder on OpenAI for coding."""
    service, _ = service_of(say)
    coordinator = QLearningCoordinator(epsilon=0.4)
    for row in coordinator.q_table.values():
        row[:] = learned
    coordinator.q_table["coding", "balanced"][2] = learned + 0.5
    parts = (coordinator, service, LLMJudge(service), all_agents(), LoadTracker(), online_learning)
    return ProductionMultiAgentSystem(*parts, **more)


def test_a_request_is_answered() -> None:
    log = Log()
    system = system_of(log=log)
    result = system.process("Write a sort.", "coding")
    assert (result["agent"], result["provider"], result["response"]) == ("coder", "openai", GOOD)
    raw = 0.75 - 0.10 * ((100 * 0.15 + 50 * 0.60) / 1e6) / 0.002 - 0.05 * 1.0 / 5.0
    assert result["raw_reward"] == result["reward"] == pytest.approx(raw)
    assert (result["load_state"], result["load_penalty"]) == ("balanced", 0.0)
    assert (system.coordinator.epsilon, system.request_log) == (0.0, [result])
    assert [event["state"] for event in log.of("state")] == [
        *("Ready", "RateLimitCheck", "LoadAwareRouting", "Executing", "Judging", "Scoring"),
        *("LoadPenaltyCalc", "OnlineLearning", "Logging", "Ready"),
    ]
    second = system.process("Write a sort.", "coding")  # the window holds one task: the coder's
    assert second["reward"] == pytest.approx(raw - 0.2)


def test_a_hot_agent_loses_its_tasks_to_another_row() -> None:
    system = system_of()
    assert system.health()["mean_reward"] is None
    agents = [system.process("Write a sort.", "coding")["agent"] for _ in range(4)]
    assert agents == ["coder", "coder", "coder", "analyst"]
    health = system.health()
    assert (health["status"], health["current_load_state"]) == ("ok", "coder_hot")
    assert health["agent_utilization"]["coder"] == 0.75
    assert health["imbalance_score"] == pytest.approx(rules.imbalance(np.array([1, 3, 0, 0])))
    assert health["agents"]["coder"]["completed_tasks"] == 3
    assert (health["llm_calls"], health["total_cost_usd"]) == (8, system.llm_service.total_cost)


def test_requests_beyond_the_limit_are_refused_until_the_minute_is_over() -> None:
    now_s = [0.0]
    system = system_of(max_rpm=3)
    system.clock = lambda: now_s[0]  # type: ignore[method-assign]
    refused = {"error": "Rate limit exceeded"}
    for second, is_refused in ((0, False), (1, False), (2, False), (59.9, True), (60, False)):
        now_s[0] = float(second)
        assert (system.process("x", "coding") == refused) == is_refused
    health = system.health()
    assert health["status"] == "rate limited"
    assert health["llm_calls"] == 8  # a refused request calls no model
    assert (health["requests"], health["rejected"], health["requests_last_minute"]) == (4, 1, 3)


def test_online_learning_has_no_next_state() -> None:
    """A table of values near 13, as a discount of 0.95 makes them, is pulled down."""
    for learns, expected in ((True, 13.5 + 0.15 * (0.73775 - 13.5)), (False, 13.5)):
        system = system_of(learned=13.0, online_learning=learns)
        system.process("x", "coding")
        assert system.coordinator.q_table["coding", "balanced"][2] == pytest.approx(expected)


def test_a_failed_or_refused_call_fails_its_request_alone() -> None:
    """The judge's call is refused after an answer that was paid for."""
    log, refused = Log(), [JUDGE_SYSTEM]

    def say(request: LLMRequest) -> str:
        if request.system in refused:
            raise BudgetError("judge: refused")
        return GOOD

    system = system_of(say, log=log)
    result = system.process("Write a sort.", "coding")
    assert "refused" in result["error"] and result["response"] == GOOD
    assert (system.health()["failed"], system.health()["requests"], system.state) == (1, 0, "Ready")
    assert log.of("request_failed")[0]["response"] == GOOD
    refused.clear()
    assert "error" not in system.process("Write a sort.", "coding")
    assert "http_400" in system_of(say=lambda request: None).process("x", "coding")["error"]
    broken = system_of(say=lambda request: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        broken.process("x", "coding")
    assert (broken.state, broken.health()["failed"]) == ("Ready", 1)
    with pytest.raises(ConfigError, match="coding"):
        system.process("x", "codin")
