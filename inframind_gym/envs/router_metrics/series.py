"""The counters and histograms, by name (`docs/metrics.md`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.workflow.topology import STRATEGIES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Histogram

BUDGET_BUCKETS_S: Final = (0, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300)  # late: below 0
LATENCY_BUCKETS_S: Final = (0.5, 1, 2.5, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 600, 1200)
COST_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)

_ANSWERED, _TRUNCATED, _FAILED = "answered", "truncated", "failed"


class CallSeries(NamedTuple):
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


def make_registry() -> CollectorRegistry:
    """A registry that leaves out when each series was made, which doubles their number."""
    from prometheus_client import CollectorRegistry, Metric

    class Registry(CollectorRegistry):
        def collect(self) -> Iterator[Metric]:
            for metric in super().collect():
                metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
                yield metric

    return Registry()


class Series:
    """Everything that is counted, of one registry.

    Args:
        models: aliases of the pool's models.

    Attributes:
        registry: holds them.
        routes: by model and strategy.
        queries: by whether they were solved, and whether in their budget.

    Raises:
        InfraMindError: prometheus-client is not installed.
    """

    def __init__(self, models: Sequence[str]) -> None:
        require_prometheus()
        from prometheus_client import Counter, Histogram

        self.registry = make_registry()

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
        self.routes = [[decisions.labels(m, s) for s in STRATEGIES] for m in models]
        self.plans = counter("inframind_plans_total", "Plans made by the agent.", "topology")
        self.remaining_s = histogram(
            "inframind_remaining_budget_seconds",
            "Time left to the query's deadline when a decision was due; negative when late.",
            BUDGET_BUCKETS_S,
        )
        queries = counter(
            "inframind_queries_total", "The agent's queries that are over.", "outcome", "in_budget"
        )
        self.queries = [
            [queries.labels(outcome, in_budget) for in_budget in ("false", "true")]
            for outcome in ("wrong", "solved")
        ]
        self.cost = histogram(
            "inframind_cost_ratio", "Latency of a query as a share of its budget.", COST_BUCKETS
        )
        self.latency_s = histogram(
            "inframind_query_latency_seconds",
            "Time from a query's arrival to its answer.",
            LATENCY_BUCKETS_S,
        )
        self.episodes = counter("inframind_episodes_total", "Episodes begun.")
        self.calls = counter(
            "inframind_calls_total", "Calls that are over (record_calls=True).", "model", "outcome"
        )
        self.again = counter(
            "inframind_call_retries_total",
            "Calls over that repeated a failed one (record_calls=True).",
            "model",
        )
        self.tokens = counter(
            "inframind_tokens_total", "Tokens of calls (record_calls=True).", "model", "kind"
        )
        self.call_latency_s = histogram(
            "inframind_call_latency_seconds",
            "Time from a call's submission to its end (record_calls=True).",
            LATENCY_BUCKETS_S,
            "model",
        )

    def of_model(self, alias: str) -> CallSeries:
        """Those of the calls to one model."""
        return CallSeries(
            self.calls.labels(alias, _ANSWERED),
            self.calls.labels(alias, _TRUNCATED),
            self.calls.labels(alias, _FAILED),
            self.again.labels(alias),
            self.tokens.labels(alias, "prompt"),
            self.tokens.labels(alias, "output"),
            self.call_latency_s.labels(alias),
        )
