r"""Trains sb3-contrib's MaskablePPO on InfraMind-TokenBudget-v0 and exports what acts.

    python -m baselines.token_budget_ppo --out runs/token_budget_ppo/seed0

The folder gets `checkpoint/` (safetensors and JSON), which
`sb3_maskable_ppo:runs/token_budget_ppo/seed0` plays with NumPy alone. A training takes about five
minutes on one core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np

import inframind_gym  # noqa: F401
from baselines.hyperparameters import PpoArguments
from baselines.training import asked_for, finished, run
from inframind_gym.configs import Positive, PositiveInt, StrictModel
from inframind_gym.errors import require
from inframind_gym.policies import checkpoint
from inframind_gym.policies.token_budget.ppo import KIND

DEFAULT_FILE: Final = Path(__file__).with_name("token_budget_ppo.yaml")
ENV_ID: Final = "InfraMind-TokenBudget-v0"


class TrainingConfig(StrictModel):
    """Settings of a training, `token_budget_ppo.yaml`."""

    budget: tuple[PositiveInt, PositiveInt]  # least and most tokens of an episode
    price: Positive  # points of quality per token
    rows: PositiveInt  # teams side by side
    timesteps: PositiveInt  # decisions of all rows
    net_arch: tuple[PositiveInt, ...]  # widths of the hidden layers
    ppo: PpoArguments  # arguments of the algorithm


def train(config: TrainingConfig, *, seed: int, out: Path) -> dict[str, Any]:
    """Train MaskablePPO on InfraMind-TokenBudget-v0, export what acts and save it.

    Args:
        config: as in the file.
        seed: of network, exploration and environments.
        out: folder of the checkpoint.

    Returns:
        The checkpoint's configuration.

    Raises:
        ConfigError: a package is missing, or `out` holds another finished training.
    """
    for module in ("torch", "sb3_contrib"):
        require(module, "training", "agents")
    import torch
    from sb3_contrib import MaskablePPO

    from baselines.sb3 import export_network
    from inframind_gym.envs.sb3 import SB3VecEnv

    asked = asked_for("token_budget_ppo", config, seed)
    if done := finished(out, asked):
        return done
    torch.set_num_threads(1)
    envs = SB3VecEnv(
        gym.make_vec(ENV_ID, num_envs=config.rows, budget=list(config.budget), price=config.price)
    )
    model = MaskablePPO(
        "MlpPolicy",
        envs,
        policy_kwargs={"net_arch": list(config.net_arch)},
        seed=seed,
        device="cpu",
        **config.ppo.model_dump(),
    )
    model.learn(config.timesteps)
    tensors, network = export_network(model)
    returns = list(envs.costs.return_queue)
    content = {
        "kind": KIND,
        **network,
        "price": config.price,
        "training": {
            **asked,
            "timesteps": int(model.num_timesteps),
            "last_mean_return": round(float(np.mean(returns)), 4) if returns else None,
        },
    }
    checkpoint.save(out / "checkpoint", tensors, content)
    envs.close()
    return content


if __name__ == "__main__":
    run(train, TrainingConfig, DEFAULT_FILE)
