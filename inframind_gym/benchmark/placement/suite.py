"""Cells and suites of placement: clusters x demands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator

from inframind_gym.benchmark.cells import Axis, BaseCell, content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import file_hash
from inframind_gym.benchmark.suite import BaseSuite, check_names
from inframind_gym.configs import Positive, PositiveInt

TRACED = "trace"  # the demand that replays recorded arrivals


@dataclass(frozen=True, slots=True)
class PlacementCell(BaseCell):
    """One policy on one episode of a cluster.

    Attributes:
        cluster: Name of a cluster; a file goes by its own (`name_of`).
        demand: Name of a demand, likewise.
    """

    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("cluster", "clusters", "cluster", "by_cluster", is_file=True),
        Axis("demand", "demands", "demand", "by_demand", is_file=True),
    )
    fixed_axes: ClassVar[int] = 2

    policy: str
    cluster: str
    demand: str
    seed: int


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

    cell: ClassVar = PlacementCell

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
            "must be the CSV file of a trace: other arrivals belong to the demand, choose it with "
            "--demands"
        )

    def length(self, cell: PlacementCell) -> int:
        """Return the decisions of an episode."""
        return self.num_decisions

    def resolve(self) -> Self:
        """Check all that the suite names; recorded arrivals add the demand that replays them.

        Raises:
            InfraMindError: A cluster, demand or trace cannot be used.
        """
        from inframind_gym.simulator.placement.cards import load_cluster
        from inframind_gym.simulator.placement.demand import load_demand
        from inframind_gym.simulator.traces import load_trace

        for cluster in self.clusters:
            load_cluster(cluster)
        for demand in self.demands:
            load_demand(demand)
        if self.arrivals is None:
            if TRACED in self.demands:
                raise BenchmarkError(
                    f"the demand {TRACED!r} replays recorded arrivals: name a CSV file of them "
                    "with --arrivals, or leave it out with --demands."
                )
            return super().resolve()
        path = Path(self.arrivals).resolve()
        if not path.is_file():
            raise BenchmarkError(f"--arrivals: there is no file {self.arrivals}")
        load_trace(path)
        demands = tuple(dict.fromkeys((*self.demands, TRACED)))
        check_names(demands)
        traced = self.model_copy(update={"arrivals": str(path), "demands": demands})
        return super(PlacementSuite, traced).resolve()

    def settings(self) -> dict[str, Any]:
        """Return load and length; recorded arrivals count as content of their demand."""
        return {key: value for key, value in super().settings().items() if key != "arrivals"}

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash a cluster with its models' cards, or a demand with its trace."""
        from inframind_gym.simulator.placement.cards import load_cluster
        from inframind_gym.simulator.placement.demand import load_demand

        given = self.source(setting, name)
        if setting == "clusters":
            cluster, cards = load_cluster(given)
            return content_hash([part.model_dump(mode="json") for part in (cluster, *cards)])
        trace = file_hash(Path(self.arrivals)) if self.arrivals and given == TRACED else ""
        return content_hash([load_demand(given).model_dump(mode="json"), trace])
