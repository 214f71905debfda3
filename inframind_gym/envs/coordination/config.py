"""Checks of the arguments of `InfraMind-Coordination-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from inframind_gym.configs import Fraction, StrictModel, validate, within
from inframind_gym.teams.coordination.settings import DEFAULT


class CoordinationConfig(StrictModel):
    """Arguments of `CoordinationEnv`, described there, with the values that they may have."""

    team: str = DEFAULT
    conversation: bool | Fraction = False
    supervisor: Literal["rule", "model"] = "rule"
    max_num_seqs: Annotated[int, within(1, 64)] | None = None
    noise: bool = True
    fallback: bool = True
    trim: Literal["both_ends", "newest"] = "both_ends"


def coordination_config(arguments: Mapping[str, Any]) -> CoordinationConfig:
    """Check the environment's arguments.

    Raises:
        ConfigError: an argument is unknown or has an impossible value; says what is possible.
    """
    return validate(dict(arguments), CoordinationConfig, source="environment")
