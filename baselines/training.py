"""Parts that the trainings of baselines share: a training that has finished, and the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from inframind_gym.configs import StrictModel, load_yaml_model
from inframind_gym.errors import ConfigError, friendly
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
