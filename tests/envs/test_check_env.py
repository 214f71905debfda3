"""Every id passes Gymnasium's checker, with its render modes, and Stable-Baselines3's."""

import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from tests.envs.streams import for_ids

VARIANTS = [
    {},
    {"observation": "index"},
    {"system_features": ["queue", "e2e", "kv"]},
    {"execution": "sequential", "down_models": ["qwen-14b"]},
    {"background": "none", "budget_s": 30.0},
    {"level": "planner"},
    {"level": "joint", "planner": "mix"},
    {"system_features": ["in_flight"], "arrival_rate_per_min": 900.0},
]
POLICY = "inframind_gym.policies.simple:LowestExpectedLatencyPolicy"
PLANNERS = [
    {"observe": "infra"},
    {"observe": "infra", "observation": "index", "executor": "round_robin", "background": "none"},
    {"observe": "infra", "system_features": ["kv", "in_flight"], "executor": POLICY},
    {"executor": POLICY, "execution": "sequential", "level": "planner"},
]


@pytest.mark.parametrize(("name", "variant"), for_ids(VARIANTS, PLANNERS))
def test_gymnasium_check_env_passes_without_a_warning(name: str, variant: dict[str, object]):
    env = gym.make(name, num_queries=6, render_mode="rgb_array", **variant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


@pytest.mark.parametrize(("name", "variant"), for_ids(VARIANTS, PLANNERS))
def test_stable_baselines3_check_env_passes_without_a_warning(
    name: str, variant: dict[str, object]
):
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = gym.make(name, num_queries=6, render_mode="rgb_array", **variant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(env.unwrapped, warn=True, skip_render_check=False)
        checker.check_env(env, warn=True)
