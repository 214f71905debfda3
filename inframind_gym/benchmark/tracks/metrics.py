"""Metrics of an episode of a track: those of routing, what it scores, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.metrics import Columns, Metric
from inframind_gym.benchmark.routing.metrics import METRICS as ROUTING_METRICS
from inframind_gym.benchmark.routing.metrics import PLAIN_SUMS, QueryLayout
from inframind_gym.benchmark.tracks.suite import Played
from inframind_gym.benchmark.tracks.track import MOST_GROUPS

SCORE: Final = "score"
PROMISES: Final = (0.975, 0.95, 0.9)  # shares of the queries that are answered within 100 s
METRICS: Final[dict[str, Metric]] = {
    SCORE: Metric(SCORE, "track score", "%", "higher"),
    **ROUTING_METRICS,
    "weighted_goodput": Metric("weighted_goodput", "weighted", "%", "higher"),
    "worst_goodput": Metric("worst_goodput", "worst group", "%", "higher"),
    "unanswered": Metric("unanswered", "unanswered", "%", "lower"),
    "work_s_per_query": Metric("work_s_per_query", "GPU s/query", "", "lower", 3),
}
_IN_TIME: Final = [i for i, name in enumerate(PLAIN_SUMS) if name.startswith("slo_")]
# Sums beside those of routing: of each group, and of all queries.
_PER_GROUP: Final = ("queries", "good", "reach")
_PLAIN: Final = ("value", "good_value", "work_s", "cap_s", "worst_counts", "unanswered")


def track_columns(
    played: Played, columns: Columns, work_s: NDArray[np.float64]
) -> dict[str, NDArray[Any]]:
    """Return the fields that a track adds to the records (n,) of an episode.

    Args:
        played: What was played.
        columns: Of routing.
        work_s: (n,) GPU-seconds of every query.
    """
    scenario, n = played.scenario, len(work_s)
    group = np.searchsorted(scenario.groups_s, columns["budget_s"]).astype(np.int8)
    cap_s = played.cap_s if np.isfinite(played.cap_s) else 0.0  # 0: none
    return {
        "group": group,
        "value": np.array(scenario.weights)[group],
        "reach": np.array(played.limits.reach)[group],
        "work_s": work_s,
        "cap_s": np.full(n, cap_s),
        "worst_counts": np.full(n, played.track.counts == "worst"),
    }


@dataclass(frozen=True, slots=True)
class TrackLayout(QueryLayout):
    """Layout of a row of sums over queries: those of routing, then those of the track."""

    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return what each query adds to the sums, ``(num_queries, width)``."""
        good = columns["solved"] * (columns["latency_s"] <= columns["budget_s"])
        of = columns["group"][:, None] == np.arange(MOST_GROUPS)
        plain = [
            columns["value"],
            columns["value"] * good,
            *(columns[name] for name in ("work_s", "cap_s", "worst_counts")),
            columns["calls"] == 0,
        ]
        per_group = [of, of * good[:, None], of * columns["reach"][:, None]]
        routing = QueryLayout.table(self, columns)
        routing[np.ix_(columns["calls"] == 0, _IN_TIME)] = 0.0  # never answered
        return np.column_stack([routing, *plain, *per_group]).astype(np.float64)

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but the tail from sums ``(..., width)``, ``(...)`` each."""
        cut = sums.shape[-1] - len(_PLAIN) - len(_PER_GROUP) * MOST_GROUPS
        found = QueryLayout.evaluate(self, sums[..., :cut])
        plain = dict(zip(_PLAIN, np.moveaxis(sums[..., cut:], -1, 0), strict=False))
        groups = sums[..., cut + len(_PLAIN) :].reshape(*sums.shape[:-1], len(_PER_GROUP), -1)
        queries, good, reach = np.moveaxis(groups, -2, 0)
        total = queries.sum(axis=-1)
        weighted = plain["good_value"] / plain["value"]
        worst = np.where(plain["worst_counts"] > 0, _smallest(good, reach), weighted)
        paid = np.where(plain["work_s"] > plain["cap_s"], plain["cap_s"], plain["work_s"])
        share = np.where(plain["cap_s"] > 0, paid / np.maximum(plain["work_s"], 1e-12), 1.0)
        return {
            SCORE: worst * share,
            **found,
            "weighted_goodput": weighted,
            "worst_goodput": _smallest(good, queries),
            "unanswered": plain["unanswered"] / total,
            "work_s_per_query": plain["work_s"] / total,
        }


def _smallest(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest ratio over groups (..., G) that have queries, (...)."""
    ratio = np.divide(part, whole, out=np.full_like(part, np.inf), where=whole > 0)
    least: NDArray[np.float64] = ratio.min(axis=-1)
    return np.where(np.isfinite(least), least, 0.0)
