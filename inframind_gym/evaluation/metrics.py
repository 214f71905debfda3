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
        names: Names of what records have the numbers of, as ``run.json`` has them.
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
        """Return what each record adds to the sums that are no fields of it, (num_records,)."""
        return {RECORDS: np.ones(len(next(iter(columns.values()))))}

    def table(self, columns: Columns) -> NDArray[np.float64]:
        """Return what each record adds to the sums, ``(num_records, width)``."""
        derived = self.derived(columns)
        added = [derived[name] if name in derived else columns[name] for name in self.sums]
        return np.column_stack(added).astype(np.float64)

    def values(self, columns: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the numbers whose quantile is the tail, and the record of each, ``(k,)``."""
        values = columns[self.metrics[self.tail].tail_of].astype(np.float64)
        return values, np.arange(len(values))

    def named(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return sums ``(..., width)`` by their names, ``(...)`` each."""
        return dict(zip(self.sums, np.moveaxis(sums, -1, 0), strict=True))

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
