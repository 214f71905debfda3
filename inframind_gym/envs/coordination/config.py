"""Checks of the arguments of `InfraMind-Coordination-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from inframind_gym.configs import Fraction, StrictModel, validate, within
from inframind_gym.teams.coordination.settings import DEFAULT, CoordinationSettings, load_settings


class CoordinationConfig(StrictModel):
    """Arguments of `CoordinationEnv`, described there, with the values that they may have."""

    team: str = DEFAULT
    conversation: bool | Fraction = False
    supervisor: Literal["rule", "model"] = "rule"
    max_num_seqs: Annotated[int, within(1, 64)] | None = None
    prefill_tokens_per_s: Annotated[float, within(1.0, 1e6)] | None = None
    noise: bool = True
    fallback: bool = True
    trim: Literal["both_ends", "newest"] = "both_ends"

    def settings(self) -> CoordinationSettings:
        """Return the team's constants with the server of these arguments.

        Raises:
            ConfigError: there is no such team.
        """
        settings = load_settings(self.team)
        given: dict[str, float | None] = {
            "max_num_seqs": self.max_num_seqs,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if not changes:
            return settings
        return settings.model_copy(update={"server": settings.server.model_copy(update=changes)})


def coordination_config(arguments: Mapping[str, Any]) -> CoordinationConfig:
    """Check the environment's arguments.

    Raises:
        ConfigError: an argument is unknown or has an impossible value; says what is possible.
    """
    return validate(dict(arguments), CoordinationConfig, source="environment")
