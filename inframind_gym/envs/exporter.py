"""`ExportMetrics`: metrics of a router for Prometheus (see `docs/metrics.md`).

The environment is read between its steps, from its records; nothing in the event loop knows of
metrics. Decisions are counted with their query, when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.core import ActType, ObsType
from gymnasium.utils import RecordConstructorArgs

from inframind_gym.envs.routing import RoutingEnv
from inframind_gym.errors import InfraMindError, require, require_within
from inframind_gym.policies import multiplier_of
from inframind_gym.simulator.server.state import QUEUE
from inframind_gym.simulator.workflow.state import ALL, IS_DUE
from inframind_gym.simulator.workflow.topology import STRATEGIES, TOPOLOGIES

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

DEFAULT_PORT: Final = 9400
BUDGET_BUCKETS_S: Final = (0, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300)  # late: below 0
LATENCY_BUCKETS_S: Final = (0.5, 1, 2.5, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 600, 1200)
COST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)

# Name: help, labels.
COUNTERS: Final = {
    "inframind_decisions_total": ("Routes of the agent's queries that are over.", "model strategy"),
    "inframind_plans_total": ("Plans of the agent's queries that are over.", "topology"),
    "inframind_queries_total": ("The agent's queries that are over.", "outcome in_budget"),
    "inframind_episodes_total": ("Episodes begun.", ""),
}
# Name: help, labels, upper bounds of the buckets.
HISTOGRAMS: Final = {
    "inframind_remaining_budget_seconds": (
        "Time left to the query's deadline when a decision was due; negative when late.",
        "",
        BUDGET_BUCKETS_S,
    ),
    "inframind_cost_ratio": ("Latency of a query as a share of its budget.", "", COST_BUCKETS),
    "inframind_query_latency_seconds": (
        "Time from a query's arrival to its answer.",
        "",
        LATENCY_BUCKETS_S,
    ),
}
# Read when the metrics are scraped; left out while unknown.
GAUGES: Final = {
    "inframind_lambda": ("Multiplier of the constraint that the policy was trained with.", ""),
    "inframind_router_info": ("The run.", "environment pool workload policy"),
    "inframind_telemetry_age_seconds": (
        "Age of the servers' metrics when the last decision was due.",
        "",
    ),
    "inframind_queries_in_flight": ("Queries that have arrived and are not over.", ""),
    "inframind_queue_depth_seen_requests": (
        "Requests running and waiting at a server at the router's last poll.",
        "model",
    ),
    "inframind_calls_in_flight": ("Calls sent to a server and not over.", "model"),
    "inframind_server_up": ("1 where a server can be routed to.", "model"),
}


class ExportMetrics(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Show what a router does to Prometheus while it runs.

        env = ExportMetrics(gym.make("InfraMind-StreamLive-v0"), port=9400)
        env.follow(policy)  # shows its name and its λ, if it has one
        ...
        env.close()  # stops serving

    Any single environment of this package that routes, live or simulated.

    Args:
        env: the environment, also within other wrappers.
        port: where to listen; 0 takes a free port.
        host: address to listen at. The metrics are shown to whoever can reach it.

    Attributes:
        registry: a `CollectorRegistry` of these metrics alone, which may be read on any thread.
        url: address of the metrics.

    Raises:
        ConfigError: there is no such port.
        InfraMindError: the environment is none that can be watched, the port is in use, there is no
            such address, or prometheus-client is not installed.
    """

    def __init__(
        self, env: gym.Env[ObsType, ActType], port: int = DEFAULT_PORT, host: str = "127.0.0.1"
    ) -> None:
        RecordConstructorArgs.__init__(self, port=port, host=host)
        gym.Wrapper.__init__(self, env)
        require("prometheus_client", "exporting metrics", "live")
        from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server

        watched: object = env.unwrapped
        if not isinstance(watched, RoutingEnv):
            raise InfraMindError(
                f"{type(watched).__name__} cannot be watched: metrics are exported of the single "
                "environments that route queries (Executor, Planner, Stream, simulated or live)"
            )
        self._env, self._policy = watched, None
        self.models = watched.simulation.pool.aliases
        self.registry = CollectorRegistry()
        self._count: dict[str, Any] = {
            name: Counter(name, text, labels.split(), registry=self.registry)
            for name, (text, labels) in COUNTERS.items()
        }
        self._observe: dict[str, Any] = {
            name: Histogram(name, text, labels.split(), registry=self.registry, buckets=buckets)
            for name, (text, labels, buckets) in HISTOGRAMS.items()
        }
        self._age_s: float | None = None
        self._remaining_s: float | None = None  # of the decision that is due
        self.registry.register(self)
        try:
            self._server, self._thread = start_http_server(
                int(require_within(port, 0, 65535, "port")), host, self.registry
            )
        except OSError as error:
            raise InfraMindError(
                f"metrics cannot be served at {host}:{port}: {error.strerror or error}. "
                "Name another port; 0 takes a free one."
            ) from None
        self._serves = True
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{self._server.server_port}/metrics"

    def follow(self, policy: Any) -> None:
        """Show the name and the multiplier λ of a policy, or of what trains it."""
        self._policy = policy

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the environment."""
        result = self.env.reset(seed=seed, options=options)
        self._count["inframind_episodes_total"].inc()
        self._read()
        return result

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment, and count what was decided and what has ended."""
        result = self.env.step(action)
        if self._remaining_s is not None:
            self._observe["inframind_remaining_budget_seconds"].observe(self._remaining_s)
        for record in self._env.completed():
            self._count_query(record)
        self._read()
        return result

    def close(self) -> None:
        """Stop serving, and close the environment. May be called twice."""
        if self._serves:
            self._serves = False
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        super().close()

    def _read(self) -> None:
        """Note the decision that is due."""
        stream, context = self._env.simulation.state.stream[0], self._env.context()
        self._age_s = float(stream["now_s"]) - float(stream["last_poll_s"])
        self._remaining_s = None
        if stream["live"] == IS_DUE:
            passed_s = float(context["time_s"]) - float(context["arrival_s"])
            self._remaining_s = float(context["budget_s"]) - passed_s

    def _count_query(self, record: np.void) -> None:
        level = self._env.config.level
        if level != "executor":
            topology = TOPOLOGIES[record["topology"]]
            self._count["inframind_plans_total"].labels(topology).inc()
        if level != "planner":
            for node in range(record["num_nodes"]):
                model = self.models[record["model"][node]]
                strategy = STRATEGIES[record["strategy"][node]]
                self._count["inframind_decisions_total"].labels(model, strategy).inc()
        outcome = "solved" if record["solved"] else "wrong"
        in_budget = "true" if record["latency_s"] <= record["budget_s"] else "false"
        self._count["inframind_queries_total"].labels(outcome, in_budget).inc()
        self._observe["inframind_cost_ratio"].observe(float(record["cost"]))
        self._observe["inframind_query_latency_seconds"].observe(float(record["latency_s"]))

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges that are known now; the registry asks on any thread."""
        from prometheus_client.core import GaugeMetricFamily

        simulation = self._env.simulation
        stream, up = simulation.state.stream[0], simulation.models_up_now()
        policy = str(getattr(self._policy, "name", ""))
        run = (simulation.title, simulation.pool.name, simulation.workload.name, policy)
        known: dict[str, Any] = {  # by labels
            "inframind_lambda": {(): multiplier_of(self._policy)},
            "inframind_router_info": {run: 1.0},
            "inframind_telemetry_age_seconds": {(): self._age_s},
            "inframind_queries_in_flight": {(): max(stream["arrived"] - stream["finished"], 0)},
        }
        depth_req = simulation.seen(0)[QUEUE] * simulation.pool.queue_norm
        for name, values in (
            ("inframind_queue_depth_seen_requests", depth_req),
            ("inframind_calls_in_flight", simulation.state.in_flight[0, ALL]),
            ("inframind_server_up", [up >> m & 1 for m in range(len(self.models))]),
        ):
            known[name] = {(m,): value for m, value in zip(self.models, values, strict=False)}
        for name, (text, labels) in GAUGES.items():
            family = GaugeMetricFamily(name, text, labels=labels.split())
            for of, value in known[name].items():
                if value is not None:
                    family.add_metric(of, float(value))
            if family.samples:
                yield family
