"""Cells and suites of routing: workloads x arrival rates x budgets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from inframind_gym.benchmark.cells import Axis, BaseCell, Place, content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.provenance import file_hash
from inframind_gym.benchmark.suite import BaseSuite, absolute, check_axis, check_names, name_of
from inframind_gym.configs import StrictModel, list_configs, within
from inframind_gym.envs.routing.config import RANGES
from inframind_gym.errors import require_within, unknown
from inframind_gym.live.settings import LiveSettings
from inframind_gym.simulator.posterior import split_draw

MIXED = "mixed"  # the workload that a folder of tasks replaces by its datasets

Budget = float | Literal["tiers"]


def _checked_budget(value: Any) -> Budget:
    return "tiers" if value == "tiers" else require_within(value, *RANGES["budget_s"])


Rate = Annotated[float, within(*RANGES["arrival_rate_per_min"])]
NumQueries = Annotated[int, within(*RANGES["num_queries"])]
Budgets = Annotated[
    tuple[Annotated[Budget, BeforeValidator(_checked_budget)], ...],
    Field(min_length=1),
    AfterValidator(check_axis),
]


def budget_text(budget_s: Budget) -> str:
    """Format a budget."""
    return budget_s if isinstance(budget_s, str) else f"{budget_s:g} s"


def _read_budget(value: Any) -> Budget:
    return "tiers" if value == "tiers" else float(value)


@dataclass(frozen=True, slots=True)
class RoutingCell(BaseCell):
    """One policy that routes one episode of queries.

    Attributes:
        workload: Name of a workload; a file goes by its own (`name_of`). Of draw 7 of its quality
            `math#7`.
        rate_per_min: Mean arrival rate.
        budget_s: Latency budget of every query, or "tiers": drawn per query from the workload's
            tiers.
    """

    axes: ClassVar[tuple[Axis, ...]] = (
        Axis("workload", "workloads", "workload", "by_workload", is_file=True),
        Axis("rate_per_min", "rates_per_min", "rate/min", "by_rate", False, "{:g}".format, float),
        Axis("budget_s", "budgets_s", "budget", "by_budget", False, budget_text, _read_budget),
    )
    fixed_axes: ClassVar[int] = 1

    policy: str
    workload: str
    rate_per_min: float
    budget_s: Budget
    seed: int

    @classmethod
    def without_draw(cls, place: Place) -> tuple[Place, int | None]:
        """Return a place with `math` for `math#7`, and 7."""
        workload, draw = split_draw(place[0])
        return (workload, *place[1:]), draw


class WorkloadSettings(StrictModel):
    """Settings of one workload that replace the suite's; None leaves the suite's.

    Attributes:
        budgets_s: See `RoutingSuite`.
        num_queries: See `RoutingSuite`.
    """

    budgets_s: Budgets | None = None
    num_queries: NumQueries | None = None


class RoutingSuite(BaseSuite):
    """A suite of `InfraMind-Stream-v0`.

    Attributes:
        kind: "routing".
        pool: Name or path of the pool of servers.
        workloads: Names or paths of workloads.
        quality_draws: Number of draws of the workloads' quality from its posterior (`posterior.py`)
            under each of which every cell is played, 0, 1, ...; null plays the fitted values.
        rates_per_min: Mean arrival rates.
        budgets_s: Latency budgets; "tiers" draws every query's budget from the workload's tiers.
        num_queries: Queries of one episode; null takes each workload's own number.
        by_workload: Budgets and numbers of queries of single workloads in place of these; one that
            is a file goes by its name.
        arrivals: An arrival process: "poisson", "burst", "sustained", or a mapping such as
            ``{kind: trace, path: arrivals.csv, rescale: true}``.
        execution: Order of a workflow's calls: "parallel" (the nodes of a wave run at once) or
            "sequential" (one call after the other, the final call not counted: as published); null
            takes each workload's own.
        scheduler: Order of the servers' queues; null takes the pool's.
        tasks: "builtin", or a folder of questions.
        split: Part of the tasks that is asked.
        system_features: Telemetry of the servers that a policy observes.
        metrics_poll_s: Seconds between two polls of it; null takes the pool's.
        down_models: Aliases of models that are out of service.
        backend: "surrogate", or "vllm": the pool's live servers, on the wall clock.
        live: Settings of calls to live servers.
    """

    cell: ClassVar = RoutingCell

    kind: Literal["routing"] = "routing"
    pool: str = "b200-2gpu"
    workloads: tuple[str, ...] = Field(min_length=1)
    quality_draws: Annotated[int, within(1, 1000)] | None = Field(
        None, exclude_if=lambda draws: draws is None
    )
    rates_per_min: tuple[Rate, ...] = Field(min_length=1)
    budgets_s: Budgets
    num_queries: NumQueries | None = None
    by_workload: dict[str, WorkloadSettings] = Field(default_factory=dict)
    arrivals: str | dict[str, Any] = "poisson"
    execution: Literal["parallel", "sequential"] | None = None
    scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None
    tasks: str = "builtin"
    split: Literal["train", "val", "test", "all"] = "test"
    system_features: tuple[str, ...] = ("queue", "e2e")
    metrics_poll_s: Annotated[float, within(*RANGES["metrics_poll_s"])] | None = None
    down_models: tuple[str, ...] = ()
    backend: Literal["surrogate", "vllm"] = "surrogate"
    live: LiveSettings = LiveSettings()

    def places(self) -> Iterator[Place]:
        """Yield every workload at every rate with every budget."""
        for workload in self.names("workloads"):
            yield from itertools.product((workload,), self.rates_per_min, self.budgets_of(workload))

    def budgets_of(self, workload: str) -> tuple[Budget, ...]:
        """Return the budgets with which a workload is played."""
        own = self._own(workload)
        return self.budgets_s if own is None or own.budgets_s is None else own.budgets_s

    def queries_of(self, workload: str) -> int | None:
        """Return the queries of an episode of a workload; None: its own number."""
        own = self._own(workload)
        return self.num_queries if own is None or own.num_queries is None else own.num_queries

    def _own(self, workload: str) -> WorkloadSettings | None:
        return self.by_workload.get(split_draw(name_of(workload))[0])

    def length(self, cell: RoutingCell) -> int:
        """Return the queries of an episode."""
        from inframind_gym.simulator.workload import load_workload

        workload = self.source("workloads", cell.workload)
        return self.queries_of(cell.workload) or load_workload(workload).num_queries

    def overridden(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Replace settings, those of single workloads included."""
        played = [name_of(workload) for workload in given.get("workloads", self.workloads)]
        own = {
            name: {key: None if key in given else value for key, value in settings}
            for name, settings in self.by_workload.items()
            if name in played
        }
        return {**self.model_dump(), "by_workload": own, **given}

    def resolve(self) -> Self:
        """Check all that the suite names; a folder's datasets replace the mixed workload.

        Raises:
            InfraMindError: A pool, workload, arrival process or folder of tasks cannot be used.
        """
        from inframind_gym.simulator.arrivals import make_arrivals
        from inframind_gym.simulator.server.pool import load_pool

        load_pool(self.pool)
        update: dict[str, Any] = {"pool": absolute(self.pool)}
        arrivals = make_arrivals(self.arrivals).to_json()
        if "path" in arrivals:
            update["arrivals"] = {**arrivals, "path": str(Path(arrivals["path"]).resolve())}
        datasets = None if self.tasks == "builtin" else self._datasets()
        if datasets is not None:
            workloads = self._workloads_for(datasets)
            update |= {"tasks": str(Path(self.tasks).resolve()), "workloads": workloads}
        suite = self.model_copy(update=update)
        if suite.quality_draws is not None:
            suite = suite._with_draws(suite.quality_draws)
        suite._check_workloads(datasets)
        return super(RoutingSuite, suite).resolve()

    def _with_draws(self, count: int) -> Self:
        """Return the suite with `math#0`, `math#1`, ... in place of `math`."""
        for name in self.workloads:
            if split_draw(name)[1] is not None:
                raise BenchmarkError(f"quality_draws: {name} is a draw already. Take either out.")
        drawn = tuple(f"{name}#{draw}" for name in self.workloads for draw in range(count))
        return self.model_copy(update={"workloads": drawn, "quality_draws": None})

    def _datasets(self) -> tuple[str, ...]:
        """Return the datasets in the folder of tasks."""
        from inframind_gym.tasks import load_tasks

        if not Path(self.tasks).is_dir():
            raise BenchmarkError(f"--tasks: there is no folder {self.tasks}.")
        return tuple(dict.fromkeys(load_tasks(self.tasks, split=self.split).datasets))

    def _workloads_for(self, datasets: tuple[str, ...]) -> tuple[str, ...]:
        found = [w for name in self.workloads for w in (datasets if name == MIXED else (name,))]
        for name in found:
            if name in datasets and name not in list_configs("workloads"):
                message = unknown("workload", name, list_configs("workloads"))
                raise BenchmarkError(
                    f"{self.tasks} holds questions of {name!r}: {message} Write a workload for "
                    "them and name its file with --workloads."
                )
        workloads = tuple(dict.fromkeys(found))
        check_names(workloads)
        return workloads

    def _check_workloads(self, datasets: tuple[str, ...] | None) -> None:
        from inframind_gym.simulator.server.pool import load_pool
        from inframind_gym.simulator.workload import load_profiles, load_workload

        aliases = load_pool(self.pool).aliases
        for name in self.workloads:
            workload = load_workload(name)
            for part in load_profiles(workload).values():
                part.profile.require_models(aliases)
            dataset = workload.dataset
            if datasets is not None and dataset is not None and dataset not in datasets:
                raise BenchmarkError(
                    f"workload {name} asks questions of {dataset!r}; {self.tasks} has those of "
                    f"{', '.join(datasets) or 'nothing'}."
                )

    def settings(self) -> dict[str, Any]:
        """Return the settings with hashes of pool, tasks and trace in place of their paths."""
        from inframind_gym.simulator.arrivals import make_arrivals
        from inframind_gym.simulator.server.pool import load_pool

        arrivals = make_arrivals(self.arrivals).to_json()
        if "path" in arrivals:
            arrivals["path"] = file_hash(Path(arrivals["path"]))
        lengths = {workload: own.num_queries for workload, own in self.by_workload.items()}
        return {
            **super().settings(),
            "pool": content_hash(load_pool(self.pool).model_dump(mode="json")),  # not its comments
            "tasks": self.tasks if self.tasks == "builtin" else tasks_hash(Path(self.tasks)),
            "arrivals": arrivals,
            "by_workload": lengths,
        }

    def fingerprint(self, setting: str, name: str) -> str:
        """Hash a workload's settings and those of the workloads that it mixes."""
        from inframind_gym.simulator.workload import load_profiles, load_workload

        workload = load_workload(self.source(setting, name))
        profiles = {
            dataset: [part.weight, part.profile.model_dump(mode="json")]
            for dataset, part in load_profiles(workload).items()
        }
        return content_hash([workload.model_dump(mode="json"), profiles])

    @model_validator(mode="after")
    def _plays_what_it_sets(self) -> Self:
        known = {split_draw(name)[0] for name in self.names("workloads")}
        for name in self.by_workload:
            if name not in known:
                message = unknown("workload", name, sorted(known))
                raise ValueError(f"by_workload: {message}")
        return self


def tasks_hash(folder: Path) -> str:
    """Hash the files of a folder of questions."""
    files = (path for path in folder.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    return content_hash([[path.name, file_hash(path)] for path in sorted(files)])
