"""What an episode of a cluster is judged by.

An episode is written down decision by decision; everything but the 95th percentile of the jobs'
latency is a ratio of sums over decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.metrics import Metric

METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("call_latency_s", "call s", 1.0, False),
        Metric("slo", "SLO %", 100.0, True),
        Metric("job_latency_mean_s", "job s", 1.0, False),
        Metric("job_latency_p95_s", "job p95 s", 1.0, False),
        Metric("finished", "done %", 100.0, True),
        Metric("switches_per_gpu_hour", "switches\n/GPU h"),
        Metric("illegal_share", "illegal %", 100.0, False),
        Metric("serving_share", "serving\n%", 100.0),
    )
}
FIELDS: Final = (  # numbers of a decision that are summed
    "request_s",
    "calls",
    "arrived",
    "late",
    "illegal",
    "choices",
    "switches",
    "gpu_s",
    "serving",
)
_SUMS: Final = (*FIELDS, "jobs", "job_latency_s")


@dataclass(frozen=True, slots=True)
class DecisionLayout:
    """Sums over decisions."""

    tail: ClassVar[str] = "job_latency_p95_s"

    @property
    def width(self) -> int:
        """Numbers in a row of sums."""
        return len(_SUMS)

    def sums(self, episodes: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
        """Sums over decisions as they stand in ``episodes.jsonl``, ``(width,)``."""
        plain = [sum(episode[name] for episode in episodes) for name in FIELDS]
        jobs = sum(len(episode["job_latency_s"]) for episode in episodes)
        latency_s = sum(sum(episode["job_latency_s"]) for episode in episodes)
        return np.array([*plain, jobs, latency_s], dtype=np.float64)

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Metrics of pooled sums ``(..., width)``, ``(...)`` each.

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

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """None are shown."""
        return {}

    def values(self, episode: Mapping[str, Any]) -> Sequence[float]:
        """Latencies of the jobs that ended in the interval."""
        latencies: list[float] = episode["job_latency_s"]
        return latencies
