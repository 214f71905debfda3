"""Arrays that are handed out again: never one that somebody still has."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from inframind_gym.envs.spare import MOST, SpareArrays


def test_an_array_comes_back_once_it_is_let_go() -> None:
    spare = SpareArrays((4, 3), np.float32)
    first = spare.take()
    address = first.ctypes.data
    del first
    again = spare.take()
    assert again.ctypes.data == address
    assert again.shape == (4, 3)
    assert again.dtype == np.float32


def test_no_array_is_handed_out_while_it_or_a_view_is_kept() -> None:
    spare = SpareArrays((4, 3), np.float32)
    kept = [spare.take() for _ in range(MOST + 2)]
    kept[0] = kept[0][1:2]  # a view keeps the whole
    kept += [spare.take() for _ in range(2)]
    for i, array in enumerate(kept):
        assert not any(np.shares_memory(array, other) for other in kept[:i])


def test_observations_that_are_kept_do_not_change() -> None:
    env = gym.make_vec("InfraMind-Stream-v0", num_envs=3, observation="index")
    observations, _ = env.reset(seed=0)
    kept, copies = [observations], [observations.copy()]
    for _ in range(12):
        observations, *_ = env.step(np.zeros(3, np.int64))
        kept.append(observations[1:] if len(kept) % 2 else observations)
        copies.append(kept[-1].copy())
    for array, copied in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copied)


def test_rewards_and_costs_that_are_kept_do_not_change() -> None:
    env = gym.make_vec("InfraMind-Stream-v0", num_envs=3, observation="index")
    env.reset(seed=0)
    kept = []
    for step in range(400):
        _, rewards, _, _, infos = env.step(np.full(3, step % 15))
        kept.append((rewards, rewards.copy(), infos["cost"], infos["cost"].copy()))
    assert any(rewards.any() for _, rewards, _, _ in kept)
    for rewards, as_given, costs, as_charged in kept:
        np.testing.assert_array_equal(rewards, as_given)
        np.testing.assert_array_equal(costs, as_charged)
