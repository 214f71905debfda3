"""InfraMind-Assignment-v0: the contract, the rules played in it, and its forms."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.teams.assignment import rules

ID = "InfraMind-Assignment-v0"


def make(**arguments: Any) -> Any:
    return gym.make(ID, **arguments).unwrapped


def test_tabular_observations_are_states() -> None:
    env, full = make(observation="tabular"), make()
    state, _ = env.reset(seed=2)
    seen, _ = full.reset(seed=2)
    for _ in range(20):
        assert state == 5 * seen["task_type"].argmax() + seen["load_state"].argmax()
        assert state in env.observation_space and seen in full.observation_space
        state, *_ = env.step(4)
        seen, *_ = full.step(4)
    assert state % 5 == 3  # researcher_hot


def test_queues_give_every_task_its_reward_once() -> None:
    env = make(load="queue", num_tasks=40)
    env.reset(seed=3)
    ordinals, total = [], 0.0
    for t in range(40):
        _, reward, _, truncated, info = env.step(2 if t % 2 else 5)
        done = env.completed()
        ordinals += done.ordinal.tolist()
        assert info["completed"] == len(done.row)
        assert reward == pytest.approx(done.reward.sum())
        assert (done.action == np.where(done.ordinal % 2, 2, 5)).all()
        total += reward
    assert truncated and sorted(ordinals) == list(range(40))
    assert info["episode_reward"] == pytest.approx(total)
    assert not env.context().in_flight.any()


def test_in_the_queueing_form_a_wait_is_the_load_penalty() -> None:
    env = make(load="queue", num_tasks=60)
    env.reset(seed=5)
    done = []
    for _ in range(60):
        env.step(3)
        done.append(env.completed())
    for part in done:
        assert part.load_penalty == pytest.approx(0.2 * np.minimum(part.wait_s / 5.0, 1.0))
        assert (part.wait_s <= part.latency_s).all()
    assert max(part.load_penalty.max(initial=0.0) for part in done) == pytest.approx(0.2)


def test_a_request_ends_its_episode_and_the_load_stays() -> None:
    env = make(episode="request")
    env.reset(seed=1)
    for t in range(10):
        _, _, terminated, truncated, info = env.step(2)
        assert terminated and not truncated
        assert env.context().ordinal == t + 1
        env.reset()
    assert rules.LOAD_STATES[info["load_state"]] == "coder_hot"
    run = make()
    run.reset(seed=1)
    tasks = [int(run.context().task[0])]
    for _ in range(10):
        run.step(2)
        tasks.append(int(run.context().task[0]))
    assert tasks[-1] == env.context().task  # the same run of tasks
    assert env.reset(seed=1)[1]["load_state"] == rules.BALANCED
    batch: Any = gym.make_vec(ID, num_envs=2, episode="request", observation="tabular")
    batch.reset(seed=1)
    for _ in range(10):
        states, _, over, cut, _ = batch.step([2, 2])
    assert over.all() and not cut.any() and (states % 5 == 2).all()


def test_the_same_world_whatever_is_decided() -> None:
    one, other = make(arrivals="bursty"), make(arrivals="bursty")
    one.reset(seed=9)
    other.reset(seed=9)
    for t in range(30):
        assert one.context().task == other.context().task
        one.step(t % 8)
        other.step(5 if t != 13 else t % 8)
        if t == 13:
            assert one.completed().quality == other.completed().quality
