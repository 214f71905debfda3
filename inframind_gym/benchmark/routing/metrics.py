"""Metrics of an episode of queries: sums over its queries, and what follows from the sums."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.metrics import Columns, Layout, Metric

SLO_TARGETS_S = (10, 30, 50, 100, 200, 300)
PRICE = "usd_per_1k_queries"  # of pools with prices alone
SHARES = ("model_share", "strategy_share", "topology_share")
METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "solved", "%", "higher"),
        Metric("goodput", "goodput", "%", "higher"),
        Metric("slo_own", "SLO", "%", "higher"),
        *(Metric(f"slo_{t}s", f"≤{t} s", "%", "higher") for t in SLO_TARGETS_S),
        Metric("latency_mean_s", "mean", "s", "lower"),
        Metric("latency_p95_s", "p95", "s", "lower"),
        Metric("cost_ratio", "lat./β", "", "lower"),
        Metric("imbalance", "imbalance", "", "lower"),
        Metric("tokens_per_query", "tokens/query"),
        Metric("output_tokens_per_query", "output tokens/query"),
        Metric("calls_per_query", "calls/query"),
        Metric("truncated_share", "cut", "%", "lower"),
        Metric(PRICE, "$ / 1k queries", "", "lower"),
    )
}
PLAIN_SUMS = (
    *("queries", "accuracy", "latency_mean_s", "slo_own"),
    *(f"slo_{target}s" for target in SLO_TARGETS_S),
    *("goodput", "cost_ratio"),
    *("calls_per_query", "prompt_tokens", "output_tokens", "truncated_calls"),
)


@dataclass(frozen=True, slots=True)
class QueryLayout(Layout):
    """Layout of a row of sums over queries.

    Attributes:
        models: Aliases of the pool's models.
        strategies: Prompt strategies.
        topologies: Collaboration topologies.
        priced: Whether the pool has prices: the last column is then what a query costs, USD.
    """

    tail: ClassVar[str] = "latency_p95_s"

    models: tuple[str, ...]
    strategies: tuple[str, ...]
    topologies: tuple[str, ...]
    priced: bool = False

    def measured(self, metrics: Mapping[str, Metric]) -> tuple[str, ...]:
        """Return the names of those metrics that its records give: a price only with prices."""
        return tuple(name for name in metrics if name != PRICE or self.priced)

    def share_slices(self) -> dict[str, tuple[slice, tuple[str, ...]]]:
        """Return the columns of each share's counts, and the names that they count."""
        named = (self.models, self.strategies, self.topologies)
        ends = itertools.accumulate(map(len, named), initial=len(PLAIN_SUMS))
        slices = itertools.starmap(slice, itertools.pairwise(ends))
        return dict(zip(SHARES, zip(slices, named, strict=True), strict=True))

    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return what each query adds to the sums, ``(num_queries, width)``."""
        solved, latency_s = columns["solved"], columns["latency_s"]
        in_time = latency_s <= columns["budget_s"]
        plain = [
            np.ones(len(solved)),
            solved,
            latency_s,
            in_time,
            *(latency_s <= target for target in SLO_TARGETS_S),
            solved * in_time,
            *(columns[key] for key in ("cost", "calls", "prompt_tokens", "output_tokens")),
            columns["truncated_calls"],
        ]
        counted = [
            _counts(columns["model"], self.models),
            _counts(columns["strategy"], self.strategies),
            _counts(columns["topology"][:, None], self.topologies),
        ]
        usd = [columns["usd"]] if self.priced else []
        return np.column_stack([*plain, *counted, *usd]).astype(np.float64)

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but ``latency_p95_s`` from sums ``(..., width)``, ``(...)`` each."""
        total = dict(zip(PLAIN_SUMS, np.moveaxis(sums, -1, 0), strict=False))
        queries = total.pop("queries")
        tokens = ("prompt_tokens", "output_tokens", "truncated_calls")
        prompt, output, cut = (total.pop(name) for name in tokens)
        return {
            **{name: value / queries for name, value in total.items()},
            "tokens_per_query": (prompt + output) / queries,
            "output_tokens_per_query": output / queries,
            "truncated_share": cut / np.maximum(total["calls_per_query"], 1.0),
            "imbalance": imbalance(sums[..., self.share_slices()["model_share"][0]]),
            **({PRICE: 1000.0 * sums[..., -1] / queries} if self.priced else {}),
        }

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return every query's latency, and the query."""
        return columns["latency_s"], np.arange(len(columns["latency_s"]))

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Return shares of models and strategies (of decisions) and of topologies (of queries).

        Args:
            sums: One row, ``(width,)``.
        """
        result = {}
        for share, (where, names) in self.share_slices().items():
            counts = sums[where]
            parts = counts / max(counts.sum(), 1.0)
            result[share] = dict(zip(names, parts.tolist(), strict=True))
        return result


def imbalance(calls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the population standard deviation over the mean of the models' shares of decisions.

    Shares of [.25, .5, .125, .125] give 0.612.

    Args:
        calls: Calls of each model, ``(..., num_models)``.

    Returns:
        0 for equal shares, ``sqrt(num_models - 1)`` if one model takes all; 0 where there are no
        calls. ``(...)``.
    """
    mean = calls.mean(axis=-1)
    return np.asarray(calls.std(axis=-1) / np.where(mean > 0, mean, 1.0), dtype=np.float64)


def _counts(chosen: NDArray[np.int8], names: Sequence[str]) -> NDArray[np.int64]:
    """Count how often each record has the index of each name, ``(num_records, num_names)``."""
    return np.stack([(chosen == index).sum(axis=1) for index in range(len(names))], axis=1)
