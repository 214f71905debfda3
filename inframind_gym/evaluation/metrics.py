"""Metrics of every family: how they are shown, and the sums over records of which they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

TAIL = 0.95  # the quantile that is a metric
RECORDS = "records"  # the sum of 1 over the records

Columns = Mapping[str, NDArray[Any]]  # records of an episode by field, ``(num_records, ...)`` each


@dataclass(frozen=True, slots=True)
class Metric:
    """Description of a metric.

    A metric is a quotient of two sums over records, or a quantile of a field over all records
    (`tail_of`), or, with an empty `whole`, computed from the sums by the layout.
    """

    name: str  # key in JSON
    label: str  # heading in tables, without the unit
    # "s", "%" (of a share, which JSON holds between 0 and 1), or "" for plain numbers
    unit: Literal["s", "%", ""] = ""
    # Direction of improvement; None where neither end is better
    better: Literal["higher", "lower"] | None = None
    decimals: int = 2  # of plain numbers below 100
    part: str | tuple[str, ...] = ""  # numerator: a sum, or several to add; empty: `name`
    whole: str = RECORDS  # denominator: a sum
    scale: float = 1.0  # factor of the quotient
    complement: bool = False  # whether the metric is 1 less the quotient
    tail_of: str = ""  # the field whose quantile TAIL it is; each layout has one such metric

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


class Layout:
    """Sums over the records of an episode, and the metrics that follow from the sums.

    Every metric but one is a function of sums: pooling episodes is adding rows of sums, and a
    bootstrap over episodes is one matrix product. The metric `tail` is a quantile of `values`.

    Args:
        metrics: By name.
        names: Names behind the indices in records, by kind, as in ``run.json``.
    """

    def __init__(
        self, metrics: Mapping[str, Metric], names: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.metrics, self.names = metrics, names or {}
        self.tail = next(name for name, one in metrics.items() if one.tail_of)

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Names of the columns of the table: here metrics that are means of fields, and RECORDS."""
        metrics = self.metrics.items()
        return (*(k for k, one in metrics if one.whole == RECORDS and not one.tail_of), RECORDS)

    def derived(self, columns: Columns) -> dict[str, NDArray[Any]]:
        """Return each record's share of the sums that are not fields, (num_records,) each."""
        return {RECORDS: np.ones(len(next(iter(columns.values()))))}

    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return each record's share of all sums, ``(num_records, width)``."""
        derived = self.derived(columns)
        parts = [derived[name] if name in derived else columns[name] for name in self.sums]
        return np.column_stack(parts).astype(np.float64)

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the numbers whose quantile is the tail, and the record of each, ``(k,)``."""
        values = columns[self.metrics[self.tail].tail_of].astype(np.float64)
        return values, np.arange(len(values))

    def named(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return sums ``(..., width)`` by their names, ``(...)`` each."""
        return dict(zip(self.sums, np.moveaxis(sums, -1, 0), strict=True))

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but the tail from sums ``(..., width)``, ``(...)`` each.

        A denominator of 0 counts as 1.
        """
        total, values = self.named(sums), {}
        for name, metric in self.metrics.items():
            if metric.whole and not metric.tail_of:
                parts = (metric.part or name,) if isinstance(metric.part, str) else metric.part
                whole = np.where(total[metric.whole] > 0.0, total[metric.whole], 1.0)
                quotient = metric.scale * (sum(total[part] for part in parts) / whole)
                values[name] = np.asarray(1.0 - quotient if metric.complement else quotient)
        return values

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Return the shares of models, strategies and so on that were used, from a row of sums."""
        return {}
