"""Masks, Dict observations and autoreset modes: the same run in the form that a tool asks for."""

from __future__ import annotations

import re
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Dict, flatdim
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordVideo
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics

from inframind_gym.envs.placement import PlacementConfig
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.errors import ConfigError
from inframind_gym.live.config import PlacementLiveConfig, live_placement_config
from tests.envs.streams import EXECUTOR, PLACEMENT, PLANNER, STREAM

LIVE = "InfraMind-StreamLive-v0"
SMALL: dict[str, Any] = {"num_queries": 6, "down_models": ["qwen-14b"]}
CASES: list[tuple[str, dict[str, Any]]] = [
    (EXECUTOR, SMALL),
    (STREAM, SMALL | {"level": "joint", "system_features": ["kv", "queue", "in_flight"]}),
    (PLANNER, SMALL | {"observe": "infra"}),
    (PLANNER, SMALL),
    (PLACEMENT, {"cluster": "h100-4gpu", "num_decisions": 4, "demand": "shifting"}),
]
every_case = pytest.mark.parametrize(("name", "arguments"), CASES, ids=lambda v: str(v)[:40])
# The value that names the Dict form, and the one of the same numbers in a Box.
FLAT = {PLACEMENT: "flat"}


def played(env: Any, steps: int, seed: int = 3) -> list[Any]:
    """What a single environment or a batch returns under masked samples, episode by episode."""
    single = isinstance(env, gym.Env)
    env.action_space.seed(seed)
    seen = [env.reset(seed=seed)]
    for _ in range(steps):
        seen.append(env.step(env.action_space.sample(mask=seen[-1][-1]["action_mask"])))
        if single and (seen[-1][2] or seen[-1][3]):
            seen.append(env.reset())
    return seen


@every_case
def test_masks_are_those_that_sample_takes(name: str, arguments: dict[str, Any]) -> None:
    """On single environments, on batches, and on Gymnasium's own vectorisation."""
    single, batch = gym.make(name, **arguments), gym.make_vec(name, num_envs=3, **arguments)
    for _, *_, info in played(single, 12):
        mask = info["action_mask"]
        assert isinstance(mask, np.ndarray if name == EXECUTOR else tuple)
    flat = np.concatenate([mask] if name == EXECUTOR else mask)
    assert np.array_equal(flat, single.get_wrapper_attr("action_masks")())
    for _, *_, infos in played(batch, 12):
        assert len(infos["action_mask"]) == 3 and infos["_action_mask"].all()
        if name == EXECUTOR:  # the third model is down
            assert (batch.action_space.sample(mask=infos["action_mask"]) // 3 != 2).all()


def check_same(observation: dict[str, Any], flat: Any) -> None:
    """Check that a Dict observation holds the numbers of the flat one, each once."""
    parts = [observation[name] for name in ORDER if name in observation]
    assert len(parts) == len(observation)
    parts = [part.swapaxes(-1, -2) if part.shape[-2:] in SERVERS else part for part in parts]
    joined = np.concatenate([part.reshape(*flat.shape[:-1], -1) for part in parts], axis=-1)
    assert joined.dtype == flat.dtype and joined.tobytes() == flat.tobytes()


# Entries in the order of the flat observation, which goes through the servers feature by feature.
ORDER = ("query", "role", "budget", "servers", "plan", "gpus", "models")
SERVERS = ((5, 2), (5, 3))


@every_case
def test_a_dict_observation_holds_the_numbers_of_the_flat_one(
    name: str, arguments: dict[str, Any]
) -> None:
    rows = gym.make(name, observation="dict", render_mode="rgb_array", **arguments)
    flat = gym.make(name, observation=FLAT.get(name, "full"), **arguments)
    assert isinstance(rows.observation_space, Dict)
    assert flatdim(rows.observation_space) == flatdim(flat.observation_space)
    for one, other in zip(played(rows, 20), played(flat, 20), strict=True):
        check_same(one[0], other[0])
        assert data_equivalence(one[1:], other[1:])
    batches = [
        gym.make_vec(name, num_envs=3, observation=form, **arguments)
        for form in ("dict", FLAT.get(name, "full"))
    ]
    ended = 0
    for one, other in zip(*(played(batch, 20) for batch in batches), strict=True):
        assert one[0] in batches[0].observation_space
        check_same(one[0], other[0])
        for row in np.flatnonzero(one[-1].get("_final_obs", [])):
            check_same(one[-1]["final_obs"][row], other[-1]["final_obs"][row])
            ended += 1
    assert ended or name == STREAM
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(rows.unwrapped)
        warnings.filterwarnings("ignore", "Your observation .* has an unconventional shape")
        checker.check_env(rows)


@pytest.mark.parametrize("name", [EXECUTOR, PLACEMENT])
def test_sb3_trains_a_multi_input_policy(name: str) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from inframind_gym.envs.sb3 import SB3VecEnv

    arguments = dict(CASES)[name] | {"observation": "dict"}
    for env in (gym.make(name, **arguments), SB3VecEnv(gym.make_vec(name, 2, **arguments))):
        model = sb3.PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, device="cpu")
        model.learn(16)
    with pytest.raises(ConfigError, match='autoreset_mode="SameStep"'):
        SB3VecEnv(gym.make_vec(name, 2, autoreset_mode=AutoresetMode.NEXT_STEP, **arguments))


@every_case
def test_next_step_is_what_gymnasium_makes_of_single_environments(
    name: str, arguments: dict[str, Any]
) -> None:
    batch = gym.make_vec(name, num_envs=3, autoreset_mode="NextStep", **arguments)
    plain = SyncVectorEnv(
        [lambda: gym.make(name, **arguments)] * 3, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    assert batch.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert np.array_equal(batch.reset(seed=5)[0], plain.reset(seed=5)[0])
    ended = 0
    for _ in range(60):
        actions = batch.action_space.sample()
        one, other = batch.step(actions), plain.step(actions)
        for part in range(4):
            np.testing.assert_allclose(one[part], other[part], rtol=1e-14)
        assert np.array_equal(one[4]["cost"], other[4]["cost"])
        over = one[2] | one[3]
        if over.any():
            ended += over.sum()
            assert np.array_equal(one[4]["_episode_cost"], over)
            costs = one[4]["episode_cost"], other[4]["episode_cost"]
            np.testing.assert_allclose(*costs, rtol=1e-14)
    assert ended > 2
    wrapped = NormalizeObservation(RecordEpisodeStatistics(batch))
    wrapped.reset(seed=0)
    while "episode" not in wrapped.step(wrapped.action_space.sample())[4]:
        pass
    with pytest.raises(ValueError, match="NEXT_STEP"):
        NormalizeObservation(gym.make_vec(name, num_envs=3, **arguments))


@pytest.mark.skipif(find_spec("moviepy") is None, reason="needs the extra `render`")
@pytest.mark.parametrize(
    ("name", "arguments"), [*CASES, (LIVE, {"scripted_s": 1.0, "num_queries": 2})]
)
def test_videos_are_recorded(name: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    env = RecordVideo(gym.make(name, render_mode="rgb_array", **arguments), str(tmp_path / "new"))
    played(env, 6)
    env.close()
    assert (tmp_path / "new/rl-video-episode-0.mp4").stat().st_size > 1000


ABSURD = (1e-9, 10**12, 10**400, float("nan"))
NESTED: list[dict[str, Any]] = [
    {"agents": {"visible_tests": None}},
    {"planner": {"topology": "Chain", "num_agents": None}},
    *({"arrivals": {"kind": "burst", name: None}} for name in ("factor", "duration_s", "period_s")),
    *({"arrivals": {"kind": "diurnal", name: None}} for name in ("amplitude", "period_s")),
    *({"arrivals": {"kind": "sustained", k: None}} for k in ("factor", "start_frac", "end_frac")),
]


def numbers_of(model: type[Any]) -> list[dict[str, Any]]:
    """Arguments that hold a number, some of them nested, with None in its place."""
    found: list[dict[str, Any]] = []
    for name, field in model.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            found += [{name: inner} for inner in numbers_of(field.annotation)]
        elif re.search(r"\b(float|int)\b", str(field.annotation)):
            found.append({name: None})
    return found


def filled(arguments: dict[str, Any], value: float) -> tuple[dict[str, Any], str]:
    """Arguments with a value in place of their None, and the name that it belongs to."""
    (name, last) = list(arguments.items())[-1]
    if last is None:
        return arguments | {name: value}, name
    inner, key = filled(last, value)
    return arguments | {name: inner}, key


OF_LIVE = [{name: None} for name in ("retries", "reach_s", "patience_s", "scripted_s")]


@pytest.mark.parametrize(
    ("name", "numbers", "small"),
    [
        (EXECUTOR, numbers_of(EnvConfig) + NESTED, {"observation": "index"}),
        (LIVE, OF_LIVE, {"scripted_s": 1.0, "num_queries": 2}),
        (PLACEMENT, numbers_of(PlacementConfig), {"cluster": "h100-4gpu"}),
    ],
)
def test_absurd_numbers_are_refused_or_work(
    name: str, numbers: list[dict[str, Any]], small: dict[str, Any]
) -> None:
    gym.make(name, **small).reset(seed=0)  # compiles
    refused = 0
    for number in numbers:
        for value in ABSURD:
            arguments, key = filled(number, value)
            began = time.perf_counter()
            try:
                env = gym.make(name, **small | arguments).unwrapped
                env.reset(seed=0)
                env.step(env.action_space.sample())
            except ConfigError as error:
                refused += 1
                assert key in str(error)
            assert time.perf_counter() - began < 1.0, arguments
    assert refused > 2 * len(numbers)


def test_the_limits_of_live_placement_are_bounded() -> None:
    for number in numbers_of(PlacementLiveConfig):
        arguments, key = filled(number, 10**12)
        with pytest.raises(ConfigError, match=key):
            live_placement_config(arguments)


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_streams_that_last_too_long_are_refused_when_they_begin(name: str, tmp_path: Path) -> None:
    """Polls of idle servers take computing too, whatever makes the stream long."""
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input,output\n0,1,1\n4e9,1,1\n")
    for arguments in (
        {"arrival_rate_per_min": 0.01, "metrics_poll_s": 0.001},
        {"arrivals": {"kind": "trace", "path": str(trace), "rescale": False}},
        {"arrivals": {"kind": "sustained", "factor": 0.001, "start_frac": 0.0, "end_frac": 1.0},
         "arrival_rate_per_min": 0.01, "num_queries": 1_000_000},
    ):  # fmt: skip
        env = gym.make(name, **arguments)
        with pytest.raises(ConfigError, match="raise arrival_rate_per_min or metrics_poll_s"):
            env.reset(seed=0)
