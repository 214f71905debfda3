"""The contract of InfraMind-TokenBudget-v0 with Gymnasium and its users."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.errors import ActionError
from inframind_gym.teams.token_budget.rules import CUT, REALLOCATE, STOP

ID = "InfraMind-TokenBudget-v0"


def test_an_action_that_is_not_open_does_nothing_and_takes_a_step() -> None:
    env: Any = gym.make(ID, max_steps=3).unwrapped
    env.reset(seed=0)
    before = env.simulation.state.left.copy()
    for step in range(3):
        _, reward, terminated, truncated, info = env.step(6)  # a review without a draft
        assert (reward, info["cost"]) == (0.0, 0.0)
        if step == 2:  # the end of a run is an event in any case
            assert info["event"]["data"]["status"] == "complete"
            assert info["event"]["data"]["tokens_used"] == 0
        else:
            assert info["event"] == {}
        assert (terminated, truncated) == (False, step == 2)
        assert info["cutoff_reason"] == ("steps" if step == 2 else "refused")
    assert np.array_equal(env.simulation.state.left, before)


def test_ends_and_their_reasons() -> None:
    env: Any = gym.make(ID, render_mode="ansi").unwrapped
    for actions, reason in (([STOP], "stop"), ([CUT + 1, CUT + 2, CUT], "all_cut")):
        env.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, info = env.step(action)
        assert (terminated, truncated, info["cutoff_reason"]) == (True, False, reason)
        with pytest.raises(gym.error.ResetNeeded):
            env.step(STOP)
    assert " / 20,000 tokens, " in env.render()
    small: Any = gym.make(ID, budget=1000).unwrapped
    small.reset(seed=0)
    small.step(REALLOCATE + 1)
    *_, terminated, _, info = small.step(5)
    assert (terminated, info["cutoff_reason"], info["drained"]) == (True, "budget", 1)


@pytest.mark.parametrize("budget", [500, 900, 1700, 20_000])
def test_the_ceiling_is_exceeded_by_errors_of_prompts_alone(budget: int) -> None:
    """A prompt is up to a tenth (and a unit) longer than its estimate."""
    batch: Any = gym.make_vec(ID, num_envs=256, budget=budget)
    batch.reset(seed=0)
    rng, over_by = np.random.default_rng(0), []
    for _ in range(40):
        likely = batch.action_masks() * rng.random((256, 16))
        likely[:, CUT:REALLOCATE] *= 0.1
        likely[:, STOP] *= 0.01
        ended = batch.step(likely.argmax(axis=1))[4].get("final_info")
        over_by += [] if ended is None else ended["overshoot"][ended["_overshoot"]].tolist()
    assert len(over_by) > 100
    assert max(over_by) <= 150 + 50


def test_a_budget_below_the_minimum_is_said() -> None:
    warned = 0
    for seed in range(20):
        env: Any = gym.make(ID, budget=5000).unwrapped
        _, info = env.reset(seed=seed)
        least = (3000, 8000, 16_000)[int(env.simulation.state.seen[0])]
        assert info.get("suggested_minimum") == (least if least > 5000 else None)
        assert ("warning" in info) == (least > 5000)
        warned += "warning" in info
    assert 0 < warned < 20


def test_the_preflight_is_paid_and_the_observation_holds_no_truth() -> None:
    env: Any = gym.make(ID).unwrapped
    observation, _ = env.reset(seed=5)
    assert env.simulation.state.remaining[0] == 19_800
    task = env.simulation.task
    task.complexity[0] = 2 - task.complexity[0]
    task.hidden[0] = 3
    from inframind_gym.envs.token_budget import observe

    assert np.array_equal(observe(env.simulation.state, np.zeros(1, np.int64))[0], observation)
    assert env.context().truth is None


def test_continuous_actions_share_out_and_stop() -> None:
    env: Any = gym.make(ID, action="continuous").unwrapped
    env.reset(seed=0)
    agents = []
    for _ in range(4):
        *_, info = env.step([0.0, 0.5, 0.2, -1.0])
        agents.append(info["event"]["data"]["agent"])
        ledger = env.simulation.state
        assert ledger.left[0].sum() <= ledger.budget[0] - ledger.used[0].sum()
    assert agents == ["planner", "executor", "critic", "executor"]
    *_, terminated, _, info = env.step(np.array([0.0, 0.0, 0.0, 0.6]))
    assert terminated
    assert info["cutoff_reason"] == "stop"


@pytest.mark.parametrize("shape", [(4, 2), (8,), (2, 3), (2, 2, 2)])
def test_continuous_actions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    env: Any = gym.make_vec(ID, num_envs=2, action="continuous")
    env.reset(seed=0)
    with pytest.raises(ActionError, match="2 of 4 finite numbers"):
        env.step(np.zeros(shape))
