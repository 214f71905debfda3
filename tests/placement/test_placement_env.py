"""The contract of InfraMind-Placement-v0 with Gymnasium and its users."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode

import inframind_gym  # noqa: F401
from inframind_gym.errors import ActionError, ConfigError
from tests.placement.toys import card, tight_cluster, write_cluster, write_demand

PLACEMENT = "InfraMind-Placement-v0"
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"cluster": "h100-4gpu", "demand": "bursty", "initial": "empty", "load": 0.5},
    {"cluster": "h100-16gpu", "demand": "shifting", "foreign_memory": {"max_MB": 0}},
    {"decision_interval_s": 2, "routing_interval_s": 0.5, "demand": "diurnal", "num_decisions": 7},
)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_check_env_passes_without_a_warning(variant: dict[str, Any]) -> None:
    env = gym.make(PLACEMENT, **{"num_decisions": 5, **variant})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_spaces_are_as_documented() -> None:
    env = gym.make(PLACEMENT, cluster="h100-8gpu")
    gpus, models = 8, 8
    assert env.action_space == MultiDiscrete([models + 1] * gpus)
    assert env.observation_space == Box(
        0.0, 5.0, (gpus * (4 * models + 7) + 12 * models,), np.float32
    )


def episode(env: gym.Env[Any, Any], seed: int, action_seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(action_seed)
    observation, info = env.reset(seed=seed)
    trace: list[Any] = [(observation.tobytes(), 0.0, info["cost"])]
    over = False
    while not over:
        action = rng.integers(0, env.action_space.nvec)  # type: ignore[attr-defined]
        observation, reward, terminated, over, info = env.step(action)
        assert not terminated
        assert observation in env.observation_space
        assert reward == pytest.approx(sum(info["rewards"].values()))
        masks = b"".join(mask.tobytes() for mask in info["action_mask"])
        trace.append((observation.tobytes(), reward, info["cost"], masks))
    return trace


def test_a_spec_survives_json_and_a_seed_gives_the_same_bits() -> None:
    """In other processes too: the golden episodes have committed digests of this environment."""
    arguments = {"cluster": "h100-4gpu", "num_decisions": 20, "foreign_memory": {"every_s": 2.0}}
    env = gym.make(PLACEMENT, **arguments)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    first = episode(env, 3)
    assert episode(env, 2) != first
    assert episode(env, 3) == episode(again, 3) == first


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_row_of_the_batch_is_a_single_environment(num_envs: int) -> None:
    """Over an autoreset too: same bits, rewards, costs, terms, final observations and infos."""
    arguments = {"cluster": "h100-4gpu", "demand": "shifting", "num_decisions": 9}
    batch: Any = gym.make_vec(PLACEMENT, num_envs=num_envs, **arguments)
    singles = [gym.make(PLACEMENT, **arguments) for _ in range(num_envs)]
    assert batch.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, _ = batch.reset(seed=7)
    for row, env in enumerate(singles):
        assert np.array_equal(observations[row], env.reset(seed=7 + row)[0])
    rng = np.random.default_rng(0)
    for _ in range(20):
        actions = rng.integers(0, 7, (num_envs, 4))
        observations, rewards, terminated, over, infos = batch.step(actions)
        masks = batch.action_masks()
        assert not terminated.any()
        for row, env in enumerate(singles):
            observation, reward, _, truncated, info = env.step(actions[row])
            assert over[row] == truncated
            assert rewards[row] == pytest.approx(reward, rel=1e-14)
            assert infos["cost"][row] == info["cost"]
            assert infos["illegal"][row] == info["illegal"]
            for term, value in info["rewards"].items():
                assert infos["rewards"][term][row] == value
            if truncated:
                assert np.array_equal(infos["final_obs"][row], observation)
                for key in ("episode_cost", "jobs", "jobs_arrived", "mean_call_latency_s", "loads"):
                    assert infos["final_info"][key][row] == info[key], key
                observation, info = env.reset()
            assert np.array_equal(observations[row], observation)
            assert np.array_equal(masks[row], np.concatenate(info["action_mask"]))
            assert data_equivalence(infos["action_mask"][row], info["action_mask"])


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


def test_wrong_actions_are_explained() -> None:
    env = gym.make(PLACEMENT, cluster="h100-4gpu").unwrapped
    with pytest.raises(gym.error.ResetNeeded):
        env.step(np.zeros(4, np.int64))
    env.reset(seed=0)
    for action in (np.zeros(3, np.int64), np.full(4, 7), np.zeros(4), [0, 0, 0, -1]):
        with pytest.raises(ActionError):
            env.step(action)
    with pytest.raises(ConfigError, match="unknown option"):
        env.reset(options={"rate": 1})
