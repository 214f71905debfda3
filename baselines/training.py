"""Parts that the trainings of baselines share: MaskablePPO on a team, a check, the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import typer

import inframind_gym  # noqa: F401
from baselines.hyperparameters import PpoArguments
from inframind_gym.configs import PositiveInt, StrictModel, load_yaml_model
from inframind_gym.errors import ConfigError, friendly, require
from inframind_gym.policies import checkpoint


def finished(out: Path, asked: dict[str, Any], **length: Any) -> dict[str, Any] | None:
    """Return the configuration of a finished training's checkpoint, None where there is none.

    Args:
        out: folder of the training.
        asked: what it was asked for.
        **length: what a training has come to when it has finished, where it saves on its way.

    Raises:
        ConfigError: the folder holds another finished training.
    """
    if not checkpoint.exists(out / "checkpoint"):
        return None
    _, content = checkpoint.load(out / "checkpoint")
    ran = content.get("training", {})
    if not length.items() <= ran.items():
        return None
    if asked.items() <= ran.items():
        return content
    raise ConfigError(f"{out}: holds another finished training; name another folder or delete it")


def asked_for(module: str, config: StrictModel, seed: int) -> dict[str, Any]:
    """Return what a training is asked for, as its checkpoint says."""
    return {
        "command": f"python -m baselines.{module} --seed {seed}",
        "seed": seed,
        "settings": config.model_dump(mode="json"),
    }


class MaskablePpoConfig(StrictModel):
    """Settings that every training of a perceptron with MaskablePPO has."""

    rows: PositiveInt  # teams side by side
    timesteps: PositiveInt  # decisions of all rows
    net_arch: tuple[PositiveInt, ...]  # widths of the hidden layers
    ppo: PpoArguments  # arguments of the algorithm


def train_maskable_ppo(
    module: str,
    env_id: str,
    arguments: dict[str, Any],
    config: MaskablePpoConfig,
    content: dict[str, Any],
    *,
    seed: int,
    out: Path,
) -> dict[str, Any]:
    """Train MaskablePPO on an environment, export what acts and save it.

    Args:
        module: of `baselines`.
        env_id: of the environment.
        arguments: of the environment.
        config: as in the file.
        content: of the checkpoint, besides the network and the training.
        seed: of network, exploration and environments.
        out: folder of the checkpoint.

    Returns:
        The checkpoint's configuration.

    Raises:
        ConfigError: a package is missing, or `out` holds another finished training.
    """
    for package in ("torch", "sb3_contrib"):
        require(package, "training", "agents")
    import torch
    from sb3_contrib import MaskablePPO

    from baselines.sb3 import export_network
    from inframind_gym.envs.sb3 import SB3VecEnv

    asked = asked_for(module, config, seed)
    if done := finished(out, asked):
        return done
    torch.set_num_threads(1)
    envs = SB3VecEnv(gym.make_vec(env_id, num_envs=config.rows, **arguments))
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
    ran = {
        "timesteps": int(model.num_timesteps),
        "last_mean_return": round(float(np.mean(returns)), 4) if returns else None,
    }
    content = {**content, **network, "training": {**asked, **ran}}
    checkpoint.save(out / "checkpoint", tensors, content)
    envs.close()
    return content


def run(train: Callable[..., dict[str, Any]], config: type[StrictModel], default: Path) -> None:
    """Run a training as a command; its options are `out`, `seed` and `settings`.

    Args:
        train: takes a configuration, `seed` and `out`; returns the checkpoint's configuration.
        config: model of the settings.
        default: file of the settings.
    """

    def main(
        out: Annotated[Path, typer.Option(help="Folder of the checkpoint.")],
        seed: Annotated[int, typer.Option(help="Of network, exploration and environments.")] = 0,
        settings: Annotated[Path, typer.Option(help="YAML file.")] = default,
    ) -> None:
        with friendly():
            content = train(load_yaml_model(settings, config), seed=seed, out=out)
        ran = content["training"]
        print(f"{out}: {ran['timesteps']} decisions, last mean return {ran['last_mean_return']}")

    main.__doc__ = (inspect.getdoc(train) or "").partition("\n")[0]
    typer.run(main)
