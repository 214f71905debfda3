"""Every id passes Gymnasium's checker, with its render modes, and Stable-Baselines3's."""

import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from inframind_gym import ENVIRONMENTS

VARIANTS = [
    {},
    {"observation": "index"},
    {"system_features": ["queue", "e2e", "kv"]},
    {"protocol": "published", "down_models": ["qwen-14b"]},
    {"background": "none", "budget_s": 30.0},
    {"level": "planner"},
    {"level": "joint", "planner": "mix"},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_gymnasium_check_env_passes_without_a_warning(name: str, variant: dict[str, object]):
    env = gym.make(name, num_queries=6, render_mode="rgb_array", **variant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_stable_baselines3_check_env_passes_without_a_warning(
    name: str, variant: dict[str, object]
):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gym.make(name, num_queries=6, render_mode="ansi", **variant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(env.unwrapped, warn=True, skip_render_check=False)
        checker.check_env(env, warn=True)
