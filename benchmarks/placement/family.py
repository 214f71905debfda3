"""What the benchmark needs to know of placements."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benchmarks.cells import BaseCell, content_hash
from benchmarks.errors import BenchmarkError
from benchmarks.families import Family
from benchmarks.metrics import TAIL
from benchmarks.placement.cells import PlacementCell
from benchmarks.placement.metrics import METRICS, DecisionLayout
from benchmarks.placement.suite import TRACED, PlacementSuite
from benchmarks.placement.tables import placement_sheets
from benchmarks.simulator import ASIDE, LIVE, ROUTING
from benchmarks.suite import BaseSuite, check_names
from benchmarks.tables import Sheet

if TYPE_CHECKING:
    from benchmarks.placement.rollout import Decision, PlacementSimulator
    from benchmarks.store import CellResult

ENV_ID = "InfraMind-Placement-v0"
_MODULES = (  # beside `benchmarks.provenance`, that make the results
    "cells.py",
    "placement/cells.py",
    "placement/family.py",
    "placement/metrics.py",
    "placement/rollout.py",
)
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class PlacementFamily(Family):
    """Episodes of a cluster under a demand; the mean latency of a call ranks."""

    kind = "placement"
    suite: type[BaseSuite] = PlacementSuite
    cell: type[BaseCell] = PlacementCell
    metrics = METRICS
    score = "call_latency_s"
    compared = ("call_latency_s", "slo", "job_latency_mean_s", "switches_per_gpu_hour")
    contents: ClassVar = {"clusters": "cluster", "demands": "demand"}
    unit = "decisions"

    def resolve(self, suite: PlacementSuite) -> PlacementSuite:
        """Check all that a suite names; recorded arrivals add the demand that replays them.

        Raises:
            InfraMindError: A cluster, demand, trace or policy cannot be used.
        """
        from inframind_gym.placement.cards import load_cluster
        from inframind_gym.placement.demand import load_demand
        from inframind_gym.workload.traces import load_trace

        for cluster in suite.clusters:
            load_cluster(cluster)
        for demand in suite.demands:
            load_demand(demand)
        if suite.arrivals is None:
            if TRACED in suite.demands:
                raise BenchmarkError(
                    f"the demand {TRACED!r} replays recorded arrivals: name a CSV file of them "
                    "with --arrivals, or leave it out with --demands."
                )
            return suite
        path = Path(suite.arrivals).resolve()
        if not path.is_file():
            raise BenchmarkError(f"--arrivals: there is no file {suite.arrivals}")
        load_trace(path)
        demands = tuple(dict.fromkeys((*suite.demands, TRACED)))
        check_names(demands)
        return suite.model_copy(update={"arrivals": str(path), "demands": demands})

    def resolve_policy(self, name: str) -> Any:
        """A policy of `baselines.placement`, or ``package.module:Class``."""
        from baselines import placement

        return placement.resolve(name)

    def settings(self, suite: PlacementSuite) -> dict[str, Any]:
        """Code, load and length of an episode."""
        from benchmarks.provenance import code_settings

        return {
            **code_settings(_MODULES, self.left_out(suite)),
            "kind": self.kind,
            "load": suite.load,
            "num_decisions": suite.num_decisions,
        }

    def left_out(self, suite: PlacementSuite) -> Sequence[str]:
        """Everything about routing, servers and tools."""
        return (*ASIDE, *LIVE, *ROUTING)

    def fingerprints(self, suite: PlacementSuite) -> dict[str, dict[str, str]]:
        """Hashes of the clusters with their models' cards, and of the demands with their traces."""
        from benchmarks.provenance import file_hash
        from inframind_gym.placement.cards import load_cluster
        from inframind_gym.placement.demand import load_demand

        clusters, demands = {}, {}
        for name in suite.names("clusters"):
            cluster, cards = load_cluster(suite.source("clusters", name))
            clusters[name] = content_hash(
                [part.model_dump(mode="json") for part in (cluster, *cards)]
            )
        for name in suite.names("demands"):
            given = suite.source("demands", name)
            trace = file_hash(Path(suite.arrivals)) if suite.arrivals and given == TRACED else ""
            demands[name] = content_hash([load_demand(given).model_dump(mode="json"), trace])
        return {"clusters": clusters, "demands": demands}

    def header(self, suite: PlacementSuite) -> dict[str, Any]:
        """The environments' specs."""
        import gymnasium as gym

        import inframind_gym  # noqa: F401  (registers the environments)
        from benchmarks.placement.rollout import env_kwargs

        specs = {}
        for place in suite.places():
            spec = copy.deepcopy(gym.spec(ENV_ID))
            spec.kwargs.update(env_kwargs(suite, *place))
            specs["/".join(place)] = dict(json.loads(spec.to_json()))
        return {"env_specs": specs}

    def episodes(self, suite: PlacementSuite, cell: PlacementCell) -> int:
        """Decisions of an episode."""
        return suite.num_decisions

    def simulator(
        self,
        suite: PlacementSuite,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> PlacementSimulator:
        """The simulated clusters."""
        from benchmarks.placement.rollout import PlacementSimulator

        return PlacementSimulator(suite, stop, progress)

    def encode(
        self, cell: PlacementCell, cell_id: str, decisions: list[Decision], took_ms: list[float]
    ) -> CellResult:
        """One line for each decision, sums and metrics in the cell's, times apart."""
        from benchmarks.store import CellResult

        coordinates = {"cell": cell_id, **cell.to_json()}
        block = "".join(
            _ENCODER.encode({**coordinates, **one}) + "\n" for one in decisions
        ).encode()
        layout = DecisionLayout()
        metrics = {name: float(v) for name, v in layout.evaluate(layout.sums(decisions)).items()}
        latencies = [latency for one in decisions for latency in one["job_latency_s"]]
        line = {
            **coordinates,
            "episodes": len(decisions),
            "episodes_bytes": len(block),
            **metrics,
            layout.tail: float(np.quantile(latencies, TAIL)) if latencies else 0.0,
            "jobs": len(latencies),
        }
        timing = {
            "decide_median_ms": float(np.median(took_ms)),
            "decide_p95_ms": float(np.quantile(took_ms, TAIL)),
        }
        return CellResult(line, block, timing)

    def layout(self, header: Mapping[str, Any]) -> DecisionLayout:
        """Sums over decisions."""
        return DecisionLayout()

    def about(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """The family, and the trace."""
        return {"kind": self.kind, "arrivals": header["suite"]["arrivals"]}

    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """See `benchmarks.placement.tables`."""
        return placement_sheets(board)
