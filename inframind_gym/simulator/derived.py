"""Workloads that are like another one but for some sections: ``like: math``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inframind_gym.configs import find_config
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.files import read_yaml


def with_base(content: Mapping[str, Any], path: Path, draw: int | None) -> dict[str, Any]:
    """Return a workload's content with the sections that it takes from another.

    Its own keys replace the other's. Under `models` a name stands for that model of the other.

    Args:
        content: Of a file with the key `like`.
        path: The file, for messages.
        draw: Of the quality's posterior; such workloads have none.

    Raises:
        ConfigError: There is no such workload or model, the other one is a mix or like a third
            one, or a draw is asked for.
    """
    if draw is not None:
        raise ConfigError(f"{path}: has no draws of its quality; play it without #{draw}.")
    base, _ = read_yaml(find_config("workloads", str(content["like"])))
    if not isinstance(base, dict) or not isinstance(base.get("models"), dict):
        raise ConfigError(f"{path}: like: {content['like']} has no profile of its own.")
    own = {key: value for key, value in content.items() if key != "like"}
    models = own.get("models", base["models"])
    if isinstance(models, dict):
        own["models"] = {
            alias: _copied(base["models"], entry, path, alias) if isinstance(entry, str) else entry
            for alias, entry in models.items()
        }
    return {**base, **own}


def _copied(models: Mapping[str, Any], name: str, path: Path, alias: str) -> dict[str, Any]:
    """Return what a model's entry says, without its share of the calls."""
    if name not in models:
        raise ConfigError(f"{path}: models.{alias}: {unknown('model', name, tuple(models))}")
    return {key: value for key, value in models[name].items() if key != "share"}
