"""Metrics of the gateway, for Prometheus.

Those that the metrics of a router have (`envs/exporter.py`) have their names and labels, so that
one board shows both: a request is a query. Texts that clients make up are no labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from inframind_gym.envs import exporter as router

_FIRST_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_DECISION_S: Final = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 0.1)
COUNTERS: Final = {
    "decisions": router.COUNTERS["inframind_decisions_total"],
    "calls": ("Calls that are over.", "model outcome"),
    "call_retries": ("Calls over that repeated a failed one.", "model"),
    "tokens": ("Tokens of calls.", "model kind"),
    "queries": ("Requests that are over.", "outcome in_budget tenant asked"),
    "refused": ("Requests refused.", "reason"),
    "policy_errors": ("Decisions that the policy did not make.", ""),
}
HISTOGRAMS: Final = {
    **{
        name: router.HISTOGRAMS[f"inframind_{name}"]
        for name in ("cost_ratio", "query_latency_seconds")
    },
    "call_latency_seconds": (
        "Time from a call's submission to its end.",
        "model",
        router.LATENCY_BUCKETS_S,
    ),
    "time_to_first_token_seconds": ("From a request's arrival, of streams.", "", _FIRST_S),
    "decision_seconds": ("Time that a policy took.", "", _DECISION_S),
}
GAUGES: Final = {
    **{
        name: router.GAUGES[f"inframind_{name}"]
        for name in (
            *("router_info", "telemetry_age_seconds", "queries_in_flight"),
            *("queue_depth_seen_requests", "calls_in_flight", "server_up"),
        )
    },
    "server_time_seen_seconds": (
        "Mean of the requests that finished at a server before the last poll: ttft_s, itl_s, "
        "queue_s, inference_s, e2e_s.",
        "model time",
    ),
    "kv_cache_seen": ("Share of a server's KV cache in use, at the last poll.", "model"),
}


class Metrics:
    """Counters, histograms and gauges, by the names above."""

    def __init__(self) -> None:
        self.registry = on = CollectorRegistry()
        self._families: dict[str, Any] = {}
        tables: Any = ((Counter, COUNTERS), (Gauge, GAUGES), (Histogram, HISTOGRAMS))
        for kind, table in tables:
            for name, (text, labels, *buckets) in table.items():
                more = {"buckets": buckets[0]} if buckets else {}
                made = kind(f"inframind_{name}", text, labels.split(), registry=on, **more)
                self._families[name] = made

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a counter."""
        counter = self._families[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        histogram = self._families[name]
        (histogram.labels(*labels) if labels else histogram).observe(value)

    def write(self, gauges: Iterable[tuple[str, Sequence[str], float]]) -> bytes:
        """Return the text of `/metrics`, given name, labels and value of each gauge."""
        for name, (_, labels) in GAUGES.items():
            if labels:
                self._families[name].clear()
        for name, values, value in gauges:
            gauge = self._families[name]
            (gauge.labels(*values) if values else gauge).set(value)
        return bytes(generate_latest(self.registry))
