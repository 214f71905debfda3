"""The adapter to Stable-Baselines3, and that its algorithms learn on it and on the single envs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import inframind_gym  # noqa: F401
from inframind_gym.errors import ActionError, ConfigError

pytest.importorskip("stable_baselines3")

from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

from inframind_gym.envs.sb3 import SB3VecEnv

STREAM, EXECUTOR = "InfraMind-Stream-v0", "InfraMind-Executor-v0"
SMALL: dict[str, Any] = {"num_queries": 12}


def adapter(name: str = EXECUTOR, num_envs: int = 4, **arguments: Any) -> SB3VecEnv:
    return SB3VecEnv(gym.make_vec(name, num_envs=num_envs, **(SMALL | arguments)))


def test_it_is_a_vec_env_with_float32_observations():
    envs = adapter()
    assert isinstance(envs, VecEnv) and envs.num_envs == 4
    observations = envs.reset()
    assert observations.shape == (4, 779) and observations.dtype == np.float32
    assert envs.reset_infos == [{"cost": 0.0}] * 4
    observations, rewards, dones, infos = envs.step(np.zeros(4, np.int64))
    assert observations.dtype == np.float32 and rewards.dtype == np.float32
    assert dones.dtype == np.bool_ and len(infos) == 4
    assert all(info["TimeLimit.truncated"] is False for info in infos)


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
                np.testing.assert_array_equal(
                    info["terminal_observation"], expected[4]["final_obs"][row]
                )
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
    assert envs.env_method("policy_spec", indices=[]) == []
    assert envs.get_attr("num_envs", indices=[0, 1]) == [4, 4]


def test_it_does_the_monitors_work():
    envs = adapter()
    assert envs.env_is_wrapped(Monitor) == [True] * 4
    assert envs.env_is_wrapped(TimeLimit, indices=[0]) == [False]


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


def test_it_takes_wrapped_batches_and_can_be_wrapped():
    envs = SB3VecEnv(RecordEpisodeStatistics(gym.make_vec(EXECUTOR, num_envs=2, **SMALL)))
    wrapped = VecNormalize(envs, norm_obs=False, norm_reward=True)
    wrapped.reset()
    for _ in range(40):
        wrapped.step(np.zeros(2, np.int64))
    assert envs.episodes > 0
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        VecMonitor(wrapped)


@pytest.mark.parametrize("name", [EXECUTOR, STREAM])
def test_ppo_learns_and_logs_on_the_adapter(name: str):
    envs = adapter(name, num_envs=8)
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, seed=0, device="cpu")
    model.learn(256)
    assert model.num_timesteps == 256
    if name == EXECUTOR:
        assert len(model.ep_info_buffer) == envs.episodes > 0
        assert model.ep_info_buffer[0]["r"] in (0.0, 1.0)


def test_maskable_ppo_never_takes_a_model_that_is_down():
    contrib = pytest.importorskip("sb3_contrib")
    envs = adapter(num_envs=8, down_models=["deepseek-32b"])
    model = contrib.MaskablePPO(
        "MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, seed=0, device="cpu"
    )
    model.learn(256)
    observations = envs.reset()
    masks = np.stack(envs.env_method("action_masks"))
    for _ in range(5):
        actions, _ = model.predict(observations, action_masks=masks)
        assert (actions >= 3).all()
