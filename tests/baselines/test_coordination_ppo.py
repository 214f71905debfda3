"""Training of `sb3_maskable_ppo` on coordination: the exported policy is the trained one."""

from __future__ import annotations

from pathlib import Path

import pytest

from inframind_gym.configs import load_yaml_model
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.coordination import registry
from inframind_gym.policies.coordination.ppo import KIND
from inframind_gym.policies.rollout import play_coordination as play

pytest.importorskip("sb3_contrib")

from baselines.coordination_ppo import DEFAULT_FILE, TrainingConfig, train


def test_a_training_is_saved_and_not_repeated(tmp_path: Path) -> None:
    shipped = load_yaml_model(DEFAULT_FILE, TrainingConfig)
    small = shipped.model_copy(update={"rows": 16, "timesteps": 1024})
    content = train(small, seed=1, out=tmp_path)
    assert content["kind"] == KIND and content["training"]["timesteps"] == 1024
    assert train(small, seed=1, out=tmp_path) == content
    with pytest.raises(ConfigError, match="another finished training"):
        train(small, seed=2, out=tmp_path)
    found = play(registry.resolve(f"sb3_maskable_ppo:{tmp_path}"), range(20))
    assert (found["decisions"] >= 1).all() and (found["latency_s"] <= 3.0).all()


def test_the_shipped_network_beats_the_rules() -> None:
    means = {name: play(registry.resolve(name), range(600))["return"] for name in registry.names()}
    best = means.pop("sb3_maskable_ppo")
    for name, other in means.items():
        gained = best - other
        assert gained.mean() > 2.0 * gained.std() / len(gained) ** 0.5, name


def test_wrong_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        registry.resolve(f"sb3_maskable_ppo:{tmp_path}/none")
    content = {"kind": "other", "activation": "tanh", "layers": [49, 15], "training": {}}
    checkpoint.save(tmp_path, {}, content)
    with pytest.raises(ConfigError, match="kind is 'other'"):
        registry.resolve(f"sb3_maskable_ppo:{tmp_path}")
    checkpoint.save(tmp_path, {}, {**content, "kind": KIND, "layers": [4, 15]})
    with pytest.raises(ConfigError, match="must start with 49"):
        registry.resolve(f"sb3_maskable_ppo:{tmp_path}")
