"""The environment that Stable-Baselines3's algorithms train on: every load and budget at once."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np

import inframind_gym  # noqa: F401
from inframind_gym.envs.sb3 import SB3VecEnv
from inframind_gym.policies.hyperparameters import Sb3Environment

ENV_ID: Final = "InfraMind-Executor-v0"


def make_training_env(settings: Sb3Environment, **arguments: Any) -> SB3VecEnv:
    """A batch of `rows_per_rate` rows for every arrival rate, with budgets drawn from the tiers.

    Row i keeps the rate `rates_per_min[i % len(rates_per_min)]` from sweep to sweep, so that an
    update sees all loads at once.

    Args:
        settings: block `sb3_environment` of the hyperparameters.
        **arguments: further arguments of the environment, such as `num_queries`.

    Raises:
        ConfigError: the environment cannot be made from these settings.
    """
    rates = np.tile(np.array(settings.rates_per_min), settings.rows_per_rate)
    envs = SB3VecEnv(
        gym.make_vec(
            ENV_ID,
            num_envs=len(rates),
            pool=settings.pool,
            workload=settings.workload,
            split=settings.split,
            background=settings.background,
            system_features=list(settings.system_features),
            **arguments,
        )
    )
    envs.set_options([{"arrival_rate_per_min": float(rate)} for rate in rates])
    return envs
