"""Metrics of the teams: means over records, and the tail of one of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.metrics import Columns, Layout, Metric


def _by_name(*metrics: Metric) -> Mapping[str, Metric]:
    return MappingProxyType({metric.name: metric for metric in metrics})


ASSIGNMENT: Final[Mapping[str, Metric]] = _by_name(
    Metric("reward", "reward", "", "higher", decimals=3),
    Metric("quality", "quality", "%", "higher"),
    Metric("load_penalty", "load\npenalty", "", "lower", decimals=3),
    Metric("hot", "hot", "%", "lower"),
    Metric("imbalance", "imbalance", "", "lower"),
    Metric("usd_per_1000", "USD\nper 1000", "", "lower"),
    Metric("latency_s", "latency", "s", "lower"),
    Metric("latency_p95_s", "p95", "s", "lower"),
)
TOKEN_BUDGET: Final[Mapping[str, Metric]] = _by_name(
    Metric("return", "return", "", "higher", decimals=3),
    Metric("quality", "quality", "", "higher", decimals=1),
    Metric("reported_quality", "reported", "", None, decimals=1),
    Metric("tokens", "tokens", "", "lower"),
    Metric("calls", "calls", "", None),
    Metric("unspent_share", "unspent", "%", None),
    Metric("drained", "drained", "%", "lower"),
    Metric("quality_area", "area", "", "higher", decimals=1),
    Metric("tokens_p95", "p95", "", "lower"),
    Metric("overshoot", "overshoot", "", "lower", decimals=1),
)
COORDINATION: Final[Mapping[str, Metric]] = _by_name(
    Metric("return", "return", "", "higher", decimals=3),
    Metric("answer_score", "answer", "%", "higher"),
    Metric("success", "no\nfallback", "%", "higher"),
    Metric("latency_p95_s", "p95", "s", "lower"),
    Metric("validated", "validated", "%", "higher"),
    Metric("detection", "hallucinations\nfound", "%", "higher"),
    Metric("attribution", "attribution", "%", "higher"),
    Metric("context_kept", "context\nkept", "%", "higher"),
    Metric("overhead_ms", "overhead\nms", "", "lower", decimals=0),
    Metric("model_ms", "model\nms", "", "lower", decimals=0),
    Metric("tokens", "tokens", "", "lower"),
    Metric("lateness", "lateness", "%", "lower"),
    Metric("latency_s", "latency", "s", "lower"),
    Metric("forced", "forced", "%", "lower"),
    Metric("evidence", "evidence", "%", "higher"),
    Metric("decisions", "decisions", "", None),
    Metric("supervisor_tokens", "supervisor", "", "lower"),
    Metric("over_context_tokens", "over", "", "lower"),
    Metric("lied", "hallucinated", "", "lower"),
    Metric("caught", "found", "", None),
)


class MeanLayout(Layout):
    """Layout of sums over records, from which metrics follow as means.

    Args:
        fields: Numbers of a record.
        tail: Metric that is the quantile of one of them.
        tail_of: The number.
        ratios: Metrics that are a quotient of two of them.
    """

    def __init__(
        self,
        fields: tuple[str, ...],
        tail: str,
        tail_of: str,
        ratios: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        self.fields, self.tail_of, self.ratios = fields, tail_of, ratios
        self.tail = tail  # type: ignore[misc]  # of the class in other layouts

    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return the numbers of each record and a 1, ``(num_records, width)``."""
        numbers = [columns[name].astype(np.float64) for name in self.fields]
        return np.column_stack([*numbers, np.ones(len(numbers[0]))])

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute the means from ``(..., width)``, ``(...)`` each."""
        count = np.maximum(sums[..., -1], 1.0)
        found = {name: sums[..., i] / count for i, name in enumerate(self.fields)}
        for name, (part, whole) in self.ratios.items():
            there = found[whole] > 0.0
            found[name] = found[part] / np.where(there, found[whole], 1.0)
        return found

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the number whose tail is a metric, of every record."""
        values = columns[self.tail_of].astype(np.float64)
        return values, np.arange(len(values))
