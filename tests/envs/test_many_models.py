"""Pools of as many models as there can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from inframind_gym.benchmark.speed.scaling import sizes
from inframind_gym.simulator.server.pool import MOST_MODELS


@pytest.fixture
def kwargs(tmp_path: Path) -> dict[str, Any]:
    jobs = (job for axis, size, job in sizes(tmp_path) if (axis, size) == ("models", MOST_MODELS))
    return dict(next(jobs).arguments["kwargs"])


@pytest.mark.parametrize("down", [(), (MOST_MODELS - 1,), (0, MOST_MODELS - 2)])
def test_every_server_of_the_largest_pool_serves(
    kwargs: dict[str, Any], down: tuple[int, ...]
) -> None:
    env: Any = gym.make_vec("InfraMind-Stream-v0", num_envs=1, **kwargs).unwrapped
    aliases = env.simulation.pool.aliases
    assert len(aliases) == MOST_MODELS
    env = gym.make_vec(
        "InfraMind-Stream-v0",
        num_envs=1,
        down_models=[aliases[m] for m in down],
        record_calls=True,
        autoreset_mode="NextStep",
        num_queries=300,
        **kwargs,
    ).unwrapped
    env.reset(seed=0)
    rng, over = np.random.default_rng(0), False
    while not over:
        actions = rng.integers(env.single_action_space.n, size=1)
        _, _, terminated, truncated, _ = env.step(actions)
        over = bool((terminated | truncated)[0])
        up = int(env.contexts()["models_up"][0])
        assert over or up == 2**MOST_MODELS - 1 - sum(1 << m for m in down)
    calls = np.bincount(env.calls(0)["model"], minlength=MOST_MODELS)
    assert (calls[list(down)] == 0).all()
    assert (np.delete(calls, down) > 0).all()
    assert (env.simulation.cluster.server[0]["finished"] == calls).all()
    assert not env.simulation.state.in_flight.any()
