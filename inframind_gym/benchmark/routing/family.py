"""The family of `InfraMind-Stream-v0`: policies that route queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.families import ROUTING, Family, Player
from inframind_gym.benchmark.routing.limits import fluid_averages
from inframind_gym.benchmark.routing.metrics import METRICS, QueryLayout
from inframind_gym.benchmark.routing.suite import RoutingCell, RoutingSuite
from inframind_gym.benchmark.routing.tables import routing_sheets
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.benchmark.tables import Sheet

if TYPE_CHECKING:
    from inframind_gym.benchmark.lines import CellResult
    from inframind_gym.benchmark.results import Results
    from inframind_gym.simulator.server.pool import PoolConfig


class RoutingFamily(Family):
    """Queries of a workload, at a rate, with a budget."""

    kind = ROUTING
    suite: type[BaseSuite] = RoutingSuite
    metrics = METRICS
    score = "goodput"
    compared = ("goodput", "accuracy", "slo_own", "latency_mean_s")
    shown = ("tasks", "backend", "pool")
    unit = "queries"

    def resolve_policy(self, name: str) -> Any:
        """Make a built-in policy, or one of ``package.module:Class``."""
        from inframind_gym.policies import resolve_policy

        return resolve_policy(name)

    def header(self, suite: RoutingSuite, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Return names of models, strategies and topologies, estimates, environments' specs."""
        from inframind_gym.benchmark.routing.rollout import env_spec
        from inframind_gym.simulator.server.pool import load_pool
        from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES
        from inframind_gym.simulator.workload import estimates, load_workload

        pool = load_pool(suite.pool)
        return {
            "priced": pool.has_prices,
            "estimates": {
                "pool": pool.notes,
                **(simulated_servers(pool) if suite.backend == "vllm" else {}),
                **{
                    name: estimates(load_workload(suite.source("workloads", name)))
                    for name in suite.names("workloads")
                },
            },
            "names": {
                "models": list(pool.aliases),
                "strategies": list(STRATEGIES),
                "topologies": [*TOPOLOGIES, CUSTOM],
            },
            "env_specs": {
                f"{name}/{workload}": env_spec(suite, workload, policy)
                for name, policy in policies.items()
                for workload in suite.names("workloads")
            },
        }

    def simulator(
        self,
        suite: RoutingSuite,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Player:
        """Make the simulated servers."""
        from inframind_gym.benchmark.routing.rollout import Simulator

        return Simulator(suite, stop, progress)

    def live(self, suite: RoutingSuite, stop: Callable[[], bool], **options: Any) -> Player | None:
        """Make the player on live servers, if the suite's backend is "vllm"."""
        if suite.backend != "vllm":
            return None
        from inframind_gym.benchmark.routing.live import LiveSimulator

        return LiveSimulator(suite, stop, **options)

    def encode(self, cell: RoutingCell, cell_id: str, *content: Any) -> CellResult:
        """Encode a finished episode, see `inframind_gym.benchmark.routing.records`."""
        from inframind_gym.benchmark.routing.records import encode_episode

        return encode_episode(cell, cell_id, *content)

    def layout(self, header: Mapping[str, Any]) -> QueryLayout:
        """Make the layout of sums over queries."""
        names = {key: tuple(names) for key, names in header["names"].items()}
        return QueryLayout(**names, priced=header.get("priced", False))

    def limits(
        self, results: Results, common: Sequence[Place], *, compute: bool
    ) -> dict[str, Any] | None:
        """Return fluid bounds on goodput."""
        return fluid_averages(results, common, compute=compute)

    def sheets(self, board: Mapping[str, Any]) -> list[Sheet]:
        """Make the tables, see `inframind_gym.benchmark.routing.tables`."""
        return routing_sheets(board)


def simulated_servers(pool: PoolConfig) -> dict[str, list[str]]:
    """Return a note on the servers of a live run that are simulated, if any are."""
    from inframind_gym.live.probe import is_simulated
    from inframind_gym.live.settings import addresses

    names = [server.alias for server in addresses(pool) if is_simulated(server.url)]
    return {"servers": [f"simulated servers, no vLLM: {', '.join(names)}"]} if names else {}
