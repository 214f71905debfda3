"""Checks of the arguments of `InfraMind-Assignment-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import model_validator

from inframind_gym.configs import StrictModel, validate, within
from inframind_gym.teams.assignment.names import Arrivals
from inframind_gym.teams.assignment.settings import DEFAULT_TEAM

DEFAULT_POOL: Final = "team-4gpu"
MOST_TASKS: Final = 1_000_000

Load = Literal["window", "queue"]
Episode = Literal["run", "request"]
Observation = Literal["full", "flat", "tabular"]


class AssignmentConfig(StrictModel):
    """Arguments of `AssignmentEnv`, described there, with the values that they may have."""

    team: str = DEFAULT_TEAM
    arrivals: Arrivals = "uniform"
    load: Load = "window"
    observation: Observation = "full"
    num_tasks: Annotated[int, within(1, MOST_TASKS)] = 50
    episode: Episode = "run"
    pool: str = DEFAULT_POOL
    arrival_rate_per_min: Annotated[float, within(0.001, 1e6)] = 240.0

    @model_validator(mode="after")
    def _forms(self) -> AssignmentConfig:
        if self.episode == "request" and self.load == "queue":
            raise ValueError(
                "episode 'request' ends with its task, which load 'queue' answers later; use load "
                "'window', or episode 'run'"
            )
        return self

    @property
    def queues(self) -> bool:
        """True if tasks are served by servers with queues."""
        return self.load == "queue"


def assignment_config(arguments: Mapping[str, Any]) -> AssignmentConfig:
    """Check the environment's arguments.

    Raises:
        ConfigError: an argument is unknown or has an impossible value; says what is possible.
    """
    return validate(dict(arguments), AssignmentConfig, source="environment")
