r"""Trains Stable-Baselines3's PPO on InfraMind-Assignment-v0 and exports what acts.

    python -m baselines.assignment_ppo --load window --out runs/assignment_ppo/window
    inframind bench run --suite assignment_quick \
        --policies sb3_ppo:runs/assignment_ppo/window,myopic --out results/ppo

The two forms of load have observations of different sizes: a training, and a checkpoint, for each.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import gymnasium as gym
import numpy as np
import typer
from pydantic import Field

import inframind_gym  # noqa: F401
from baselines.hyperparameters import PpoArguments
from inframind_gym.configs import PositiveInt, StrictModel, load_yaml_model
from inframind_gym.errors import friendly, require
from inframind_gym.policies import checkpoint
from inframind_gym.policies.assignment.ppo import KIND
from inframind_gym.teams.assignment.names import Arrivals

DEFAULT_FILE: Final = Path(__file__).with_name("assignment_ppo.yaml")
ENV_ID: Final = "InfraMind-Assignment-v0"


class TrainingConfig(StrictModel):
    """Settings of a training, `assignment_ppo.yaml`."""

    arrivals: tuple[Arrivals, ...] = Field(min_length=1)  # turns go round them
    rows: PositiveInt  # teams side by side
    timesteps_per_turn: PositiveInt  # decisions of all rows in a turn
    turns: PositiveInt  # how many
    hidden: PositiveInt  # width of the hidden layers
    ppo: PpoArguments  # arguments of the algorithm


def train(
    config: TrainingConfig, *, load: Literal["window", "queue"], seed: int, out: Path
) -> dict[str, Any]:
    """Train, export and save.

    Args:
        config: as in the file.
        load: form of the environment.
        seed: of network, exploration and environments.
        out: folder of the checkpoint.

    Returns:
        The checkpoint's configuration.

    Raises:
        ConfigError: a package is missing.
    """
    for module in ("torch", "stable_baselines3"):
        require(module, "training", "agents")
    import torch
    from stable_baselines3 import PPO

    from baselines.sb3 import export_network
    from inframind_gym.envs.sb3 import SB3VecEnv

    torch.set_num_threads(1)
    envs = {
        arrivals: SB3VecEnv(
            gym.make_vec(
                ENV_ID, num_envs=config.rows, arrivals=arrivals, load=load, observation="flat"
            )
        )
        for arrivals in config.arrivals
    }
    widths = [config.hidden, config.hidden]
    model = PPO(
        "MlpPolicy",
        envs[config.arrivals[0]],
        policy_kwargs={"net_arch": {"pi": widths, "vf": widths}},
        seed=seed,
        device="cpu",
        **config.ppo.model_dump(),
    )
    began, last = time.monotonic(), dict.fromkeys(config.arrivals, 0.0)
    for turn, arrivals in enumerate(
        itertools.islice(itertools.cycle(config.arrivals), config.turns), start=1
    ):
        model.set_env(envs[arrivals])
        model.learn(config.timesteps_per_turn, reset_num_timesteps=False)
        returns = list(envs[arrivals].costs.return_queue)[-config.rows :]
        last[arrivals] = round(float(np.mean(returns)) if returns else 0.0, 3)
        print(
            f"turn {turn} of {config.turns}: {arrivals}: return {last[arrivals]:.2f}, "
            f"{turn * config.timesteps_per_turn} decisions in {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    content = {
        "kind": KIND,
        "hidden": config.hidden,
        "load": load,
        "training": {
            "command": f"python -m baselines.assignment_ppo --load {load} --seed {seed}",
            "settings": config.model_dump(mode="json"),
            "timesteps": config.turns * config.timesteps_per_turn,
            "last_mean_return": last,
        },
    }
    checkpoint.save(out / "checkpoint", export_network(model)[0], content)
    return content


def main(
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
    load: Annotated[str, typer.Option(help="Form of the environment: window or queue.")] = "window",
    seed: Annotated[int, typer.Option(help="Of network, exploration and environments.")] = 0,
    settings: Annotated[Path, typer.Option(help="YAML file.")] = DEFAULT_FILE,
) -> None:
    """Train PPO on InfraMind-Assignment-v0 and export its policy."""
    with friendly():
        form: Literal["window", "queue"] = "queue" if load == "queue" else "window"
        config = train(load_yaml_model(settings, TrainingConfig), load=form, seed=seed, out=out)
    print(f"{out}: {config['training']['timesteps']} decisions")


if __name__ == "__main__":
    typer.run(main)
