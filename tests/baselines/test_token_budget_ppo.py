"""Training of `sb3_maskable_ppo` on token budgets: the exported policy is the trained one."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.rollout import play_token_budget as play
from inframind_gym.policies.token_budget import registry
from inframind_gym.policies.token_budget.ppo import KIND

contrib = pytest.importorskip("sb3_contrib")

from baselines.sb3 import export_network  # noqa: E402
from baselines.token_budget_ppo import DEFAULT_FILE, TrainingConfig, train  # noqa: E402
from inframind_gym.configs import load_yaml_model  # noqa: E402
from inframind_gym.envs.sb3 import SB3VecEnv  # noqa: E402


def test_the_player_acts_as_the_trained_network(tmp_path: Path) -> None:
    batch = gym.make_vec("InfraMind-TokenBudget-v0", num_envs=64, budget=[1000, 20_000])
    model = contrib.MaskablePPO("MlpPolicy", SB3VecEnv(batch), seed=0, device="cpu", n_steps=8)
    model.learn(512)
    tensors, network = export_network(model)
    checkpoint.save(tmp_path, tensors, {"kind": KIND, **network, "price": 0.001, "training": {}})
    player = registry.resolve(f"sb3_maskable_ppo:{tmp_path}")
    player.reset(batch.unwrapped.team_spec(), range(64))
    observations, _ = batch.reset(seed=0)
    seen = set()
    for _ in range(12):
        masks = batch.unwrapped.action_masks()
        wanted, _ = model.predict(observations, action_masks=masks, deterministic=True)
        actions = player.act_batch(observations, batch.unwrapped.contexts(), np.arange(64))
        assert (actions == wanted).mean() > 0.98  # float32 there, float64 here
        seen |= set(actions.tolist())
        observations = batch.step(np.random.default_rng(len(seen)).permuted(actions))[0]
    assert len(seen) > 2


def test_a_training_is_saved_and_not_repeated(tmp_path: Path) -> None:
    shipped = load_yaml_model(DEFAULT_FILE, TrainingConfig)
    small = shipped.model_copy(update={"rows": 16, "timesteps": 1024})
    content = train(small, seed=1, out=tmp_path)
    assert content["training"]["timesteps"] == 1024
    assert train(small, seed=1, out=tmp_path) == content
    with pytest.raises(ConfigError, match="another finished training"):
        train(small, seed=2, out=tmp_path)
    found = play(registry.resolve(f"sb3_maskable_ppo:{tmp_path}"), range(20))
    assert (found["decisions"] >= 1).all()
