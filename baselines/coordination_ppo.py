r"""Trains sb3-contrib's MaskablePPO on InfraMind-Coordination-v0 and exports what acts.

    python -m baselines.coordination_ppo --out runs/coordination_ppo/seed0

The folder gets `checkpoint/` (safetensors and JSON), which
`sb3_maskable_ppo:runs/coordination_ppo/seed0` plays with NumPy alone. Half of the
questions are asked in a conversation. A training takes 3.3 minutes on one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from baselines.training import MaskablePpoConfig, run, train_maskable_ppo
from inframind_gym.policies.coordination.ppo import KIND

DEFAULT_FILE: Final = Path(__file__).with_name("coordination_ppo.yaml")
ENV_ID: Final = "InfraMind-Coordination-v0"


class TrainingConfig(MaskablePpoConfig):
    """Settings of a training, `coordination_ppo.yaml`."""

    environment: dict[str, Any]  # its arguments


def train(config: TrainingConfig, *, seed: int, out: Path) -> dict[str, Any]:
    """Train MaskablePPO on InfraMind-Coordination-v0; see `train_maskable_ppo`."""
    name, content = "coordination_ppo", {"kind": KIND}
    arguments = config.environment
    return train_maskable_ppo(name, ENV_ID, arguments, config, content, seed=seed, out=out)


if __name__ == "__main__":
    run(train, TrainingConfig, DEFAULT_FILE)
