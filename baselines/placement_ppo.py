r"""Trains sb3-contrib's MaskablePPO on InfraMind-Placement-v0 and exports what acts.

    python -m baselines.placement_ppo --out runs/placement_ppo/seed0
    inframind bench run --suite placement_quick \
        --policies sb3_maskable_ppo:runs/placement_ppo/seed0,mcf_plus --out results/ppo

The folder gets `checkpoint/` (safetensors and JSON) after every turn, whole or not at all; a
training that was stopped is started again, one that has finished is left as it is.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from pathlib import Path
from typing import Any, Final

import gymnasium as gym
import numpy as np
from pydantic import Field

import inframind_gym  # noqa: F401
from baselines.hyperparameters import PpoArguments
from baselines.training import asked_for, finished, run
from inframind_gym.configs import NonNegative, PositiveInt, StrictModel
from inframind_gym.errors import require
from inframind_gym.policies import checkpoint

DEFAULT_FILE: Final = Path(__file__).with_name("placement_ppo.yaml")
ENV_ID: Final = "InfraMind-Placement-v0"


class TrainingConfig(StrictModel):
    """Settings of a training, `placement_ppo.yaml`."""

    clusters: tuple[str, ...] = Field(min_length=1)  # names or paths
    # names or paths; turns go round the product of the two
    demands: tuple[str, ...] = Field(min_length=1)
    rows: PositiveInt  # clusters side by side
    timesteps_per_turn: PositiveInt  # decisions of all rows in a turn
    turns: PositiveInt  # how many
    hidden: PositiveInt  # width of the hidden layers
    # logit of leaving a GPU alone at the start, against that of an open choice
    keep_bias: NonNegative
    ppo: PpoArguments  # arguments of the algorithm


def train(config: TrainingConfig, *, seed: int, out: Path) -> dict[str, Any]:
    """Train MaskablePPO on InfraMind-Placement-v0, export what acts and save it.

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
    from stable_baselines3.common.vec_env import VecNormalize

    from baselines.placement_network import ScorerPolicy, export
    from inframind_gym.envs.sb3 import SB3VecEnv

    torch.set_num_threads(1)
    asked = asked_for("placement_ppo", config, seed)
    if done := finished(out, asked, turns=config.turns):
        return done
    places = itertools.islice(
        itertools.cycle(itertools.product(config.demands, config.clusters)), config.turns
    )
    made: dict[tuple[str, str], Any] = {}
    state: dict[str, Any] = {}
    content: dict[str, Any] = {}
    began = time.monotonic()
    timesteps = 0
    for turn, (demand, cluster) in enumerate(places, start=1):
        if (demand, cluster) not in made:
            batch = gym.make_vec(ENV_ID, num_envs=config.rows, cluster=cluster, demand=demand)
            envs = VecNormalize(SB3VecEnv(batch), norm_obs=False, gamma=config.ppo.gamma)
            made[demand, cluster] = MaskablePPO(
                ScorerPolicy,
                envs,
                policy_kwargs={"hidden": config.hidden, "keep_bias": config.keep_bias},
                seed=seed + len(made),
                device="cpu",
                **config.ppo.model_dump(),
            )
        model = made[demand, cluster]
        if state:
            model.policy.load_state_dict(state["policy"])
            model.policy.optimizer.load_state_dict(state["optimizer"])
        model.learn(config.timesteps_per_turn, reset_num_timesteps=False)
        state = {
            "policy": model.policy.state_dict(),
            "optimizer": model.policy.optimizer.state_dict(),
        }
        timesteps += config.timesteps_per_turn
        rewards = model.get_env().venv.costs.return_queue
        mean = float(np.mean(list(rewards)[-config.rows :])) if rewards else math.nan
        content = {
            "kind": "placement_scorer",
            "hidden": config.hidden,
            "training": {
                **asked,
                "turns": turn,
                "timesteps": timesteps,
                "last_mean_return": {
                    **content.get("training", {}).get("last_mean_return", {}),
                    f"{cluster}/{demand}": None if math.isnan(mean) else round(mean, 2),
                },
            },
        }
        checkpoint.save(out / "checkpoint", export(model.policy), content)
        print(
            f"turn {turn} of {config.turns}: {cluster}, {demand}: return {mean:.1f}, "
            f"{timesteps} decisions in {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return content


if __name__ == "__main__":
    run(train, TrainingConfig, DEFAULT_FILE)
