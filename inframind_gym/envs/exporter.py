"""`ExportMetrics`: metrics of a router for Prometheus (see `docs/metrics.md`).

Metrics are computed from the environment's records between its steps; the event loop has no part in
them. Decisions are counted when their query ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

# Name, values of the labels, value.
Gauges = Iterable[tuple[str, Sequence[str], float]]
DEFAULT_PORT: Final = 9400
BUDGET_BUCKETS_S: Final = (0, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300)  # late: below 0
LATENCY_BUCKETS_S: Final = (0.5, 1, 2.5, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 600, 1200)
COST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)

# Name without "inframind_": help, labels.
COUNTERS: Final = {
    "decisions": ("Routes of the agent's queries that are over.", "model strategy"),
    "plans": ("Plans of the agent's queries that are over.", "topology"),
    "queries": ("The agent's queries that are over.", "outcome in_budget"),
    "episodes": ("Episodes begun.", ""),
}
# Name: help, labels, upper bounds of the buckets.
HISTOGRAMS: Final = {
    "remaining_budget_seconds": (
        "Time left to the query's deadline when a decision was due; negative when late.",
        "",
        BUDGET_BUCKETS_S,
    ),
    "cost_ratio": ("Latency of a query as a share of its budget.", "", COST_BUCKETS),
    "query_latency_seconds": ("Time from a query's arrival to its answer.", "", LATENCY_BUCKETS_S),
}
# Read when the metrics are scraped; left out while unknown.
GAUGES: Final = {
    "lambda": ("Multiplier of the constraint that the policy was trained with.", ""),
    "router_info": ("The run.", "environment pool workload policy"),
    "telemetry_age_seconds": ("Age of the servers' metrics when the last decision was due.", ""),
    "queries_in_flight": ("Queries that have arrived and are not over.", ""),
    "queue_depth_seen_requests": (
        "Requests running and waiting at a server at the router's last poll.",
        "model",
    ),
    "calls_in_flight": ("Calls sent to a server and not over.", "model"),
    "server_up": ("1 where a server can be routed to.", "model"),
}


class Metrics:
    """Metrics of one process for Prometheus.

    Args:
        counters, histograms, gauges: tables in the form of those above.
        read_gauges: returns the gauges that are known; called on any thread.

    Attributes:
        registry: a `CollectorRegistry` of these metrics alone.
    """

    def __init__(
        self,
        counters: Mapping[str, tuple[str, str]],
        histograms: Mapping[str, tuple[str, str, Sequence[float]]],
        gauges: Mapping[str, tuple[str, str]],
        read_gauges: Callable[[], Gauges],
    ) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry()
        self._gauges, self._read_gauges = gauges, read_gauges
        self._metrics: dict[str, Any] = {
            name: Counter(f"inframind_{name}", text, labels.split(), registry=self.registry)
            for name, (text, labels) in counters.items()
        }
        for name, (text, labels, buckets) in histograms.items():
            self._metrics[name] = Histogram(
                f"inframind_{name}", text, labels.split(), registry=self.registry, buckets=buckets
            )
        self.registry.register(self)

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a counter."""
        metric = self._metrics[name]
        (metric.labels(*labels) if labels else metric).inc(by)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        metric = self._metrics[name]
        (metric.labels(*labels) if labels else metric).observe(value)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges; called by the registry."""
        from prometheus_client.core import GaugeMetricFamily

        families = {
            name: GaugeMetricFamily(f"inframind_{name}", text, labels=labels.split())
            for name, (text, labels) in self._gauges.items()
        }
        for name, labels, value in self._read_gauges():
            families[name].add_metric(labels, float(value))
        return (family for family in families.values() if family.samples)


class ExportMetrics(gym.Wrapper[ObsType, ActType, ObsType, ActType], RecordConstructorArgs):
    """Wrapper that serves a router's metrics to Prometheus while it runs.

        env = ExportMetrics(gym.make("InfraMind-StreamLive-v0"), port=9400)
        env.follow(policy)  # shows its name and its λ, if it has one
        ...
        env.close()  # stops serving

    Any single environment of this package that routes, live or simulated.

    Args:
        env: the environment, also within other wrappers.
        port: port to listen at; 0 takes a free one.
        host: address to listen at. Everyone who can reach it can read the metrics.

    Attributes:
        registry: a `CollectorRegistry` of these metrics alone, which may be read on any thread.
        url: address of the metrics.

    Raises:
        ConfigError: there is no such port.
        InfraMindError: the environment does not route queries, the port is in use, there is no such
            address, or prometheus-client is not installed.
    """

    def __init__(
        self, env: gym.Env[ObsType, ActType], port: int = DEFAULT_PORT, host: str = "127.0.0.1"
    ) -> None:
        RecordConstructorArgs.__init__(self, port=port, host=host)
        gym.Wrapper.__init__(self, env)
        require("prometheus_client", "exporting metrics", "live")
        from prometheus_client import start_http_server

        watched: object = env.unwrapped
        if not isinstance(watched, RoutingEnv):
            raise InfraMindError(
                f"{type(watched).__name__} cannot be watched: metrics are exported of the single "
                "environments that route queries (Executor, Planner, Stream, simulated or live)"
            )
        self._env, self._policy = watched, None
        self.models = watched.simulation.pool.aliases
        self._metrics = Metrics(COUNTERS, HISTOGRAMS, GAUGES, self._gauges)
        self.registry = self._metrics.registry
        self._age_s: float | None = None
        self._remaining_s: float | None = None  # of the decision that is due
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
        """Show the name and the multiplier λ of a policy, or of its trainer."""
        self._policy = policy

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ObsType, dict[str, Any]]:
        """Reset the environment."""
        result = self.env.reset(seed=seed, options=options)
        self._metrics.count("episodes")
        self._note_decision()
        return result

    def step(self, action: ActType) -> tuple[ObsType, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment, and count what was decided and what has ended."""
        result = self.env.step(action)
        if self._remaining_s is not None:
            self._metrics.observe("remaining_budget_seconds", self._remaining_s)
        for record in self._env.completed():
            self._count_query(record)
        self._note_decision()
        return result

    def close(self) -> None:
        """Stop serving, and close the environment. May be called twice."""
        if self._serves:
            self._serves = False
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        super().close()

    def _note_decision(self) -> None:
        """Note the decision that is due."""
        stream, context = self._env.simulation.state.stream[0], self._env.context()
        self._age_s = float(stream["now_s"]) - float(stream["last_poll_s"])
        left_s = float(context["budget_s"] - (context["time_s"] - context["arrival_s"]))
        self._remaining_s = left_s if stream["live"] == IS_DUE else None

    def _count_query(self, record: np.void) -> None:
        metrics, level = self._metrics, self._env.config.level
        if level != "executor":
            metrics.count("plans", TOPOLOGIES[record["topology"]])
        nodes = 0 if level == "planner" else record["num_nodes"]
        for model, strategy in zip(
            record["model"][:nodes], record["strategy"][:nodes], strict=True
        ):
            metrics.count("decisions", self.models[model], STRATEGIES[strategy])
        in_budget = "true" if record["latency_s"] <= record["budget_s"] else "false"
        metrics.count("queries", "solved" if record["solved"] else "wrong", in_budget)
        metrics.observe("cost_ratio", float(record["cost"]))
        metrics.observe("query_latency_seconds", float(record["latency_s"]))

    def _gauges(self) -> Iterator[tuple[str, Sequence[str], float]]:
        """Return the gauges that are known now."""
        simulation = self._env.simulation
        stream, up = simulation.state.stream[0], simulation.models_up_now()
        policy = str(getattr(self._policy, "name", ""))
        run = (simulation.title, simulation.pool.name, simulation.workload.name, policy)
        yield "router_info", run, 1.0
        yield "queries_in_flight", (), max(stream["arrived"] - stream["finished"], 0)
        if (multiplier := multiplier_of(self._policy)) is not None:
            yield "lambda", (), multiplier
        if self._age_s is not None:
            yield "telemetry_age_seconds", (), self._age_s
        depth_req = simulation.seen(0)[QUEUE] * simulation.pool.queue_norm
        for m, model in enumerate(self.models):
            yield "queue_depth_seen_requests", (model,), depth_req[m]
            yield "calls_in_flight", (model,), simulation.state.in_flight[0, ALL, m]
            yield "server_up", (model,), up >> m & 1
