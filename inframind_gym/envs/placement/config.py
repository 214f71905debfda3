"""Keyword arguments of `InfraMind-Placement-v0`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import model_validator

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
    validate,
)

DEFAULT_CLUSTER: Final = "h100-8gpu"
DEFAULT_DEMAND: Final = "steady"


class ForeignMemory(StrictModel):
    """Memory that other processes take on the GPUs, which makes starts fail.

    Every `every_s` seconds each GPU's foreign use is drawn anew, uniform in 0..`max_MB` but never
    more than is free at that instant.
    """

    max_MB: NonNegative = 12000.0  # noqa: N815
    every_s: Positive = 30.0


class PlacementConfig(StrictModel):
    """Keyword arguments of the environment; all of them are JSON types.

    Attributes:
        cluster: name or path of a cluster (`envs_configs/placement/clusters`).
        demand: name or path of a demand (`envs_configs/placement/demands`).
        trace: CSV file that a demand of kind "trace" replays.
        load: factor on the demand's rate.
        routing_interval_s: δt1.
        decision_interval_s: δt2, a whole multiple of δt1.
        num_decisions: length of an episode.
        initial: "spread": every block of GPUs begins with a model awake, in the order of the
            cluster's list from a random one on; "empty": nothing is anywhere.
        illegal_penalty: reward lost when all choices of a decision are illegal; a share of them
            loses that share.
        latency_scale_s: seconds in a call that cost a reward of 1.
        ema: weight of a new observation in the times that the agent sees.
        timing_spread: log-normal spread of each model's true times around its card, per episode.
        timing_noise: log-normal spread of each single transition around that.
        foreign_memory: other processes on the GPUs.
    """

    cluster: str = DEFAULT_CLUSTER
    demand: str = DEFAULT_DEMAND
    trace: str | None = None
    load: Positive = 1.0
    routing_interval_s: Positive = 1.0
    decision_interval_s: Positive = 5.0
    num_decisions: PositiveInt = 120
    initial: Literal["spread", "empty"] = "spread"
    illegal_penalty: NonNegative = 0.1
    latency_scale_s: Positive = 10.0
    ema: Fraction = 0.3
    timing_spread: NonNegative = 0.2
    timing_noise: NonNegative = 0.1
    foreign_memory: ForeignMemory = ForeignMemory()

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
    """Check the environment's keyword arguments.

    Raises:
        ConfigError: an argument that is unknown or has an impossible value; says what is possible.
    """
    return validate(dict(arguments), PlacementConfig, source="environment")
