"""Pools of as many models as there can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from inframind_gym.configs import find_config, load_yaml_model
from inframind_gym.simulator.server.pool import MOST_MODELS, load_pool
from inframind_gym.simulator.workload import WorkloadConfig


@pytest.fixture
def kwargs(tmp_path: Path) -> dict[str, Any]:
    """A pool of copies of a shipped one, GPUs included, and a workload of their models."""
    pool = load_pool("b200-2gpu").model_dump(mode="json", exclude_defaults=True)
    workload = load_yaml_model(find_config("workloads", "math"), WorkloadConfig)
    profile = workload.model_dump(mode="json", exclude_defaults=True)
    copies = range(-(-MOST_MODELS // len(pool["models"])))
    pool["gpus"] = [gpu | {"name": f"{gpu['name']}-{i}"} for i in copies for gpu in pool["gpus"]]
    pool["models"] = [
        {key: value for key, value in model.items() if key != "port"}
        | {"alias": f"{model['alias']}-{i}", "gpu": f"{model['gpu']}-{i}"}
        for i in copies
        for model in pool["models"]
    ][:MOST_MODELS]
    profile["models"] = {
        f"{alias}-{i}": entry | {"share": entry["share"] / len(copies)}
        for i in copies
        for alias, entry in profile["models"].items()
    }
    paths = {"pool": tmp_path / "pool.yaml", "workload": tmp_path / "workload.yaml"}
    for name, content in (("pool", pool), ("workload", profile)):
        paths[name].write_text(json.dumps(content), encoding="utf-8")
    arguments = {name: str(path) for name, path in paths.items()}
    return {**arguments, "arrival_rate_per_min": 640.0, "observation": "index"}


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
