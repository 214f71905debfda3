"""The trained placement: NumPy plays what PyTorch has trained, on any cluster."""

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401
from inframind_gym.envs.placement_kernel import observation_size
from inframind_gym.policies.mlp import (
    INPUTS,
    PARTS,
    MaskablePpoPlacement,
    layer_shapes,
    placement_logits,
    take_apart,
)


def tensors(hidden: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [layer_shapes((INPUTS[part], hidden, hidden, 1), part) for part in PARTS]
    return {k: rng.normal(size=of).astype("f4") for each in shapes for k, of in each.items()}


def observations(gpus: int, models: int, rows: int = 2) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.random((rows, observation_size(gpus, models))).astype(np.float32)


def test_pytorch_and_numpy_score_alike() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("sb3_contrib")
    from gymnasium import spaces

    from baselines.sb3 import ScorerPolicy, export_scorer

    gpus, models = 3, 5
    seen = observations(gpus, models)
    policy = ScorerPolicy(
        spaces.Box(0, 5, seen.shape[1:], np.float32),
        spaces.MultiDiscrete([models + 1] * gpus),
        lambda _: 1e-3,
        hidden=8,
        keep_bias=2.0,
    )
    with torch.no_grad():
        theirs = policy.action_net(policy.mlp_extractor.forward_actor(torch.tensor(seen)))
    ours = placement_logits(export_scorer(policy), seen, gpus, models)
    assert ours.shape == (2, gpus, models + 1)
    assert np.allclose(ours.reshape(2, -1), theirs.numpy(), atol=1e-5)
    assert ours[..., 0].mean() - ours[..., 1:].mean() == pytest.approx(2.0, abs=0.3)


def test_scores_follow_gpus_and_models_wherever_they_stand() -> None:
    gpus, models = 3, 5
    seen = observations(gpus, models)
    parts = take_apart(seen, gpus, models)
    of_gpus, of_models = np.array([2, 0, 1]), np.array([4, 2, 0, 1, 3])
    bits = parts.bits[:, of_gpus][:, :, of_models].reshape(2, gpus, -1)
    moved = np.concatenate([bits, parts.gpu[:, of_gpus]], axis=-1).reshape(2, -1)
    moved = np.concatenate([moved, parts.model[:, of_models].reshape(2, -1)], axis=-1)
    before, after = (placement_logits(tensors(), x, gpus, models) for x in (seen, moved))
    assert np.allclose(after[..., 0], before[:, of_gpus, 0])
    assert np.allclose(after[..., 1:], before[..., 1:][:, of_gpus][:, :, of_models])


def test_the_shipped_policy_plays_every_size_legally() -> None:
    policy = MaskablePpoPlacement()
    assert sum(path.stat().st_size for path in policy.folder.iterdir()) < 100_000
    for cluster in ("h100-4gpu", "h100-16gpu", "h100-64gpu"):
        env = gym.make_vec("InfraMind-Placement-v0", num_envs=2, cluster=cluster)
        seen, _ = env.reset(seed=3)
        policy.reset(env.unwrapped.policy_spec(), [1, 2])
        for _ in range(4):
            actions = policy.act_batch(seen, env.unwrapped.contexts(), np.arange(2))
            seen, _, _, _, infos = env.step(actions)
            assert not infos["illegal"].any()
