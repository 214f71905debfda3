"""A finished cell as boards need it: sums over its records, and the values of its tail."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.metrics import Columns, Layout

NUM_PARTS = 10  # stretches of a lone episode, which are resampled in place of episodes


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished cell.

    Attributes:
        records: Number of its records: queries in the order of arrival, or decisions.
        sums: Sums over each of ten stretches of them, ``(NUM_PARTS, width)``.
        values: Numbers whose tail is a metric, such as every query's latency, ``(num_values,)``.
        part: Stretch of each of them, ``(num_values,)``.
    """

    records: int
    sums: NDArray[np.float64]
    values: NDArray[np.float64]
    part: NDArray[np.int64]

    @classmethod
    def of(cls, layout: Layout, columns: Columns) -> Episode:
        """Sum up the records of a cell."""
        return cls.of_table(layout.table(columns), *layout.values(columns))

    @classmethod
    def of_table(
        cls,
        table: NDArray[np.float64],
        values: NDArray[np.float64],
        record: NDArray[np.int64],
    ) -> Episode:
        """Sum up records, given as `Layout.table` and `Layout.values` return them."""
        part = parts(len(table))
        edges = np.searchsorted(part, np.arange(NUM_PARTS + 1))
        sums = np.stack([table[i:j].sum(axis=0) for i, j in itertools.pairwise(edges)])
        return cls(len(table), sums, values.astype(np.float64), part[record])


def parts(records: int) -> NDArray[np.int64]:
    """Return the stretch of every record."""
    return np.asarray(np.arange(records) * NUM_PARTS // records, dtype=np.int64)
