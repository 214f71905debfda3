"""The coordinates of a placement: a policy on a cluster under a demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from inframind_gym.benchmark.cells import Axis, BaseCell


@dataclass(frozen=True, slots=True)
class PlacementCell(BaseCell):
    """One policy on one episode of a cluster.

    Attributes:
        policy: Name or ``package.module:Class``.
        cluster: Name of a cluster; a file goes by its own (`inframind_gym.benchmark.suite.name_of`).
        demand: Name of a demand, likewise.
        seed: Index of the repetition.
    """

    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("cluster", "cluster", "by_cluster"),
        Axis("demand", "demand", "by_demand"),
    )

    policy: str
    cluster: str
    demand: str
    seed: int

    @property
    def room(self) -> tuple[str, ...]:
        """Rows of one environment have this in common."""
        return (self.policy, self.cluster, self.demand)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> PlacementCell:
        """The inverse of `to_json`; further keys are ignored."""
        return cls(
            str(record["policy"]),
            str(record["cluster"]),
            str(record["demand"]),
            int(record["seed"]),
        )

    def __str__(self) -> str:
        return f"{self.policy} on {self.cluster}, {self.demand}, seed {self.seed}"
