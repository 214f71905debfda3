"""Suites of placements: clusters x demands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.placement.cells import PlacementCell
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.configs import Positive, PositiveInt

TRACED = "trace"  # the demand that replays recorded arrivals


class PlacementSuite(BaseSuite):
    """A suite of `InfraMind-Placement-v0`.

    Attributes:
        kind: "placement".
        clusters: Names or paths of clusters.
        demands: Names or paths of demands.
        arrivals: CSV file of recorded arrivals. With one, the demand "trace", which replays it, is
            run after the others; without one it cannot be named among them.
        load: Factor on the demands' rates.
        num_decisions: Decisions of one episode.
    """

    axes: ClassVar = ("policies", "clusters", "demands", "seeds")
    files: ClassVar = ("clusters", "demands")

    kind: Literal["placement"] = "placement"
    clusters: tuple[str, ...] = Field(min_length=1)
    demands: tuple[str, ...] = Field(min_length=1)
    arrivals: str | None = None
    load: Positive = 1.0
    num_decisions: PositiveInt = 120

    @field_validator("arrivals", mode="before")
    @classmethod
    def _file(cls, arrivals: Any) -> Any:
        """Take the mapping ``{kind: trace, path: FILE}`` of routing suites for its file."""
        if isinstance(arrivals, dict):
            if arrivals.get("kind") == "trace" and "path" in arrivals:
                return arrivals["path"]
        elif arrivals is None or str(arrivals).endswith(".csv"):
            return arrivals
        raise ValueError(
            "must be the CSV file of a trace: how jobs come is otherwise the demand's own, "
            "choose it with --demands"
        )

    def places(self) -> Iterator[Place]:
        """Every cluster under every demand."""
        return itertools.product(self.names("clusters"), self.names("demands"))

    def cell(self, policy: str, place: Place, seed: int) -> PlacementCell:
        """The cell of a policy."""
        cluster, demand = place
        return PlacementCell(policy, cluster, demand, seed)
