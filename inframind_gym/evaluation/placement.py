"""The family of `InfraMind-Placement-v0`: policies that place models on GPUs."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inframind_gym.configs import Positive, PositiveInt
from inframind_gym.evaluation.cells import Axis, Cell, Place, content_hash
from inframind_gym.evaluation.metrics import Columns, Layout, Metric, by_name
from inframind_gym.evaluation.play import Batch, Fields
from inframind_gym.evaluation.suite import Suite
from inframind_gym.simulator.placement.config import load_cluster, load_demand
from inframind_gym.simulator.placement.state import C_LOADS, C_WAKES, NONE

METRICS: Final = by_name(
    # Request-seconds of calls, waiting and in servers, over the calls that became ready, also those
    # that were never served
    Metric("call_latency_s", "call", "s", "lower", part="request_s", whole="calls"),
    Metric("slo", "SLO", "%", "higher", part="late", whole="arrived", complement=True),
    Metric("job_latency_mean_s", "job", "s", "lower", part="job_latency_s", whole="jobs"),
    Metric("job_latency_p95_s", "job p95", "s", "lower", tail_of="job_latency_s"),
    Metric("finished", "done", "%", "higher", part="jobs", whole="arrived"),
    Metric(
        "switches_per_gpu_hour", "switches\n/GPU h", part="switches", whole="gpu_s", scale=3600.0
    ),
    Metric("illegal_share", "illegal", "%", "lower", part="illegal", whole="choices"),
    Metric("serving_share", "serving", "%", part="serving", whole="choices"),
)
FIELDS: Final = (  # numbers of a decision that are summed
    "request_s",
    "calls",
    "arrived",
    "late",
    "illegal",
    "choices",
    "switches",
    "gpu_s",
    "serving",
    "jobs",
)


class DecisionLayout(Layout):
    """Layout of a row of sums over decisions."""

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Names of the columns of the table."""
        return (*FIELDS, "job_latency_s")

    def derived(self, columns: Columns) -> dict[str, NDArray[Any]]:
        """Return the latencies of the jobs that ended in each interval, (num_decisions,)."""
        latency_s, decision = self.values(columns)
        return {"job_latency_s": np.bincount(decision, latency_s, minlength=len(columns["jobs"]))}

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the latencies of the jobs that ended, and the decision in whose interval."""
        jobs = columns["jobs"]
        return columns["job_latency_s"], np.repeat(np.arange(len(jobs)), jobs)


class PlacementBatch(Batch):
    """Clusters; a record is a decision, with what happened in its interval."""

    def begin(self) -> None:
        """Start with no record."""
        self._records: dict[str, list[NDArray[Any]]] = {name: [] for name in FIELDS}
        self._latencies: list[list[NDArray[np.float64]]] = [[] for _ in self.cells]
        self._totals = self._count()

    def _count(self) -> dict[str, NDArray[np.int64]]:
        """Return calls, jobs that arrived and switches so far, (E,)."""
        episode = self.simulation.state.episode
        switches = episode["counter"][:, C_WAKES] + episode["counter"][:, C_LOADS]
        counts = {"calls": episode["requests_made"], "arrived": episode["next_job"]}
        return {k: v.astype(np.int64) for k, v in {**counts, "switches": switches}.items()}

    def note(self, rows: NDArray[np.int64]) -> int:
        """Take the records of a decision in all rows, whose episodes are equally long."""
        simulation, before = self.simulation, self._totals
        self._totals, episode, config = self._count(), simulation.state.episode, simulation.config
        for row, latencies in enumerate(self._latencies):
            latencies.append(simulation.completed(row)["latency_s"])
        every, gpus = np.ones(len(rows), np.int64), simulation.num_gpus
        seconds = (np.maximum(episode[name], 0.0) for name in ("waiting_s", "service_s"))
        for name, values in {
            "request_s": sum(seconds),
            **{name: self._totals[name] - before[name] for name in before},
            "late": episode["late"].astype(np.int64),
            "illegal": episode["illegal"].astype(np.int64),
            "choices": every * gpus,
            "gpu_s": every * (gpus * config.ticks * config.routing_interval_s),
            "serving": (simulation.state.host != NONE).sum(axis=1),
            "jobs": np.array([len(latencies[-1]) for latencies in self._latencies]),
        }.items():
            self._records[name].append(values)
        return len(rows)

    def columns(self, row: int) -> Fields:
        """Return the decisions of a row.

        "jobs" counts those that ended in a decision's interval; "job_latency_s" has the latencies
        of all, ``(num_jobs,)``.
        """
        number = np.arange(len(self._latencies[row]))
        numbers = {name: np.stack(values)[:, row] for name, values in self._records.items()}
        latencies_s = np.concatenate(self._latencies[row])
        return {"decision": number, **numbers, "job_latency_s": latencies_s}


class PlacementSuite(Suite):
    """A suite of `InfraMind-Placement-v0`."""

    env_id: ClassVar = "InfraMind-Placement-v0"
    players: ClassVar = "placement"
    axes: ClassVar = (
        Axis("cluster", "clusters", "cluster", "On {}", is_file=True),
        Axis(
            "demand",
            "demands",
            "demand",
            "Mean latency of a call, s, by demand (SLO %)",
            is_file=True,
        ),
    )
    together: ClassVar = 2
    metrics: ClassVar = METRICS
    layout_class: ClassVar = DecisionLayout
    score: ClassVar = "call_latency_s"
    beside: ClassVar = "slo"
    main: ClassVar = tuple(METRICS)
    compared: ClassVar = ("call_latency_s", "slo", "job_latency_mean_s", "switches_per_gpu_hour")
    unit: ClassVar = "decisions"
    caption: ClassVar = (
        "Means over {cells} (cluster x demand) ± half of the 95 % interval; lowest mean latency of "
        "a call first. call s: request-seconds over calls, those that were never served included; "
        "SLO: share of jobs whose deadline did not pass; job s, job p95 s: of jobs that ended; "
        "done: their share of all jobs; of bound: the bound's latency over the policy's."
    )
    batch: ClassVar = PlacementBatch

    kind: Literal["placement"] = "placement"
    clusters: tuple[str, ...] = Field(min_length=1)  # names or paths of clusters
    demands: tuple[str, ...] = Field(min_length=1)  # names or paths of demands
    load: Positive = 1.0  # factor on the demands' rates
    num_decisions: PositiveInt = 120  # decisions of one episode

    def length(self, cell: Cell) -> int:
        """Return the decisions of an episode."""
        return self.num_decisions

    def resolve(self) -> Self:
        """Check all that the suite names.

        Raises:
            InfraMindError: A cluster or demand cannot be used.
        """
        for cluster in self.clusters:
            load_cluster(cluster)
        for demand in self.demands:
            load_demand(demand)
        return super().resolve()

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash a cluster with its models' cards, or a demand."""
        source = self.source(setting, name)
        if setting == "clusters":
            cluster, cards = load_cluster(source)
            return content_hash([part.model_dump(mode="json") for part in (cluster, *cards)])
        return content_hash([load_demand(source).model_dump(mode="json"), ""])  # "": no trace

    def env_kwargs(self, place: Place, policy: Any = None) -> dict[str, Any]:
        """Return the JSON arguments of the environment of a place."""
        return {
            "cluster": self.source("clusters", place[0]),
            "demand": self.source("demands", place[1]),
            "load": self.load,
            "num_decisions": self.num_decisions,
        }
