"""The adapter to Stable-Baselines3, and that its algorithms learn on it and on the single envs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from inframind_gym.errors import ActionError, ConfigError

pytest.importorskip("stable_baselines3")

from inframind_gym.envs.sb3 import SB3VecEnv
from tests.envs.streams import EXECUTOR, STREAM

SMALL: dict[str, Any] = {"num_queries": 12}


def adapter(name: str = EXECUTOR, num_envs: int = 4, **arguments: Any) -> SB3VecEnv:
    return SB3VecEnv(gym.make_vec(name, num_envs=num_envs, **(SMALL | arguments)))


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_it_steps_exactly_like_the_vector_environment(name: str):
    envs, plain = adapter(name), gym.make_vec(name, num_envs=4, **SMALL)
    envs.seed(7)
    np.testing.assert_array_equal(envs.reset(), plain.reset(seed=7)[0])
    rng = np.random.default_rng(0)
    episodes = 0
    returns, lengths, totals = np.zeros(4), np.zeros(4, int), np.zeros(4)
    for _ in range(120):
        actions = rng.integers(0, 15, 4)
        observations, rewards, dones, infos = envs.step(actions)
        expected = plain.step(actions)
        np.testing.assert_array_equal(observations, expected[0])
        np.testing.assert_array_equal(rewards, expected[1].astype(np.float32))
        np.testing.assert_array_equal(dones, expected[2])
        np.testing.assert_array_equal([i["cost"] for i in infos], expected[4]["cost"])
        returns, lengths = returns + expected[1], lengths + 1
        totals += expected[4]["cost"]
        for row, info in enumerate(infos):
            assert ("episode" in info) == ("terminal_observation" in info) == dones[row]
            if dones[row]:
                final = expected[4]["final_obs"][row]
                np.testing.assert_array_equal(info["terminal_observation"], final)
                assert info["episode"] == {"r": returns[row], "l": lengths[row], "c": totals[row]}
                assert info["episode_cost"] == totals[row]
        episodes += int(dones.sum())
        for sums in (returns, lengths, totals):
            sums[dones] = 0
    assert episodes > 0 and envs.episodes == episodes


def test_seeds_hold_for_one_reset():
    envs = adapter()
    assert envs.seed(3) == [3, 4, 5, 6]
    first, second = envs.reset(), envs.reset()
    envs.seed(3)
    np.testing.assert_array_equal(envs.reset(), first)
    assert not np.array_equal(first, second)


def test_options_go_to_their_rows_for_one_reset():
    envs = adapter(STREAM)
    envs.set_options([{"budget_s": budget} for budget in (10.0, 20.0, 30.0, 40.0)])
    envs.reset()
    assert [context["budget_s"] for context in envs.env_method("context")] == [10, 20, 30, 40]
    envs.set_options({"budget_s": 50.0})
    envs.reset()
    assert {float(context["budget_s"]) for context in envs.env_method("context")} == {50.0}
    envs.set_options([{"budget_s": 50.0}, {}, {}, {}])
    with pytest.raises(ConfigError, match="'budget_s' must be given to all"):
        envs.reset()
    envs = SB3VecEnv(gym.make_vec("InfraMind-Coordination-v0", num_envs=2))
    envs.set_options({"scenario": "S7"})  # one for all rows
    envs.reset()
    assert (envs.batch.simulation.question.history.sum(axis=1) > 125_000).all()


def test_masks_and_contexts_are_those_of_the_row():
    envs = adapter(STREAM, down_models=["mistral-24b"])
    envs.reset()
    assert envs.has_attr("action_masks") and not envs.has_attr("action_mask")
    masks = np.stack(envs.env_method("action_masks"))
    assert masks.shape == (4, 15) and not masks[:, 3:6].any() and masks.sum() == 48
    (one,) = envs.env_method("action_masks", indices=2)
    np.testing.assert_array_equal(one, masks[2])
    (method,) = envs.get_attr("context", indices=[1])
    assert method() == envs.batch.contexts()[1]
    assert envs.env_method("policy_spec", indices=[0, 3])[1].num_models == 5
    assert envs.get_attr("num_envs", indices=[0, 1]) == [4, 4]
    envs.set_attr("marked", 7)
    assert envs.get_attr("marked") == [7] * 4
    with pytest.raises(ConfigError, match="all 4 rows share 'marked'"):
        envs.set_attr("marked", 8, indices=[1])


def test_wrong_use_is_a_clear_error():
    with pytest.raises(ConfigError, match=r"make one with gym\.make_vec"):
        SB3VecEnv(gym.make(EXECUTOR, **SMALL))
    with pytest.raises(ConfigError, match="SyncVectorEnv"):
        SB3VecEnv(gym.make_vec(EXECUTOR, num_envs=2, vectorization_mode="sync", **SMALL))
    envs = adapter()
    envs.reset()
    with pytest.raises(ConfigError, match="step_async"):
        envs.step_wait()
    with pytest.raises(ActionError, match="out of range"):
        envs.step(np.full(4, 15))
