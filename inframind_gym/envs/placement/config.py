"""Checks of the arguments of `InfraMind-Placement-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import model_validator

from inframind_gym.configs import Fraction, StrictModel, validate, within

DEFAULT_CLUSTER: Final = "h100-8gpu"
DEFAULT_DEMAND: Final = "steady"
MOST_TICKS: Final = 10_000  # routing intervals of a decision interval


class ForeignMemory(StrictModel):
    """Memory that other processes take on the GPUs, which makes starts fail.

    Every `every_s` seconds each GPU's foreign use is redrawn, uniform in 0..`max_MB` but never more
    than is free at that instant.
    """

    max_MB: Annotated[float, within(0.0, 1e9)] = 12000.0  # noqa: N815
    every_s: Annotated[float, within(0.01, 1e6)] = 30.0


class PlacementConfig(StrictModel):
    """Arguments of `PlacementEnv`, described there, with the values that they may have."""

    cluster: str = DEFAULT_CLUSTER
    demand: str = DEFAULT_DEMAND
    trace: str | None = None
    load: Annotated[float, within(0.001, 1000.0)] = 1.0
    routing_interval_s: Annotated[float, within(0.01, 3600.0)] = 1.0
    decision_interval_s: Annotated[float, within(0.01, 3600.0)] = 5.0
    num_decisions: Annotated[int, within(1, 1_000_000)] = 120
    initial: Literal["spread", "empty"] = "spread"
    illegal_penalty: Annotated[float, within(0.0, 1e6)] = 0.1
    latency_scale_s: Annotated[float, within(0.001, 1e6)] = 10.0
    ema: Fraction = 0.3
    timing_spread: Annotated[float, within(0.0, 3.0)] = 0.2
    timing_noise: Annotated[float, within(0.0, 3.0)] = 0.1
    foreign_memory: ForeignMemory = ForeignMemory()
    observation: Literal["flat", "dict"] = "flat"

    @model_validator(mode="after")
    def _whole_intervals(self) -> PlacementConfig:
        for name, interval_s in (
            ("decision_interval_s", self.decision_interval_s),
            ("foreign_memory.every_s", self.foreign_memory.every_s),
        ):
            ticks = interval_s / self.routing_interval_s
            if ticks < 1.0 or abs(ticks - round(ticks)) > 1e-9:
                raise ValueError(
                    f"{name} ({interval_s:g}) must be a whole multiple of routing_interval_s "
                    f"({self.routing_interval_s:g})"
                )
        if self.ticks > MOST_TICKS:
            raise ValueError(
                f"decision_interval_s ({self.decision_interval_s:g}) is {self.ticks} times "
                f"routing_interval_s ({self.routing_interval_s:g}); {MOST_TICKS} times at most"
            )
        return self

    @property
    def ticks(self) -> int:
        """Routing intervals of a decision interval."""
        return round(self.decision_interval_s / self.routing_interval_s)

    @property
    def horizon_s(self) -> float:
        """Length of an episode."""
        return self.num_decisions * self.ticks * self.routing_interval_s


def placement_config(arguments: Mapping[str, Any]) -> PlacementConfig:
    """Check the environment's arguments; `foreign_memory` may be None, for its default.

    Raises:
        ConfigError: an argument is unknown or has an impossible value; says what is possible.
    """
    return validate(
        without_none(arguments, "foreign_memory"), PlacementConfig, source="environment"
    )


def without_none(arguments: Mapping[str, Any], *optional: str) -> dict[str, Any]:
    """Leave out those of the arguments `optional` that are None: their defaults hold."""
    return {k: v for k, v in arguments.items() if v is not None or k not in optional}
