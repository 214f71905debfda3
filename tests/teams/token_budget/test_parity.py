"""The application plays what the environment plays: same decisions, tokens, scores and events."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.teams.token_budget.app import Order
from tests.teams.token_budget.runs import run

STRATEGIES = (
    *("frontload", "critique_heavy", "adaptive", "adaptive_roi_strict", "spend_all", "random"),
)


def compare(strategy: str = "adaptive", seed: int = 0, **arguments: Any) -> tuple[Any, Any]:
    """Play a strategy through both and compare them; return the log and summary of the run."""
    policy = Order(task="Write.", strategy=strategy).policy()
    mode = getattr(policy, "strategy", "adaptive")
    env: Any = gym.make("InfraMind-TokenBudget-v0", strategy=mode, **arguments).unwrapped
    observation, info = env.reset(seed=seed)
    policy.reset(env.policy_spec(), [seed])
    events, over = [], False
    while not over:
        action = policy.act_batch(observation[None], env.context(), np.zeros(1, np.int64))
        observation, _, terminated, truncated, info = env.step(action[0])
        over = terminated or truncated
        events += [info["event"]["data"]] if info["event"] else []
    _, log, summary = run(strategy=strategy, seed=seed, **arguments)
    for data in (*events, *log.of("agent_step")):
        assert data.pop("run_id") and data.pop("output_preview")
    assert log.of("agent_step") == events
    report = summary["cost_report"]
    for key in ("tokens", "overhead_tokens", "overshoot"):
        assert report[key] == info[key], key
    assert summary["quality"] == info["reported_quality"]
    assert summary.get("true_quality", info["quality"]) == info["quality"]
    assert summary["ended_by"] == info["cutoff_reason"]
    return log, summary


@pytest.mark.parametrize("budget", [1000, 3500, 20_000])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_application_and_environment_play_the_same_run(strategy: str, budget: int) -> None:
    for seed in range(4):
        log, _ = compare(strategy, seed, budget=budget)
        assert not log.of("malformed") + log.of("rating_missing") + log.of("llm_refused")


def test_a_narrowed_task_is_the_same_one() -> None:
    logs = [compare(seed=seed, budget=5000, scope_down=True)[0] for seed in range(6)]
    assert 0 < sum(log.of("preflight")[0].get("narrowed", False) for log in logs) < 6


def test_the_worked_example_is_played_to_the_token() -> None:
    log, summary = compare(profile="seed-example")
    report, steps = summary["cost_report"], log.of("agent_step")
    assert summary["quality"] == 92.0
    assert (report["tokens"], report["unspent"], report["cut"]) == (12_500, 7_500, ["critic"])
    assert report["by_agent"] == {"planner": 2100, "executor": 8100, "critic": 2300}
    assert [s["tokens_used"] for s in steps] == [2100, 3400, 1200, 2800, 1100, 0, 1900, 0]
    assert [s["status"] for s in steps] == [*["running"] * 5, "cutoff", "running", "complete"]
    assert (round(steps[0]["roi"], 4), round(steps[5]["roi"], 4)) == (0.0295, 0.0018)
    assert steps[0]["tokens_remaining"] == 17_900
    shares = {"planner": 6000, "executor": 8000, "critic": 6000}
    assert log.of("allocation") == [{"strategy": "adaptive", **shares}]
    # After the revision the critic has the higher ROI: it gets what both others have not spent.
    moved = {"planner": 0, "executor": 0, "critic": 3900 + 1800 + 4800}
    assert log.of("reallocation") == [{"to": "critic", **moved}]
    _, strict = compare("adaptive_roi_strict", profile="seed-example")
    assert (strict["quality"], strict["cost_report"]["tokens"]) == (78.0, 5_500)
