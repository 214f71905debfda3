"""Metrics of every family: how they are shown, and the sums over records of which they are made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

TAIL = 0.95  # the quantile that is a metric
RECORDS = "records"  # the sum of 1 over the records

Columns = Mapping[str, NDArray[Any]]  # records of an episode by field, ``(num_records, ...)`` each


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of a metric.

    It is a quotient of two sums over records, or a quantile of a field of all records (`tail_of`),
    or, with an empty `whole`, what a layout makes of the sums.
    """

    name: str  # key in JSON
    label: str  # heading in tables, without the unit
    # "s", "%" (of a share, which JSON holds between 0 and 1), or "" for plain numbers
    unit: Literal["s", "%", ""] = ""
    # Direction of improvement; None where neither end is better
    better: Literal["higher", "lower"] | None = None
    decimals: int = 2  # of plain numbers below 100
    part: str | tuple[str, ...] = ""  # the sum that is divided, or several; empty: `name`
    whole: str = RECORDS  # the sum that divides
    scale: float = 1.0  # of the quotient
    complement: bool = False  # whether it is what the quotient lacks of 1
    tail_of: str = ""

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

    metrics: Mapping[str, Metric]

    @property
    def tail(self) -> str:
        """Name of the metric that is a quantile."""
        return next(name for name, metric in self.metrics.items() if metric.tail_of)

    @property
    @abstractmethod
    def sums(self) -> Sequence[str]:
        """Names of the columns of the table; last ones, and "", are read by the layout alone."""

    @abstractmethod
    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return what each record adds to the sums, ``(num_records, width)``."""

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the numbers whose quantile is the tail, and the record of each, ``(k,)``."""
        values = columns[self.metrics[self.tail].tail_of].astype(np.float64)
        return values, np.arange(len(values))

    def named(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return sums ``(..., width)`` by their names, ``(...)`` each."""
        return dict(zip(self.sums, np.moveaxis(sums, -1, 0), strict=False))

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but the tail from sums ``(..., width)``, ``(...)`` each.

        Nothing over nothing is 0.
        """
        of, found = self.named(sums), {}
        for name, metric in self.metrics.items():
            if metric.whole and not metric.tail_of:
                parts = (metric.part or name,) if isinstance(metric.part, str) else metric.part
                whole = np.where(of[metric.whole] > 0.0, of[metric.whole], 1.0)
                quotient = metric.scale * (sum(of[part] for part in parts) / whole)
                found[name] = np.asarray(1.0 - quotient if metric.complement else quotient)
        return found

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Return shares of what was used, by kind and name, from one row of sums."""
        return {}
