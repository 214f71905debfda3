"""The application plays what the environment plays: same decisions, tokens, scores and events."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.teams.token_budget.order import Order
from tests.teams.token_budget.runs import run

STRATEGIES = [
    "frontload",
    "critique_heavy",
    "adaptive",
    "adaptive_roi_strict",
    "spend_all",
    "random",
]


def in_environment(strategy: str, seed: int, **arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    """Events and last info of the policy of a strategy."""
    policy = Order(task="Write.", strategy=strategy).policy()
    mode = getattr(policy, "strategy", "adaptive")
    env: Any = gym.make("InfraMind-TokenBudget-v0", strategy=mode, **arguments).unwrapped
    observation, info = env.reset(seed=seed)
    policy.reset(env.team_spec(), [seed])
    events, over = [], False
    while not over:
        action = policy.act_batch(observation[None], env.context(), np.zeros(1, np.int64))
        observation, _, terminated, truncated, info = env.step(action[0])
        over = terminated or truncated
        if info["event"]:
            events.append(info["event"]["data"])
    return events, info


def bare(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in data.items() if k not in ("run_id", "output_preview")} for data in events
    ]


@pytest.mark.parametrize("budget", [1000, 3500, 20_000])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_application_and_environment_play_the_same_run(strategy: str, budget: int) -> None:
    for seed in range(4):
        events, info = in_environment(strategy, seed, budget=budget)
        orchestrator, log, summary = run(strategy=strategy, budget=budget, seed=seed)
        assert bare(log.of("agent_step")) == bare(events)
        assert not log.of("malformed") + log.of("rating_missing") + log.of("llm_refused")
        report = summary["cost_report"]
        assert report["tokens"] == info["tokens"]
        assert report["overhead_tokens"] == info["overhead_tokens"]
        assert report["overshoot"] == info["overshoot"]
        assert summary["true_quality"] == info["quality"]
        assert summary["quality"] == info["reported_quality"]
        assert summary["ended_by"] == info["cutoff_reason"]
        assert orchestrator.budget.reserved == orchestrator.budget.held == 0


def test_a_narrowed_task_is_the_same_one() -> None:
    narrowed = 0
    for seed in range(6):
        events, info = in_environment("adaptive", seed, budget=5000, scope_down=True)
        _, log, summary = run(budget=5000, seed=seed, scope_down=True)
        assert bare(log.of("agent_step")) == bare(events)
        assert summary["true_quality"] == info["quality"]
        narrowed += log.of("preflight")[0].get("narrowed", False)
    assert 0 < narrowed < 6


def test_the_worked_example_is_played_to_the_token() -> None:
    _, log, summary = run(profile="seed-example")
    events, _ = in_environment("adaptive", 0, profile="seed-example")
    assert bare(log.of("agent_step")) == bare(events)
    assert summary["quality"] == 92.0
    report = summary["cost_report"]
    assert (report["tokens"], report["unspent"], report["cut"]) == (12_500, 7_500, ["critic"])
    assert report["by_agent"] == {"planner": 2100, "executor": 8100, "critic": 2300}
    steps = log.of("agent_step")
    assert [s["tokens_used"] for s in steps] == [2100, 3400, 1200, 2800, 1100, 0, 1900, 0]
    assert [s["status"] for s in steps] == [*["running"] * 5, "cutoff", "running", "complete"]
    assert round(steps[0]["roi"], 4) == 0.0295
    assert steps[0]["tokens_remaining"] == 17_900
    assert round(steps[5]["roi"], 4) == 0.0018
    allocation = log.of("allocation")[0]
    assert (allocation["planner"], allocation["executor"], allocation["critic"]) == (
        6000,
        8000,
        6000,
    )
    # After the revision the critic has the higher ROI: it gets what both others have not spent.
    assert log.of("reallocation") == [
        {"to": "critic", "planner": 0, "executor": 0, "critic": 3900 + 1800 + 4800}
    ]
    _, _, strict = run(profile="seed-example", strategy="adaptive_roi_strict")
    assert (strict["quality"], strict["cost_report"]["tokens"]) == (78.0, 5_500)
