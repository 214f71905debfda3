r"""Trains sb3-contrib's MaskablePPO on InfraMind-TokenBudget-v0 and exports what acts.

    python -m baselines.token_budget_ppo --out runs/token_budget_ppo/seed0

The folder gets `checkpoint/` (safetensors and JSON), which
`sb3_maskable_ppo:runs/token_budget_ppo/seed0` plays with NumPy alone. A training takes about five
minutes on one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from baselines.training import MaskablePpoConfig, run, train_maskable_ppo
from inframind_gym.configs import Positive, PositiveInt
from inframind_gym.policies.token_budget.ppo import KIND

DEFAULT_FILE: Final = Path(__file__).with_name("token_budget_ppo.yaml")
ENV_ID: Final = "InfraMind-TokenBudget-v0"


class TrainingConfig(MaskablePpoConfig):
    """Settings of a training, `token_budget_ppo.yaml`."""

    budget: tuple[PositiveInt, PositiveInt]  # least and most tokens of an episode
    price: Positive  # points of quality per token


def train(config: TrainingConfig, *, seed: int, out: Path) -> dict[str, Any]:
    """Train MaskablePPO on InfraMind-TokenBudget-v0; see `train_maskable_ppo`."""
    arguments = {"budget": list(config.budget), "price": config.price}
    content = {"kind": KIND, "price": config.price}
    name = "token_budget_ppo"
    return train_maskable_ppo(name, ENV_ID, arguments, config, content, seed=seed, out=out)


if __name__ == "__main__":
    run(train, TrainingConfig, DEFAULT_FILE)
