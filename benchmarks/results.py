"""Results as arrays: what a leaderboard and a comparison are computed from."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import Budget, Cell
from benchmarks.errors import BenchmarkError
from benchmarks.metrics import TAIL, Columns
from benchmarks.stats import pooled_quantile, resample_counts
from benchmarks.store import read_blocks, read_episodes, read_header

NUM_PARTS = 10  # of a sweep, where a single one has to stand for itself


class StratumKey(NamedTuple):
    """What the seeds of one row have in common, without the policy."""

    workload: str
    rate_per_min: float
    budget_s: Budget

    @classmethod
    def of(cls, cell: Cell) -> StratumKey:
        """The stratum of a cell."""
        return cls(cell.workload, cell.rate_per_min, cell.budget_s)

    @property
    def sort_key(self) -> tuple[str, float, float]:
        """Order of strata in tables."""
        budget = float("inf") if self.budget_s == "tiers" else float(self.budget_s)
        return (self.workload, self.rate_per_min, budget)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One finished cell.

    Attributes:
        sums: Sums over each of ten stretches of queries in the order of arrival, ``(NUM_PARTS,
            width)``.
        latency_s: Latency of every query, ``(num_queries,)``.
        part: Stretch of every query, ``(num_queries,)``.
    """

    sums: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    part: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stratum:
    """The sweeps behind one row, as units that can be resampled.

    A unit is a sweep. A lone sweep is cut into ten stretches of consecutive queries, which are its
    units (the method of batch means): neighbours share their queues, distant stretches hardly do.

    Attributes:
        sums: ``(num_units, width)``.
        latency_s: ``(num_queries,)``.
        unit: Unit of each query, ``(num_queries,)``.
    """

    sums: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    unit: NDArray[np.int64]

    @classmethod
    def of(cls, sweeps: Sequence[Sweep]) -> Stratum:
        """Pool the sweeps of one row."""
        if len(sweeps) == 1:
            used = np.unique(sweeps[0].part)
            unit = np.searchsorted(used, sweeps[0].part)
            return cls(sweeps[0].sums[used], sweeps[0].latency_s, unit)
        sizes = [sweep.latency_s.size for sweep in sweeps]
        return cls(
            np.stack([sweep.sums.sum(axis=0) for sweep in sweeps]),
            np.concatenate([sweep.latency_s for sweep in sweeps]),
            np.repeat(np.arange(len(sweeps)), sizes),
        )

    @property
    def num_units(self) -> int:
        """Units that are resampled."""
        return int(self.sums.shape[0])

    def metrics(
        self, columns: Columns, counts: NDArray[np.int64]
    ) -> dict[str, NDArray[np.float64]]:
        """Every metric of the pooled queries, where unit u is taken ``counts[b, u]`` times.

        Args:
            columns: Layout of the sums.
            counts: ``(num_resamples, num_units)``.

        Returns:
            Values, ``(num_resamples,)`` each.
        """
        values = columns.evaluate(counts @ self.sums)
        values["latency_p95_s"] = pooled_quantile(self.latency_s, self.unit, counts, TAIL)
        return values

    def once(self) -> NDArray[np.int64]:
        """Counts that take every unit once: the estimate itself, ``(1, num_units)``."""
        return np.ones((1, self.num_units), dtype=np.int64)

    def draws(
        self, columns: Columns, key: StratumKey, seed: int, num_resamples: int
    ) -> dict[str, NDArray[np.float64]]:
        """Every metric of bootstrap resamples.

        The resamples are the same for every policy and independent of those of other strata. Few
        units give few different resamples (five seeds: 126), and each is evaluated once.

        Args:
            columns: Layout of the sums.
            key: The stratum.
            seed: Seed of the bootstrap.
            num_resamples: Number of resamples.

        Returns:
            Values, ``(num_resamples,)`` each.
        """
        different, which = np.unique(
            self.counts(key, seed, num_resamples), axis=0, return_inverse=True
        )
        metrics = self.metrics(columns, different)
        return {name: values[which.ravel()] for name, values in metrics.items()}

    def counts(self, key: StratumKey, seed: int, num_resamples: int) -> NDArray[np.int64]:
        """How often each resample takes each unit, ``(num_resamples, num_units)``."""
        digest = hashlib.sha256(repr(tuple(key)).encode()).digest()
        rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
        return resample_counts(rng, self.num_units, num_resamples)


@dataclass(frozen=True, slots=True)
class Results:
    """A results folder.

    Attributes:
        folder: Where it is.
        header: Content of ``run.json``.
        columns: Layout of the sums.
        sweeps: The finished cells.
    """

    folder: Path
    header: dict[str, Any]
    columns: Columns
    sweeps: dict[Cell, Sweep]

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies with results, in the order of the run."""
        present = {cell.policy for cell in self.sweeps}
        return tuple(name for name in self.header["policies"] if name in present)

    @property
    def episodes(self) -> int:
        """Queries of all finished cells."""
        return sum(sweep.latency_s.size for sweep in self.sweeps.values())

    def strata(self, policy: str) -> dict[StratumKey, dict[int, Sweep]]:
        """The sweeps of a policy by stratum and seed."""
        strata: dict[StratumKey, dict[int, Sweep]] = {}
        for cell, sweep in sorted(self.sweeps.items(), key=lambda item: item[0].sort_key):
            if cell.policy == policy:
                strata.setdefault(StratumKey.of(cell), {})[cell.seed] = sweep
        return strata


def load_results(folder: Path) -> Results:
    """Read the finished cells of a folder.

    Raises:
        BenchmarkError: It is no results folder, holds no finished cell, or is damaged.
    """
    header = read_header(folder)
    try:
        columns = Columns(**{key: tuple(names) for key, names in header["names"].items()})
    except (KeyError, TypeError):
        raise BenchmarkError(
            f"{folder}: run.json was written by another version of the benchmark."
        ) from None
    blocks = read_blocks(folder)
    if not blocks:
        raise BenchmarkError(
            f"{folder} holds no finished cell yet. Run the command that made it again."
        )
    sweeps = {
        block.cell: _sweep(columns, episodes) for block, episodes in read_episodes(folder, blocks)
    }
    return Results(folder, header, columns, sweeps)


def _sweep(columns: Columns, episodes: list[dict[str, Any]]) -> Sweep:
    part = np.arange(len(episodes)) * NUM_PARTS // len(episodes)
    edges = np.searchsorted(part, np.arange(NUM_PARTS + 1))
    return Sweep(
        np.stack([columns.sums(episodes[i:j]) for i, j in itertools.pairwise(edges)]),
        np.array([episode["latency_s"] for episode in episodes]),
        part,
    )
