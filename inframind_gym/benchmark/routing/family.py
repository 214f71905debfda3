"""The family of `InfraMind-Stream-v0`: policies that route queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from inframind_gym.benchmark.cells import BaseCell, Cell, Place
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import ROUTING, Family
from inframind_gym.benchmark.metrics import METRICS, Columns
from inframind_gym.benchmark.routing.limits import fluid_averages
from inframind_gym.benchmark.routing.tables import routing_sheets
from inframind_gym.benchmark.suite import BaseSuite, SuiteConfig, absolute, check_names
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.configs import list_configs
from inframind_gym.errors import unknown

if TYPE_CHECKING:
    from inframind_gym.benchmark.results import Results
    from inframind_gym.benchmark.routing.live import LiveSimulator
    from inframind_gym.benchmark.routing.rollout import Simulator
    from inframind_gym.benchmark.store import CellResult

MIXED = "mixed"  # the workload that a folder of tasks replaces by its datasets


class RoutingFamily(Family):
    """Queries of a workload, at a rate, with a budget."""

    kind = ROUTING
    suite: type[BaseSuite] = SuiteConfig
    cell: type[BaseCell] = Cell
    metrics = METRICS
    score = "goodput"
    compared = ("goodput", "accuracy", "slo_own", "latency_mean_s")
    contents: ClassVar = {"workloads": "workload"}
    unit = "queries"

    def resolve(self, suite: SuiteConfig) -> SuiteConfig:
        """Check all that a suite names; a folder's datasets take the place of the mixed workload.

        Raises:
            InfraMindError: A pool, policy, workload, arrival process or folder of tasks cannot be
                used.
        """
        from inframind_gym.simulator.arrivals import make_arrivals
        from inframind_gym.simulator.server.pool import load_pool
        from inframind_gym.simulator.workload import load_workload
        from inframind_gym.tasks import load_tasks

        load_pool(suite.pool)
        suite = suite.model_copy(update={"pool": absolute(suite.pool)})
        arrivals = make_arrivals(suite.arrivals).to_json()
        if "path" in arrivals:
            arrivals["path"] = str(Path(arrivals["path"]).resolve())
            suite = suite.model_copy(update={"arrivals": arrivals})
        if suite.tasks != "builtin":
            folder = Path(suite.tasks)
            if not folder.is_dir():
                raise BenchmarkError(f"--tasks: there is no folder {folder}.")
            found = tuple(dict.fromkeys(load_tasks(str(folder), split=suite.split).datasets))
            workloads = [
                w for name in suite.workloads for w in (found if name == MIXED else (name,))
            ]
            for name in workloads:
                if name in found and name not in list_configs("workloads"):
                    message = unknown("workload", name, list_configs("workloads"))
                    raise BenchmarkError(
                        f"{folder} holds questions of {name!r}: {message} Write a workload for "
                        "them and name its file with --workloads."
                    )
            workloads = list(dict.fromkeys(workloads))
            check_names(workloads)
            suite = suite.model_copy(
                update={"tasks": str(folder.resolve()), "workloads": tuple(workloads)}
            )
        for name in suite.workloads:
            dataset = load_workload(name).dataset
            if suite.tasks != "builtin" and dataset is not None and dataset not in found:
                raise BenchmarkError(
                    f"workload {name} asks questions of {dataset!r}; {suite.tasks} has those of "
                    f"{', '.join(found) or 'nothing'}."
                )
        return suite

    def resolve_policy(self, name: str) -> Any:
        """A baseline, an agent, or ``package.module:Class``."""
        from inframind_gym.policies import resolve_policy

        return resolve_policy(name)

    def settings(self, suite: SuiteConfig) -> dict[str, Any]:
        """See `inframind_gym.benchmark.provenance.settings`."""
        from inframind_gym.benchmark.provenance import settings

        return settings(suite)

    def fingerprints(self, suite: SuiteConfig) -> dict[str, dict[str, str]]:
        """Hashes of the workloads."""
        from inframind_gym.benchmark.provenance import workload_fingerprint

        return {
            "workloads": {
                name: workload_fingerprint(suite.source("workloads", name))
                for name in suite.names("workloads")
            }
        }

    def header(self, suite: SuiteConfig) -> dict[str, Any]:
        """Names of models, strategies and topologies, and the environments' specs."""
        from inframind_gym.benchmark.routing.rollout import env_spec
        from inframind_gym.simulator.server.pool import load_pool
        from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES

        policies = {name: self.resolve_policy(name) for name in suite.policies}
        return {
            "names": {
                "models": [model.alias for model in load_pool(suite.pool).models],
                "strategies": list(STRATEGIES),
                "topologies": [*TOPOLOGIES, CUSTOM],
            },
            "env_specs": {
                f"{name}/{workload}": env_spec(suite, workload, policy)
                for name, policy in policies.items()
                for workload in suite.names("workloads")
            },
        }

    def episodes(self, suite: SuiteConfig, cell: Cell) -> int:
        """Queries of a sweep."""
        from inframind_gym.simulator.workload import load_workload

        workload = suite.source("workloads", cell.workload)
        return suite.queries_of(cell.workload) or load_workload(workload).num_queries

    def simulator(
        self,
        suite: SuiteConfig,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Simulator:
        """The simulated servers."""
        from inframind_gym.benchmark.routing.rollout import Simulator

        return Simulator(suite, stop, progress)

    def live(
        self, suite: SuiteConfig, stop: Callable[[], bool], **options: Any
    ) -> LiveSimulator | None:
        """The live servers, if the suite is to be run on them."""
        if suite.backend != "vllm":
            return None
        from inframind_gym.benchmark.routing.live import LiveSimulator

        return LiveSimulator(suite, stop, **options)

    def encode(self, cell: Cell, cell_id: str, *content: Any) -> CellResult:
        """See `inframind_gym.benchmark.routing.records`."""
        from inframind_gym.benchmark.routing.records import encode_cell

        return encode_cell(cell, cell_id, *content)

    def layout(self, header: Mapping[str, Any]) -> Columns:
        """Sums over queries."""
        return Columns(**{key: tuple(names) for key, names in header["names"].items()})

    def about(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """Tasks, backend and pool."""
        suite = header["suite"]
        return {
            "tasks": suite["tasks"],
            "backend": suite.get("backend", "surrogate"),
            "pool": suite["pool"],
        }

    def limits(
        self, results: Results, common: Sequence[Place], *, compute: bool
    ) -> dict[str, Any] | None:
        """Fluid bounds on goodput."""
        return fluid_averages(results, common, compute=compute)

    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """See `inframind_gym.benchmark.routing.tables`."""
        return routing_sheets(board)
