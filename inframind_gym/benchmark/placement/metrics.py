"""Metrics of an episode of a cluster: sums over its decisions, and what follows from the sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.metrics import Columns, Layout, Metric

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

    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return what each decision adds to the sums, ``(num_decisions, width)``."""
        latency_s, decision = self.values(columns)
        ended_s = np.bincount(decision, latency_s, minlength=len(columns["jobs"]))
        plain = [columns[name] for name in (*FIELDS, "jobs")]
        return np.column_stack([*plain, ended_s]).astype(np.float64)

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

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the latencies of the jobs that ended, and the decision in whose interval."""
        jobs = columns["jobs"]
        return columns["job_latency_s"], np.repeat(np.arange(len(jobs)), jobs)


def columns_of(decisions: Sequence[Mapping[str, Any]]) -> Columns:
    """Return decisions as columns.

    "jobs" counts those that ended in a decision's interval; "job_latency_s" has the latencies of
    all, ``(num_jobs,)``.
    """
    latencies_s = [decision["job_latency_s"] for decision in decisions]
    return {
        **{name: np.array([one[name] for one in decisions]) for name in ("decision", *FIELDS)},
        "jobs": np.array([len(own) for own in latencies_s]),
        "job_latency_s": np.concatenate(latencies_s),
    }
