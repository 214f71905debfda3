"""The Lagrangian wrapper: λ by hand, penalised rewards, untouched statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.vec_env import VecEnv

from baselines.hyperparameters import LagrangianSettings, load_hyperparameters
from baselines.lagrangian import LagrangianVecEnv
from baselines.sb3 import make_training_env
from inframind_gym.errors import ConfigError

SETTINGS = LagrangianSettings(
    start=0.5,
    learning_rate=0.1,
    largest=0.7,
    cost_limit=1.0,
    every_episodes=2,
    largest_step_cost=3.0,
)


class ScriptedVecEnv(VecEnv):
    """Two rows that read rewards, costs and ends of episodes from a script."""

    def __init__(self, script: Sequence[tuple[list[float], list[Any], list[bool]]]) -> None:
        space = spaces.Box(0.0, 1.0, (1,), np.float32)
        super().__init__(2, space, spaces.Discrete(2))
        self.script = iter(script)

    def reset(self):
        return np.zeros((2, 1), np.float32)

    def step_async(self, actions):
        pass

    def step_wait(self):
        rewards, costs, dones = next(self.script)
        infos = [{} if cost is None else {"cost": cost} for cost in costs]
        observations = np.zeros((2, 1), np.float32)
        return observations, np.array(rewards, np.float32), np.array(dones), infos

    def close(self):
        pass

    def get_attr(self, attr_name, indices=None):
        if attr_name == "render_mode":
            return [None, None]
        raise AttributeError(attr_name)

    def set_attr(self, attr_name, value, indices=None):
        raise AttributeError(attr_name)

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False, False]


def play(script, settings: LagrangianSettings = SETTINGS):
    envs = LagrangianVecEnv(ScriptedVecEnv(script), settings)
    envs.reset()
    steps = []
    for _ in script:
        _, rewards, _, infos = envs.step(np.zeros(2, np.int64))
        steps.append((rewards.tolist(), envs.multiplier, infos))
    return envs, steps


def test_the_dual_update_by_hand() -> None:
    envs, steps = play(
        [
            ([0.0, 0.0], [0.5, 0.25], [False, False]),
            ([1.0, 0.0], [1.5, 0.25], [True, False]),  # an episode of cost 2
            ([0.0, 1.0], [0.0, 0.5], [False, True]),  # one of cost 1: mean 1.5
            ([1.0, 1.0], [0.2, 0.4], [True, True]),  # 0.2 and 0.4: mean 0.3
            ([0.0, 0.0], [0.0, 0.0], [False, False]),
        ]
    )
    # Penalties use λ from before the step: 0.5 until the first update, 0.5 + 0.1 · 0.5 after it.
    assert steps[0][0] == pytest.approx([-0.25, -0.125])
    assert steps[1][0] == pytest.approx([1.0 - 0.75, -0.125])
    assert steps[1][1] == 0.5, "one episode is no batch of two"
    assert steps[2][1] == pytest.approx(0.55)
    assert steps[3][0] == pytest.approx([1.0 - 0.55 * 0.2, 1.0 - 0.55 * 0.4])
    assert steps[4][1] == pytest.approx(0.55 - 0.1 * 0.7)
    assert envs.updates == 2
    assert list(envs.cost_queue) == pytest.approx([2.0, 1.0, 0.2, 0.4])
    assert [info["reward"] for info in steps[3][2]] == [1.0, 1.0]


def test_lambda_stays_within_its_bounds() -> None:
    dear = [([0.0, 0.0], [50.0, 50.0], [True, True])] * 3
    envs, steps = play(dear)
    assert envs.multiplier == 0.7
    assert steps[0][0] == pytest.approx([-1.5, -1.5]), "a step is charged 3 at most"
    assert list(envs.cost_queue) == [50.0] * 6, "the dual update sees all of it"
    free = [([0.0, 0.0], [0.0, 0.0], [True, True])] * 9
    assert play(free)[0].multiplier == 0.0
    above = SETTINGS.model_copy(update={"start": 5.0})
    assert LagrangianVecEnv(ScriptedVecEnv([]), above).multiplier == 0.7


def test_a_reset_ends_episodes_without_counting_them() -> None:
    script = [([0.0, 0.0], [9.0, 9.0], [False, False]), ([0.0, 0.0], [0.5, 0.1], [True, True])]
    envs = LagrangianVecEnv(ScriptedVecEnv(script), SETTINGS)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    assert list(envs.cost_queue) == [0.5, 0.1]


def test_an_environment_without_costs_is_refused() -> None:
    envs = LagrangianVecEnv(ScriptedVecEnv([([0.0, 0.0], [0.1, None], [False, False])]), SETTINGS)
    envs.reset()
    with pytest.raises(ConfigError, match="info has no 'cost'"):
        envs.step(np.zeros(2, np.int64))


def test_statistics_of_episodes_are_those_of_the_task() -> None:
    """On the training environment: "r" without penalty, "c" the costs, and rewards with it."""
    settings = load_hyperparameters().sb3_environment.model_copy(update={"rows_per_rate": 1})
    fixed = SETTINGS.model_copy(update={"learning_rate": 0.0})
    envs = LagrangianVecEnv(make_training_env(settings, num_queries=12), fixed)
    envs.seed(3)
    envs.reset()
    returns, costs, episodes = np.zeros(6), np.zeros(6), 0
    rng = np.random.default_rng(0)
    for _ in range(60):
        _, rewards, dones, infos = envs.step(rng.integers(0, 15, 6))
        step_costs = np.array([info["cost"] for info in infos])
        plain = np.array([info["reward"] for info in infos])
        np.testing.assert_allclose(
            rewards, plain - 0.5 * np.minimum(step_costs, 3.0), rtol=1e-6, atol=1e-6
        )
        returns, costs = returns + plain, costs + step_costs
        for row in np.flatnonzero(dones):
            assert infos[row]["episode"]["r"] == returns[row]
            assert infos[row]["episode"]["c"] == pytest.approx(costs[row])
            assert envs.cost_queue[-int(dones[row:].sum())] == pytest.approx(costs[row])
            episodes += 1
        returns[dones] = costs[dones] = 0.0
    assert episodes > 10
    assert {context["budget_s"] for context in envs.env_method("context")} <= {
        10.0, 30.0, 50.0, 100.0, 200.0, 300.0, 600.0, 1000.0
    }  # fmt: skip


def test_every_row_keeps_its_arrival_rate() -> None:
    settings = load_hyperparameters().sb3_environment.model_copy(
        update={"rates_per_min": (10.0, 200.0), "rows_per_rate": 3}
    )
    envs = make_training_env(settings, num_queries=60)
    envs.seed(0)
    envs.reset()
    arrivals_s = envs.batch.simulation.state.arrival_s[:, -1]
    assert (arrivals_s[0::2] > 5.0 * arrivals_s[1::2]).all()
