"""PPO on assignment: a training exports what its player computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baselines.assignment_ppo import DEFAULT_FILE, TrainingConfig, train
from inframind_gym.configs import load_yaml_model
from inframind_gym.errors import ConfigError
from inframind_gym.policies import checkpoint
from inframind_gym.policies.assignment import registry
from inframind_gym.policies.perceptron import forward
from inframind_gym.policies.rollout import play_assignment as play

torch: Any = pytest.importorskip("torch")
sb3: Any = pytest.importorskip("stable_baselines3")


def test_a_short_training_is_played(tmp_path: Path) -> None:
    shipped = load_yaml_model(DEFAULT_FILE, TrainingConfig)
    small = {"rows": 4, "timesteps_per_turn": 200, "turns": 2, "hidden": 8}
    config = shipped.model_copy(update=small)
    content = train(config, load="queue", seed=0, out=tmp_path)
    assert content["training"]["timesteps"] == 400
    policy = registry.resolve(f"sb3_ppo:{tmp_path}")
    played = list(play(policy, [0, 1], load="queue", num_tasks=10))
    assert sum(len(done.row) for done in played) == 20
    with pytest.raises(ConfigError, match="trained for load 'queue', not 'window'"):
        next(play(registry.resolve(f"sb3_ppo:{tmp_path}"), [0]))


def test_the_player_computes_what_was_trained() -> None:
    import gymnasium as gym

    import inframind_gym  # noqa: F401
    from baselines.sb3 import export_network

    env = gym.make("InfraMind-Assignment-v0", observation="flat")
    model = sb3.PPO("MlpPolicy", env, policy_kwargs={"net_arch": [16, 16]}, device="cpu")
    seen = np.random.default_rng(0).random((5, 48)).astype(np.float32)
    with torch.no_grad():
        expected = model.policy.get_distribution(torch.as_tensor(seen)).distribution.logits
    own = forward(export_network(model)[0], seen)
    own -= np.log(np.exp(own).sum(axis=1, keepdims=True))
    assert own == pytest.approx(expected.numpy(), abs=1e-5)


def test_the_shipped_networks_beat_taking_turns() -> None:
    for load in ("window", "queue"):
        means = [
            np.concatenate(
                [done.reward for done in play(registry.resolve(name), range(30), load=load)]
            ).mean()
            for name in ("sb3_ppo", "round_robin")
        ]
        assert means[0] > means[1] + 0.05


def test_wrong_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no checkpoint"):
        registry.resolve(f"sb3_ppo:{tmp_path}/none")
    checkpoint.save(tmp_path, {}, {"kind": "other", "hidden": 8, "load": "queue", "training": {}})
    with pytest.raises(ConfigError, match="kind is 'other'"):
        registry.resolve(f"sb3_ppo:{tmp_path}")
