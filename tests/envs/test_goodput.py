"""The reward that counts answers in time alone, and streams that are cut short when overrun."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401

STREAM = "InfraMind-Stream-v0"


def play(env: Any, seed: int = 0) -> tuple[float, list[Any], bool]:
    """Send every call to the largest model; returns reward, records, and whether it was cut."""
    env.reset(seed=seed)
    total, records, over, truncated = 0.0, [], False, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(0)
        total += reward
        records += list(env.unwrapped.completed())
        over = terminated or truncated
    return total, records, truncated


@pytest.mark.parametrize("reward", ["solved", "goodput"])
def test_reward_counts_what_its_name_says(reward: str) -> None:
    env = gym.make(STREAM, num_queries=40, arrival_rate_per_min=60.0, reward=reward)
    total, records, truncated = play(env)
    solved = sum(int(r["solved"]) for r in records)
    in_time = sum(int(r["solved"] and r["latency_s"] <= r["budget_s"]) for r in records)
    assert total == {"solved": solved, "goodput": in_time}[reward]
    assert in_time < solved
    assert not truncated


def test_an_overrun_stream_is_truncated() -> None:
    arguments: dict[str, Any] = {"num_queries": 400, "arrival_rate_per_min": 300.0, "budget_s": 20}
    _, records, truncated = play(gym.make(STREAM, truncate_overrun_s=30.0, **arguments))
    assert truncated
    assert len(records) < 400
    assert max(r["latency_s"] - r["budget_s"] for r in records) > 30.0
    envs = gym.make_vec(STREAM, num_envs=3, truncate_overrun_s=30.0, **arguments)
    envs.reset(seed=0)
    cut = np.zeros(3, np.bool_)
    while not cut.any():
        _, _, terminated, cut, infos = envs.step(np.zeros(3, np.int64))
        assert not terminated.any()
    assert cut[0] and infos["_final_info"][cut].all()
