"""The contract of InfraMind-Placement-v0 with Gymnasium and its users."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete

import inframind_gym  # noqa: F401
from inframind_gym.errors import ConfigError
from tests.placement.toys import card, tight_cluster, write_cluster, write_demand

PLACEMENT = "InfraMind-Placement-v0"


def test_spaces_are_as_documented() -> None:
    env = gym.make(PLACEMENT, cluster="h100-8gpu")
    gpus, models = 8, 8
    assert env.action_space == MultiDiscrete([models + 1] * gpus)
    assert env.observation_space == Box(
        0.0, 5.0, (gpus * (4 * models + 7) + 12 * models,), np.float32
    )


def test_contexts_agree_with_observations(tmp_path: Path) -> None:
    env: Any = gym.make(PLACEMENT, cluster=tight_cluster(tmp_path), num_decisions=30).unwrapped
    env.reset(seed=4)
    gpus, models = 4, 5
    rng = np.random.default_rng(0)
    for _ in range(30):
        observation, _, _, over, info = env.step(rng.integers(0, models + 1, gpus))
        context, spec = env.context(), env.policy_spec()
        by_gpu = observation[: gpus * (4 * models + 7)].reshape(gpus, -1)
        by_model = observation[gpus * (4 * models + 7) :].reshape(models, 12)
        state = context.state[0]
        assert np.array_equal(by_gpu[:, 0 : 4 * models : 4] == 1, state == 2)
        assert np.array_equal(by_gpu[:, 4 * models] == 1, context.stable[0])
        assert np.expm1(by_gpu[:, 4 * models + 1] * np.log(301)) == pytest.approx(
            context.drain_s[0], rel=1e-4, abs=1e-4
        )
        assert by_gpu[:, 4 * models + 2] * spec.vram_mb == pytest.approx(
            context.free_mb[0], rel=1e-4, abs=0.1
        )
        assert np.expm1(by_model[:, 0] * np.log(101)) == pytest.approx(
            context.waiting[0], rel=1e-4, abs=1e-4
        )
        assert np.expm1(by_model[:, 8] * np.log(301)) == pytest.approx(context.wake_s[0], rel=1e-4)
        assert np.array_equal(np.stack(info["action_mask"]), context.mask[0])
        if over:
            break


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clutser": "h100-4gpu"}, "clutser: unknown key. Did you mean 'cluster'?"),
        ({"cluster": "h100-4gpus"}, "unknown cluster 'h100-4gpus'. Did you mean 'h100-4gpu'?"),
        ({"demand": "trace"}, "Give the path of a CSV file as the argument `trace`"),
        ({"trace": "x.csv"}, "the demand's arrivals are 'poisson'"),
        ({"decision_interval_s": 2.5}, "must be a whole multiple of routing_interval_s"),
        ({"decision_interval_s": 3600, "routing_interval_s": 0.01}, "10000 times at most"),
    ],
    ids=str,
)
def test_wrong_arguments_are_explained(arguments: dict[str, Any], message: str) -> None:
    for make in (gym.make, gym.make_vec):
        with pytest.raises(ConfigError, match=re.escape(message)):
            make(PLACEMENT, **arguments)


def test_wrong_files_are_explained(tmp_path: Path) -> None:
    for cards, message in (
        ([card("a"), card("b", tp_min=4)], "b needs 60000 MB on each of 4 neighbouring GPUs"),
        ([card("a", slept_mem_tp1_MB=70_000)], "must be less than active_mem_MB"),
    ):
        with pytest.raises(ConfigError, match=message):
            gym.make(PLACEMENT, cluster=write_cluster(tmp_path, cards, gpus=2))
    changes: dict[str, Any]
    for changes, message in (
        ({"topologies": {"Chian": 1}}, "Did you mean 'Chain'"),
        ({"num_agents": {1: 0.0}}, "all weights are 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            gym.make(PLACEMENT, demand=write_demand(tmp_path, **changes))
