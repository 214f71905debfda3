"""The application plays what the environment plays: same decisions, tokens, scores and events."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.envs.token_budget import TokenBudgetSpec, observe
from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.app import policy_of
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, PLANNER, Evidence, TeamState
from inframind_gym.teams.token_budget.settings import STRATEGIES, ProxyWeights, load_settings
from tests.teams.token_budget.runs import run

ROW = np.zeros(1, np.int64)
PLAYED = (
    *("frontload", "critique_heavy", "adaptive", "adaptive_roi_strict", "spend_all", "random"),
)


def compare(strategy: str = "adaptive", seed: int = 0, **arguments: Any) -> tuple[Any, Any]:
    """Play a strategy through both and compare them; return the log and summary of the run."""
    policy = policy_of(strategy)
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
    log, summary = run(strategy=strategy, seed=seed, **arguments)
    for data in (*events, *log.of("agent_step")):
        assert data.pop("run_id") and data.pop("output_preview")
    assert log.of("agent_step") == events
    report = summary["cost_report"]
    for key in ("tokens", "overhead_tokens", "overshoot"):
        assert report[key] == info[key], key
    assert summary["quality"] == info["reported_quality"]
    assert summary["true_quality"] == info["quality"]
    assert summary["ended_by"] == info["cutoff_reason"]
    return log, summary


@pytest.mark.parametrize("budget", [1000, 3500, 20_000])
@pytest.mark.parametrize("strategy", PLAYED)
def test_application_and_environment_play_the_same_run(strategy: str, budget: int) -> None:
    for seed in range(4):
        log, _ = compare(strategy, seed, budget=budget)
        assert not log.of("malformed") + log.of("rating_missing") + log.of("llm_refused")


# The worked example of the design: tokens of a call, quality after it, points that a critic claims.
CALLS = {
    PLANNER: [(2100, 62, 0)],
    EXECUTOR: [(3400, 78, 0), (2800, 88, 0), (1900, 92, 0)],
    CRITIC: [(1200, 78, 8), (1100, 90, 2)],
}


def worked_example(strategy: str) -> tuple[TeamState, list[dict[str, Any]]]:
    """Play the example by the rules; returns the state at its end, and the events."""
    settings = load_settings()
    state = TeamState(settings, 1, 0, 20)
    state.max_tokens[:] = 3400
    state.weights = ProxyWeights(self_eval=1.0, flags=0.0, checklist=0.0)
    state.begin(ROW, 20_000, STRATEGIES.index("adaptive"), np.array([1]), 0)
    policy = policy_of(strategy)
    policy.reset(TokenBudgetSpec(settings, 0.001, 20_000, 20, 0), [0])
    calls, score, flagged, events = {k: iter(v) for k, v in CALLS.items()}, 0, 0, []
    state.look(ROW, np.zeros((1, 3), np.int64), np.array([False]))
    while not state.over[0]:
        action = policy.act_batch(observe(state, ROW), state.rows(ROW), ROW)
        calling, agents, *_ = state.decide(ROW, action)
        if len(calling):
            tokens, quality, claimed = next(calls[int(agents[0])])
            score, resolved = max(score, quality), flagged * int(agents[0] == EXECUTOR)
            flagged += int(claimed > 0) - resolved
            facts = score, np.nan, int(claimed > 0), resolved, claimed
            rules.spend(state, ROW, agents, np.array([tokens]))
            evidence = Evidence(*(np.array([fact]) for fact in facts))
            state.take(ROW, agents, np.array([tokens]), evidence)
        state.look(ROW, np.zeros((1, 3), np.int64), np.array([state.calls[0, EXECUTOR] > 0]))
        event = state.event(0, int(action[0]), "run", "")
        events += [event["data"]] if event else []
    return state, events


def test_the_worked_example_is_played_to_the_token() -> None:
    state, steps = worked_example("adaptive")
    assert (state.score[0], state.remaining[0]) == (92.0, 7_500)
    assert state.used[0].tolist() == [2100, 8100, 2300]
    assert state.cut[0].tolist() == [False, False, True]
    assert [s["tokens_used"] for s in steps] == [2100, 3400, 1200, 2800, 1100, 0, 1900, 0]
    assert [s["status"] for s in steps] == [*["running"] * 5, "cutoff", "running", "complete"]
    assert (round(steps[0]["roi"], 4), round(steps[5]["roi"], 4)) == (0.0295, 0.0018)
    assert steps[0]["tokens_remaining"] == 17_900
    strict, _ = worked_example("adaptive_roi_strict")
    assert (strict.score[0], strict.spent[0]) == (78.0, 5_500)
