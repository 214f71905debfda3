"""What Gymnasium promises to its users: spaces, specs, types, and data that is the caller's own."""

from __future__ import annotations

import math
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from inframind_gym import ENVIRONMENTS, register_all
from inframind_gym.simulator.workflow.roles import ROLES
from tests.envs.streams import EXECUTOR, PLANNER, ROUTING, STREAM, for_ids

IDS = ROUTING
PLAN = [6, 6] + [12] * 6

# With those of test_check_env, every value of every argument is checked on every id.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"scheduler": "fcfs", "background": "round_robin", "workload": "mbpp"},
    {"scheduler": "edf_late_last", "background": "least_loaded", "pool": "h100-5gpu"},
    {"level": "planner", "background": "round_robin", "observation": "index"},
    {"level": "joint", "execution": "sequential", "system_features": ["kv"], "budget_s": 5.0},
    {
        "planner": {"topology": "Debate", "num_agents": 3},
        "arrivals": {"kind": "burst", "factor": 4.0, "duration_s": 1.0, "period_s": 9.0},
        "down_models": ["deepseek-32b", "llama-3b"],
        "record_calls": True,
        "split": "all",
        "observation": "index",
    },
)
POLICY = "inframind_gym.policies.learners:QLearningLoadTrackerPolicy"
PLANNERS: tuple[dict[str, Any], ...] = (
    {"observe": "infra", "executor": "least_loaded", "system_features": ["in_flight", "queue"]},
    {"executor": POLICY, "observation": "index", "scheduler": "fcfs", "record_calls": True},
)


@pytest.mark.parametrize(("name", "variant"), for_ids(VARIANTS, PLANNERS))
def test_check_env_passes_without_a_warning(name: str, variant: dict[str, Any]) -> None:
    env = gym.make(name, num_queries=6, **variant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)


def test_registering_again_is_harmless() -> None:
    before = {name: gym.registry[name] for name in ENVIRONMENTS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register_all()
    assert {name: gym.registry[name] for name in ENVIRONMENTS} == before
    assert set(ENVIRONMENTS) > set(IDS)  # the live and the placement ids have tests of their own


def episode(env: gym.Env[Any, Any], seed: int) -> list[tuple[Any, ...]]:
    """Observations, rewards and infos of one episode of sampled actions."""
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    trace: list[tuple[Any, ...]] = [(observation.copy(), 0.0, dict(info))]
    over = False
    while not over:
        observation, reward, over, _, info = env.step(env.action_space.sample())
        trace.append((observation.copy(), reward, dict(info)))
    return trace


def assert_same(one: list[tuple[Any, ...]], other: list[tuple[Any, ...]]) -> None:
    assert len(one) == len(other)
    for (obs_a, reward_a, info_a), (obs_b, reward_b, info_b) in zip(one, other, strict=True):
        assert obs_a.tobytes() == obs_b.tobytes()
        assert reward_a == reward_b
        assert data_equivalence(info_a, info_b)


@pytest.mark.parametrize(("name", "variant"), for_ids(VARIANTS[3:], PLANNERS))
def test_a_spec_survives_json(name: str, variant: dict[str, Any]) -> None:
    env = gym.make(name, num_queries=5, **variant)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec is not None
    assert again.spec.kwargs == env.spec.kwargs
    assert again.observation_space == env.observation_space
    assert again.action_space == env.action_space
    assert_same(episode(env, 3), episode(again, 3))


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
@pytest.mark.parametrize(
    ("arguments", "size", "actions"),
    [
        ({}, 779, Discrete(15)),
        ({"system_features": ["queue", "e2e", "kv"]}, 784, Discrete(15)),
        ({"system_features": []}, 769, Discrete(15)),
        ({"observation": "index"}, 13, Discrete(15)),
        ({"level": "planner"}, 779, MultiDiscrete(PLAN)),
        ({"level": "joint", "observation": "index"}, 14, MultiDiscrete([*PLAN, 15])),
    ],
    ids=["full", "kv", "no telemetry", "index", "planner", "joint"],
)
def test_spaces(name: str, arguments: dict[str, Any], size: int, actions: Any) -> None:
    check_spaces(name, arguments, size, actions)


@pytest.mark.parametrize("executor", ["static_mix", POLICY])
@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ({}, 384),
        ({"observation": "index"}, 1),
        ({"observe": "infra"}, 395),
        ({"observe": "infra", "system_features": []}, 385),
        ({"observe": "infra", "system_features": ["kv", "queue", "in_flight"]}, 400),
        ({"observe": "infra", "observation": "index"}, 12),
    ],
    ids=str,
)
def test_spaces_of_the_planner(executor: str, arguments: dict[str, Any], size: int) -> None:
    check_spaces(PLANNER, {"executor": executor, **arguments}, size, MultiDiscrete(PLAN))


def check_spaces(name: str, arguments: dict[str, Any], size: int, actions: Any) -> None:
    env = gym.make(name, num_queries=8, arrival_rate_per_min=600.0, **arguments)
    assert env.action_space == actions
    space = env.observation_space
    assert isinstance(space, Box)
    assert space.shape == (size,)
    assert space.dtype == np.float32
    assert np.all(np.isfinite(space.low))
    assert np.all(np.isfinite(space.high))
    for observation, _, info in episode(env, 1):
        assert observation in space
        check_info(info)

    batch: Any = gym.make_vec(name, num_envs=3, num_queries=8, **arguments)
    assert batch.single_observation_space == space
    assert batch.single_action_space == actions
    assert batch.observation_space == batch_space(space, 3)
    rows = [actions.n] * 3 if isinstance(actions, Discrete) else [actions.nvec] * 3
    assert batch.action_space == MultiDiscrete(rows)
    assert batch.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, _ = batch.reset(seed=1)
    for _ in range(60):
        assert observations in batch.observation_space
        observations, rewards, over, cut, infos = batch.step(batch.action_space.sample())
        assert rewards.shape == over.shape == cut.shape == infos["cost"].shape == (3,)
        assert (rewards.dtype, over.dtype, cut.dtype) == (np.float64, np.bool_, np.bool_)
        assert not cut.any()


def check_info(info: dict[str, Any]) -> None:
    assert isinstance(info["cost"], float)
    assert info["cost"] >= 0.0
    for key, value in info.items():
        assert isinstance(key, str)
        if isinstance(value, float):
            assert math.isfinite(value), key
        else:
            assert isinstance(value, int | np.ndarray | tuple), key


@pytest.mark.parametrize("name", IDS)
def test_types_of_a_step(name: str) -> None:
    env = gym.make(name, num_queries=2)
    env.reset(seed=0)
    over = False
    while not over:
        observation, reward, over, truncated, _ = env.step(env.action_space.sample())
        assert isinstance(observation, np.ndarray)
        assert type(reward) is float
        assert type(over) is bool
        assert truncated is False


@pytest.mark.parametrize("name", IDS)
def test_the_arrays_are_the_caller_s(name: str) -> None:
    """Writing into everything that was returned changes nothing that is returned later."""
    arguments = {"executor": POLICY} if name == PLANNER else {"level": "joint"}
    plain = gym.make(name, num_queries=6, **arguments)
    scribbled = gym.make(name, num_queries=6, **arguments).unwrapped
    expected = episode(plain, 5)

    scribbled.action_space.seed(5)
    observation, info = scribbled.reset(seed=5)
    for step, (clean, reward, clean_info) in enumerate(expected):
        assert observation.tobytes() == clean.tobytes()
        assert data_equivalence(info, clean_info)
        scribble(observation, info, scribbled)
        if step + 1 == len(expected):
            break
        observation, reward, _, _, info = scribbled.step(scribbled.action_space.sample())
        assert reward == expected[step + 1][1]


def scribble(observation: NDArray[Any], info: dict[str, Any], env: Any) -> None:
    observation[:] = -7.0
    mask = info["action_mask"]
    masks = mask if isinstance(mask, tuple) else (mask,)
    for array in [*info.values(), *masks, env.action_masks()]:
        if isinstance(array, np.ndarray):
            array[:] = False
    for records in (env.context(), env.completed()):
        for field in records.dtype.names:
            records[field] = 99


@pytest.mark.parametrize("name", IDS)
def test_the_batch_hands_out_no_memory_twice(name: str) -> None:
    env: Any = gym.make_vec(name, num_envs=4, num_queries=3, observation="index")
    env.action_space.seed(0)
    observations, infos = env.reset(seed=0)
    kept: list[tuple[NDArray[Any], bytes]] = []

    def keep(*arrays: Any) -> None:
        for array in arrays:
            assert not any(np.shares_memory(array, other) for other, _ in kept)
            kept.append((array, array.tobytes()))

    keep(observations, infos["cost"])
    ended = 0
    for _ in range(60):
        observations, rewards, over, cut, infos = env.step(env.action_space.sample())
        keep(observations, rewards, over, cut, infos["cost"], env.contexts(), env.completed()[1])
        if over.any():
            final = [infos["final_obs"][row] for row in np.flatnonzero(over)]
            keep(*final, *infos["final_info"].values())
            ended += len(final)
    assert ended >= 4
    assert all(array.tobytes() == before for array, before in kept)


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_index_and_full_observations_tell_the_same(name: str) -> None:
    full = gym.make(name, num_queries=10)
    index = gym.make(name, num_queries=10, observation="index")
    env: Any = full.unwrapped
    embedding, roles = env.simulation.tasks.embeddings, env.simulation.params.role_embedding
    for (wide, _, _), (narrow, _, _) in zip(episode(full, 2), episode(index, 2), strict=True):
        task, role = int(narrow[0]), int(narrow[1])
        assert -1 <= role < len(ROLES)
        # After the last query there is neither a task nor a role.
        zero = np.zeros(384, np.float32)
        assert np.array_equal(wide[:384], embedding[task] if task >= 0 else zero)
        assert np.array_equal(wide[384:768], roles[role] if role >= 0 else zero)
        assert np.array_equal(wide[768:], narrow[2:])


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_masks_name_the_routes_to_models_that_are_up(name: str) -> None:
    arguments: dict[str, Any] = {"num_queries": 3, "down_models": ["mistral-24b"]}
    routes = np.repeat([True, False, True, True, True], 3)
    env = gym.make(name, **arguments)
    _, info = env.reset(seed=0)
    assert np.array_equal(info["action_mask"], routes)
    assert env.get_wrapper_attr("action_masks")().dtype == np.bool_
    joint = gym.make(name, level="joint", **arguments)
    _, info = joint.reset(seed=0)
    assert np.array_equal(np.concatenate(info["action_mask"][:-1]), np.ones(sum(PLAN)))
    assert np.array_equal(info["action_mask"][-1], routes)
    batch: Any = gym.make_vec(name, num_envs=2, **arguments)
    batch.reset(seed=0)
    assert np.array_equal(batch.action_masks(), np.stack([routes, routes]))
