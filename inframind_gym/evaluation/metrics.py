"""Metrics of every family: their unit and direction, and how they follow from sums over records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

TAIL = 0.95  # the quantile of a layout's `values` that is a metric

Columns = Mapping[str, NDArray[Any]]  # records of an episode by field, ``(num_records, ...)`` each


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of a metric."""

    name: str  # key in JSON
    label: str  # heading in tables, without the unit
    # "s", "%" (of a share, which JSON holds between 0 and 1), or "" for plain numbers
    unit: Literal["s", "%", ""] = ""
    # Direction of improvement; None where neither end is better
    better: Literal["higher", "lower"] | None = None
    decimals: int = 2  # of plain numbers below 100

    @property
    def heading(self) -> str:
        """Label and unit."""
        return f"{self.label} {self.unit}".rstrip()

    def text(self, value: float, *, like: float | None = None) -> str:
        """Format a value; with as many decimals as the value `like` would have, if given."""
        scale = 100.0 if self.unit == "%" else 1.0
        large = self.unit != "%" and abs((value if like is None else like) * scale) >= 100
        decimals = 0 if large else 1 if self.unit else self.decimals
        return f"{value * scale:,.{decimals}f}"

    def signed(self, value: float) -> float:
        """Turn a value so that larger is better."""
        return value if self.better == "higher" else -value


def by_name(*metrics: Metric) -> dict[str, Metric]:
    """Return metrics by their names."""
    return {metric.name: metric for metric in metrics}


class Layout(ABC):
    """Sums over the records of an episode, and the metrics that follow from the sums.

    Every metric but one is a function of sums: pooling episodes is adding rows of sums, and a
    bootstrap over episodes is one matrix product. The metric `tail` is a quantile of `values`.
    """

    tail: ClassVar[str]

    @abstractmethod
    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return what each record adds to the sums, ``(num_records, width)``."""

    @abstractmethod
    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but the tail from sums ``(..., width)``, ``(...)`` each."""

    @abstractmethod
    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the numbers whose quantile is the tail, and the record of each, ``(k,)``."""

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Return shares of what was used, by kind and name, from one row of sums."""
        return {}
