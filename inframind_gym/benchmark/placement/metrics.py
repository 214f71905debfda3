"""Metrics of an episode of a cluster: sums over its decisions, and what follows from the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.metrics import Layout, Metric

METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("call_latency_s", "call", "s", "lower"),
        Metric("slo", "SLO", "%", "higher"),
        Metric("job_latency_mean_s", "job", "s", "lower"),
        Metric("job_latency_p95_s", "job p95", "s", "lower"),
        Metric("finished", "done", "%", "higher"),
        Metric("switches_per_gpu_hour", "switches\n/GPU h"),
        Metric("illegal_share", "illegal", "%", "lower"),
        Metric("serving_share", "serving", "%"),
    )
}
FIELDS: Final = (  # numbers of a decision that are summed
    *("request_s", "calls", "arrived", "late", "illegal"),
    *("choices", "switches", "gpu_s", "serving"),
)
_SUMS: Final = (*FIELDS, "jobs", "job_latency_s")


class DecisionLayout(Layout):
    """Layout of a row of sums over decisions."""

    tail: ClassVar[str] = "job_latency_p95_s"

    def sums(self, records: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Sum over decisions as they are in ``records.jsonl``, ``(width,)``."""
        plain = [sum(record[name] for record in records) for name in FIELDS]
        jobs = sum(len(record["job_latency_s"]) for record in records)
        latency_s = sum(sum(record["job_latency_s"]) for record in records)
        return np.array([*plain, jobs, latency_s], dtype=np.float64)

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but ``job_latency_p95_s`` from ``(..., width)``, ``(...)`` each.

        ``call_latency_s`` divides the request-seconds that calls have spent waiting and in servers
        by the calls that became ready, whether they were ever served or not. ``slo`` is the share
        of jobs whose deadline did not pass, of those that arrived.
        """
        of = dict(zip(_SUMS, np.moveaxis(sums, -1, 0), strict=True))

        def per(name: str, divisor: str) -> NDArray[np.float64]:
            return np.asarray(of[name] / np.maximum(of[divisor], 1.0), dtype=np.float64)

        return {
            "call_latency_s": per("request_s", "calls"),
            "slo": 1.0 - per("late", "arrived"),
            "job_latency_mean_s": per("job_latency_s", "jobs"),
            "finished": per("jobs", "arrived"),
            "switches_per_gpu_hour": 3600.0 * per("switches", "gpu_s"),
            "illegal_share": per("illegal", "choices"),
            "serving_share": per("serving", "choices"),
        }

    def values(self, record: Mapping[str, Any]) -> Sequence[float]:
        """Return the latencies of the jobs that ended in the interval."""
        latencies: list[float] = record["job_latency_s"]
        return latencies
