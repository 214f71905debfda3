"""Configurations of trainings, `agents/configs/*.yaml`: what all have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import ConfigDict, model_validator

import inframind_gym
from inframind_gym.configs import (
    Positive,
    PositiveInt,
    StrictModel,
    load_yaml_model,
)
from inframind_gym.envs.routing.layout import SYSTEM_FEATURES
from inframind_gym.errors import ConfigError, did_you_mean

CONFIGS: Final = Path(__file__).resolve().parent / "configs"
CHECKPOINTS: Final = Path(inframind_gym.__file__).resolve().parent / "policies" / "checkpoints"

SystemFeature = Literal["queue", "e2e", "kv", "in_flight"]


class WorldChoice(StrictModel):
    """The world that a policy is trained in; see `inframind_gym.envs.routing.config.EnvConfig`.

    Budgets are drawn from the workload's tiers; tasks come from the split "train", and those of the
    validation from "val".
    """

    pool: str = "b200-2gpu"
    workload: str = "all"
    tasks: str = "builtin"
    arrivals: str | dict[str, Any] = "poisson"
    scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None
    execution: Literal["parallel", "sequential"] | None = None
    agents: dict[str, Any] | None = None
    metrics_poll_s: Positive | None = None  # between two polls of the telemetry; None: the pool's

    def arguments(self, split: str) -> dict[str, Any]:
        """Keyword arguments of the environment."""
        return {**self.model_dump(), "split": split}


class EnvChoice(WorldChoice):
    """The same with the length of a sweep and what is seen of the servers."""

    num_queries: PositiveInt | None = None  # in one sweep; without it the workload's
    system_features: tuple[SystemFeature, ...] = ("queue", "e2e")

    @model_validator(mode="after")
    def _check(self) -> EnvChoice:
        if len(set(self.system_features)) < len(self.system_features):
            raise ValueError(f"system_features names one twice; known: {SYSTEM_FEATURES}")
        return self


class _Header(StrictModel):
    """The one key that every configuration has; the algorithm checks the others."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    algorithm: str


def algorithm_of(path: str | Path) -> str:
    """Which algorithm a configuration file is for.

    Raises:
        ConfigError: the file cannot be read or names none.
    """
    return load_yaml_model(find(path), _Header).algorithm


def find(name_or_path: str | Path) -> Path:
    """A configuration file, from its path or the name of a shipped one.

    Raises:
        ConfigError: there is none.
    """
    path = Path(name_or_path)
    shipped = {p.stem: p for p in sorted(CONFIGS.glob("*.yaml"))}
    if path.is_file():
        return path
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    hint = did_you_mean(path.stem, shipped)
    raise ConfigError(f"{path}: no such file.{hint} Shipped: {', '.join(shipped)}.")


def override(text: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The data of a YAML text with some keys changed; "executor.lr" is a key within a key."""
    data: dict[str, Any] = yaml.safe_load(text) or {}
    for dotted, value in changes.items():
        *outer, last = dotted.split(".")
        inner = data
        for key in outer:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{dotted}: {key} is a value, not a group of keys.")
        inner[last] = value
    return data
