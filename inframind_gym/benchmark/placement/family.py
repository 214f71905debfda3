"""What the benchmark needs to know of placements."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from inframind_gym.benchmark.cells import BaseCell, content_hash
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import Family
from inframind_gym.benchmark.metrics import TAIL
from inframind_gym.benchmark.placement.cells import PlacementCell
from inframind_gym.benchmark.placement.metrics import METRICS, DecisionLayout
from inframind_gym.benchmark.placement.suite import TRACED, PlacementSuite
from inframind_gym.benchmark.placement.tables import placement_sheets
from inframind_gym.benchmark.suite import BaseSuite, check_names
from inframind_gym.benchmark.tables import Sheet

if TYPE_CHECKING:
    from inframind_gym.benchmark.placement.rollout import Decision, PlacementSimulator
    from inframind_gym.benchmark.store import CellResult

ENV_ID = "InfraMind-Placement-v0"
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
        from inframind_gym.simulator.placement.cards import load_cluster
        from inframind_gym.simulator.placement.demand import load_demand
        from inframind_gym.simulator.traces import load_trace

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
        """A policy of `inframind_gym.policies.placement.registry`, or ``package.module:Class``."""
        from inframind_gym.policies.placement import registry as placement

        return placement.resolve(name)

    def settings(self, suite: PlacementSuite) -> dict[str, Any]:
        """Versions, load and length of an episode."""
        from inframind_gym.benchmark.provenance import version_settings

        return {
            **version_settings(),
            "kind": self.kind,
            "load": suite.load,
            "num_decisions": suite.num_decisions,
        }

    def fingerprints(self, suite: PlacementSuite) -> dict[str, dict[str, str]]:
        """Hashes of the clusters with their models' cards, and of the demands with their traces."""
        from inframind_gym.benchmark.provenance import file_hash
        from inframind_gym.simulator.placement.cards import load_cluster
        from inframind_gym.simulator.placement.demand import load_demand

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
        from inframind_gym.benchmark.placement.rollout import env_kwargs

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
        from inframind_gym.benchmark.placement.rollout import PlacementSimulator

        return PlacementSimulator(suite, stop, progress)

    def encode(
        self, cell: PlacementCell, cell_id: str, decisions: list[Decision], took_ms: list[float]
    ) -> CellResult:
        """One line for each decision, sums and metrics in the cell's, times apart."""
        from inframind_gym.benchmark.store import CellResult

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
        """See `inframind_gym.benchmark.placement.tables`."""
        return placement_sheets(board)
