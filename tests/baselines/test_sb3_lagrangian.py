"""The Lagrangian wrapper: λ by hand, penalised rewards, untouched statistics."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

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


def scripted(script) -> Any:
    """Two rows that read rewards, costs and ends of episodes from a script."""
    space = spaces.Box(0.0, 1.0, (1,), np.float32)
    venv = Mock(num_envs=2, observation_space=space, action_space=spaces.Discrete(2))
    venv.get_attr.return_value = [None, None]  # render modes
    venv.step_wait.side_effect = [
        (
            np.zeros((2, 1), np.float32),
            np.array(rewards, np.float32),
            np.array(dones),
            [{} if cost is None else {"cost": cost} for cost in costs],
        )
        for rewards, costs, dones in script
    ]
    return venv


def play(script, settings: LagrangianSettings = SETTINGS):
    envs = LagrangianVecEnv(scripted(script), settings)
    envs.reset()
    steps = []
    for _ in script:
        _, rewards, _, infos = envs.step(np.zeros(2, np.int64))
        steps.append((rewards.tolist(), envs.multiplier.value, infos))
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
    assert envs.multiplier.value == 0.7
    assert steps[0][0] == pytest.approx([-1.5, -1.5]), "a step is charged 3 at most"
    assert list(envs.cost_queue) == [50.0] * 6, "the dual update sees all of it"
    free = [([0.0, 0.0], [0.0, 0.0], [True, True])] * 9
    assert play(free)[0].multiplier.value == 0.0
    above = SETTINGS.model_copy(update={"start": 5.0})
    assert LagrangianVecEnv(scripted([]), above).multiplier.value == 0.7


def test_a_reset_ends_episodes_without_counting_them() -> None:
    script = [([0.0, 0.0], [9.0, 9.0], [False, False]), ([0.0, 0.0], [0.5, 0.1], [True, True])]
    envs = LagrangianVecEnv(scripted(script), SETTINGS)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    assert list(envs.cost_queue) == [0.5, 0.1]


def test_an_environment_without_costs_is_refused() -> None:
    envs = LagrangianVecEnv(scripted([([0.0, 0.0], [0.1, None], [False, False])]), SETTINGS)
    envs.reset()
    with pytest.raises(ConfigError, match="info has no 'cost'"):
        envs.step(np.zeros(2, np.int64))


def test_budgets_of_the_training_environment_are_drawn_and_its_costs_charged() -> None:
    settings = load_hyperparameters().sb3_environment.model_copy(update={"rows_per_rate": 1})
    fixed = SETTINGS.model_copy(update={"learning_rate": 0.0})
    envs = LagrangianVecEnv(make_training_env(settings, num_queries=12), fixed)
    envs.seed(3)
    envs.reset()
    budgets_s = set()
    for _ in range(40):
        _, rewards, _, infos = envs.step(np.zeros(6, np.int64))
        paid = [info["reward"] - 0.5 * min(info["cost"], 3.0) for info in infos]
        assert rewards.tolist() == pytest.approx(paid, abs=1e-6)
        budgets_s |= {context["budget_s"] for context in envs.env_method("context")}
    assert len(envs.cost_queue) > 10
    assert len(budgets_s) > 3 and budgets_s <= {10, 30, 50, 100, 200, 300, 600, 1000}


def test_every_row_keeps_its_arrival_rate() -> None:
    settings = load_hyperparameters().sb3_environment.model_copy(
        update={"rates_per_min": (10.0, 200.0), "rows_per_rate": 3}
    )
    envs = make_training_env(settings, num_queries=60)
    envs.seed(0)
    envs.reset()
    arrivals_s = envs.batch.simulation.state.arrival_s[:, -1]
    assert (arrivals_s[0::2] > 5.0 * arrivals_s[1::2]).all()
