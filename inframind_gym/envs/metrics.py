"""What a router does, as Prometheus metrics (`docs/metrics.md` lists them).

An environment is watched from outside, between its steps: nothing in the loop knows of it. What was
decided is read where it was carried out, so it is right whatever stands between the policy and the
environment, and the present state of the servers is read when somebody asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.base import InfraMindEnv
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.orchestration.state import IS_DUE, PLAN_NODE
from inframind_gym.policy import multiplier_of
from inframind_gym.serving.telemetry import QUEUE
from inframind_gym.topology import STRATEGIES, TOPOLOGIES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram
    from prometheus_client.core import GaugeMetricFamily

BUDGET_BUCKETS_S: Final = (0, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300)  # late: below 0
LATENCY_BUCKETS_S: Final = (0.5, 1, 2.5, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 600, 1200)
COST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)

_ANSWERED, _TRUNCATED, _FAILED = "answered", "truncated", "failed"


class _Due(NamedTuple):
    """The decision that waits."""

    slot: int  # of its query
    node: int  # or PLAN_NODE
    query: int  # ordinal in the sweep
    remaining_s: float  # of the budget


class _Watched:
    """An environment's state by column, where it lies: a record at a time is slow to read."""

    def __init__(self, env: InfraMindEnv) -> None:
        flows = env.simulation.flows
        self.env = env
        self.sweep = flows.sweep[0]
        self.ordinal = flows.query["ordinal"][0]
        self.arrival_s = flows.query["arrival_s"][0]
        self.budget_s = flows.query["budget_s"][0]
        self.topology = flows.query["topology"][0]
        self.model = flows.query["model"][0]
        self.strategy = flows.query["strategy"][0]
        self.call = flows.call[0]
        self.records_calls = env.config.record_calls
        self.begin()

    def begin(self) -> None:
        """A sweep may have begun: its telemetry has a place of its own."""
        self.seen = self.env.simulation.seen(0)  # (3, M), in which it is kept up to date

    def due(self) -> _Due | None:
        """The decision that waits now."""
        sweep = self.sweep
        if sweep["live"] != IS_DUE:
            return None
        slot = int(sweep["slot"])
        passed_s = float(sweep["now_s"]) - self.arrival_s.item(slot)
        remaining_s = self.budget_s.item(slot) - passed_s  # exactly the budget on arrival
        return _Due(slot, int(sweep["node"]), self.ordinal.item(slot), remaining_s)

    def completed(self) -> NDArray[Any] | None:
        """The agent's queries that ended in the last step, (k,) COMPLETED; None: none did."""
        if self.sweep["reported"] == self.sweep["finished"]:
            return None
        return self.env.completed()


class _CallMetrics(NamedTuple):
    """Of the calls to one model."""

    answered: Counter
    truncated: Counter
    failed: Counter
    again: Counter
    prompt_tokens: Counter
    output_tokens: Counter
    latency_s: Histogram


def require_prometheus() -> None:
    """Check that prometheus-client is installed.

    Raises:
        InfraMindError: it isn't; says how to install it.
    """
    if find_spec("prometheus_client") is None:
        raise InfraMindError(
            "exporting metrics needs prometheus_client, which is not installed: "
            "pip install 'inframind-gym[live]'"
        )


def _registry() -> CollectorRegistry:
    """A registry that leaves out when each series was made, which doubles their number."""
    from prometheus_client import CollectorRegistry, Metric

    class Registry(CollectorRegistry):
        def collect(self) -> Iterator[Metric]:
            for metric in super().collect():
                metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
                yield metric

    return Registry()


class RouterMetrics:
    """Counts what one environment after the other decides and what becomes of it.

        metrics = RouterMetrics(env.simulation.pool.aliases)
        metrics.watch(env)
        env.reset(); metrics.began()
        env.step(action); metrics.stepped()

    To be called from the thread that steps the environment; the registry may be read from any.
    What is labelled with a model, a strategy or a topology has as many series as there are of them.

    Args:
        models: aliases of the pool's models.

    Attributes:
        models: as given.
        registry: holds the metrics, and nothing else.

    Raises:
        InfraMindError: prometheus-client is not installed.
    """

    def __init__(self, models: Sequence[str]) -> None:
        require_prometheus()
        from prometheus_client import Counter, Histogram

        self.models = tuple(models)
        self.registry = _registry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

        decisions = counter(
            "inframind_decisions_total",
            "Routes decided by the agent, by the model that the call was sent to.",
            "model",
            "strategy",
        )
        self._routes = [[decisions.labels(m, s) for s in STRATEGIES] for m in self.models]
        self._plans = counter("inframind_plans_total", "Plans made by the agent.", "topology")
        self._remaining_s = histogram(
            "inframind_remaining_budget_seconds",
            "Time left to the query's deadline when a decision was due; negative when late.",
            BUDGET_BUCKETS_S,
        )
        queries = counter(
            "inframind_queries_total", "The agent's queries that are over.", "outcome", "in_budget"
        )
        self._queries = [
            [queries.labels(outcome, in_budget) for in_budget in ("false", "true")]
            for outcome in ("wrong", "solved")
        ]
        self._cost = histogram(
            "inframind_cost_ratio", "Latency of a query as a share of its budget.", COST_BUCKETS
        )
        self._latency_s = histogram(
            "inframind_query_latency_seconds",
            "Time from a query's arrival to its answer.",
            LATENCY_BUCKETS_S,
        )
        self._episodes = counter("inframind_episodes_total", "Episodes begun.")
        self._calls = counter(
            "inframind_calls_total", "Calls that are over (record_calls=True).", "model", "outcome"
        )
        self._again = counter(
            "inframind_call_retries_total",
            "Calls over that repeated a failed one (record_calls=True).",
            "model",
        )
        self._tokens = counter(
            "inframind_tokens_total", "Tokens of calls (record_calls=True).", "model", "kind"
        )
        self._call_latency_s = histogram(
            "inframind_call_latency_seconds",
            "Time from a call's submission to its end (record_calls=True).",
            LATENCY_BUCKETS_S,
            "model",
        )
        self._by_model: list[_CallMetrics] = []
        self._watched: _Watched | None = None
        self._policy: object = None
        self._due: _Due | None = None
        self._age_s = math.nan
        self._sweep = -1  # the key of the sweep whose calls are being read
        self._calls_read = 0
        self._failed: set[tuple[int, int, int]] = set()  # calls of the sweep that have
        self.registry.register(_Present(self))

    # For whoever steps the environment

    def watch(self, env: InfraMindEnv | None, policy: object = None) -> None:
        """Look at this environment from now on; the counters go on.

        Args:
            env: a single environment; None: none.
            policy: who decides; its `name` and, where it has one, its multiplier λ are shown.

        Raises:
            ConfigError: its pool has other models.
        """
        if env is not None:
            aliases = tuple(env.simulation.pool.aliases)
            if aliases != self.models:
                raise ConfigError(
                    f"the metrics are of the models {', '.join(self.models)}; "
                    f"this environment has {', '.join(aliases)}"
                )
            if env.config.record_calls and not self._by_model:
                self._by_model = [self._of_model(alias) for alias in self.models]
        self._due, self._age_s = None, math.nan
        self._sweep, self._calls_read = -1, 0
        self._watched, self._policy = None if env is None else _Watched(env), policy

    def follow(self, policy: object) -> None:
        """Show the name and the multiplier of a policy, or of what trains it."""
        self._policy = policy

    def began(self) -> None:
        """The environment was reset."""
        watched = self._now_watched()
        watched.begin()
        self._episodes.inc()
        self._look(watched)

    def stepped(self) -> None:
        """The environment was stepped: count what was decided and what has ended."""
        watched = self._now_watched()
        completed = watched.completed()
        if self._due is not None:
            self._count_decision(watched, self._due, completed)
        if completed is not None:
            self._count_queries(completed)
        self._look(watched)

    def _now_watched(self) -> _Watched:
        if self._watched is None:
            raise InfraMindError("no environment is watched; call watch(env) first")
        return self._watched

    def _look(self, watched: _Watched) -> None:
        """Note the decision that is due now, and count the calls that have ended."""
        sweep = watched.sweep
        if watched.records_calls:
            self._count_calls(watched)
        self._due = watched.due()
        self._age_s = float(sweep["now_s"]) - float(sweep["last_poll_s"])

    def _count_decision(self, watched: _Watched, due: _Due, completed: NDArray[Any] | None) -> None:
        slot, node = due.slot, due.node
        if watched.ordinal.item(slot) == due.query:
            topology, model = watched.topology[slot], watched.model[slot]
            strategy = watched.strategy[slot]
        else:  # the query is over, and another has taken its place
            found: Any = [] if completed is None else completed[completed["query"] == due.query]
            if not len(found):  # a wrapper has taken several steps as one
                return
            topology, model = found[0]["topology"], found[0]["model"]
            strategy = found[0]["strategy"]
        self._remaining_s.observe(due.remaining_s)
        if node == PLAN_NODE:
            self._plans.labels(TOPOLOGIES[topology]).inc()
        else:
            self._routes[model.item(node)][strategy.item(node)].inc()

    def _count_queries(self, completed: NDArray[Any]) -> None:
        for solved, latency_s, budget_s, cost in zip(
            *(completed[key].tolist() for key in ("solved", "latency_s", "budget_s", "cost")),
            strict=True,
        ):
            self._queries[solved][latency_s <= budget_s].inc()
            self._cost.observe(cost)
            self._latency_s.observe(latency_s)

    def _count_calls(self, watched: _Watched) -> None:
        """Count the calls whose records have been added."""
        sweep = watched.sweep
        key, last = int(sweep["key"]), int(sweep["recorded_calls"])
        if key != self._sweep:
            self._sweep, self._calls_read = key, 0
            self._failed.clear()
        for row in range(self._calls_read, last):
            self._count_call(watched.call[row])
        self._calls_read = last

    def _count_call(self, record: np.void) -> None:
        of_model = self._by_model[record["model"]]
        if record["failed"] or self._failed:
            self._count_failure(record, of_model)
        if record["failed"]:
            of_model.failed.inc()
        elif record["truncated"]:
            of_model.truncated.inc()
        else:
            of_model.answered.inc()
        of_model.prompt_tokens.inc(int(record["prompt_tokens"]))
        of_model.output_tokens.inc(int(record["output_tokens"]))
        of_model.latency_s.observe(float(record["finish_s"]) - float(record["submit_s"]))

    def _count_failure(self, record: np.void, of_model: _CallMetrics) -> None:
        """Count a call that repeats one that failed, and note one that has failed itself."""
        call = int(record["query"]), int(record["node"]), int(record["phase"])
        if call in self._failed:
            of_model.again.inc()
        if record["failed"]:
            self._failed.add(call)

    def _of_model(self, alias: str) -> _CallMetrics:
        return _CallMetrics(
            self._calls.labels(alias, _ANSWERED),
            self._calls.labels(alias, _TRUNCATED),
            self._calls.labels(alias, _FAILED),
            self._again.labels(alias),
            self._tokens.labels(alias, "prompt"),
            self._tokens.labels(alias, "output"),
            self._call_latency_s.labels(alias),
        )

    # For whoever reads the registry, on any thread

    def present(self) -> Iterator[tuple[str, Iterable[tuple[tuple[str, ...], float]]]]:
        """What holds now: name of the gauge -> its labels' values and its value."""
        watched, policy, age_s = self._watched, self._policy, self._age_s
        multiplier = multiplier_of(policy)
        if multiplier is not None:
            yield "inframind_lambda", [((), multiplier)]
        if watched is None:
            return
        env, simulation = watched.env, watched.env.simulation
        about = (
            simulation.title,
            simulation.pool.name,
            simulation.workload.name,
            str(getattr(policy, "name", "")),
        )
        yield "inframind_router_info", [(about, 1.0)]
        if not math.isnan(age_s):
            yield "inframind_telemetry_age_seconds", [((), age_s)]
        sweep, up = watched.sweep, env.models_up()
        waiting = int(sweep["arrived"]) - int(sweep["finished"])
        yield "inframind_queries_in_flight", [((), max(waiting, 0))]
        seen = watched.seen[QUEUE] * simulation.pool.queue_norm
        labels = [(alias,) for alias in self.models]
        yield "inframind_queue_depth_seen_requests", zip(labels, seen.tolist(), strict=True)
        in_flight = sweep["in_flight"][: len(labels)].tolist()
        yield "inframind_calls_in_flight", zip(labels, in_flight, strict=True)
        is_up = [float(up >> m & 1) for m in range(len(labels))]
        yield "inframind_server_up", zip(labels, is_up, strict=True)


class _Present:
    """Reads the gauges when they are asked for; those that nothing is known of are left out."""

    GAUGES: Final = {
        "inframind_lambda": ("Multiplier of the constraint that the policy was trained with.", ()),
        "inframind_router_info": (
            "What is running.",
            ("environment", "pool", "workload", "policy"),
        ),
        "inframind_telemetry_age_seconds": (
            "Age of the servers' metrics when the last decision was due.",
            (),
        ),
        "inframind_queries_in_flight": ("Queries that have arrived and are not over.", ()),
        "inframind_queue_depth_seen_requests": (
            "Requests running and waiting at a server, as the router was told last.",
            ("model",),
        ),
        "inframind_calls_in_flight": ("Calls sent to a server and not over.", ("model",)),
        "inframind_server_up": ("Whether a server can be routed to.", ("model",)),
    }

    def __init__(self, metrics: RouterMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[GaugeMetricFamily]:
        """All gauges, without values."""
        return [self._family(name) for name in self.GAUGES]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Those that hold now."""
        for name, values in self._metrics.present():
            family = self._family(name)
            for labels, value in values:
                family.add_metric(labels, value)
            yield family

    def _family(self, name: str) -> GaugeMetricFamily:
        from prometheus_client.core import GaugeMetricFamily

        text, labels = self.GAUGES[name]
        return GaugeMetricFamily(name, text, labels=labels)
