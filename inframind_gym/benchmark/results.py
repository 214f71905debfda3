"""Results as arrays: what a leaderboard and a comparison are computed from."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.cells import BaseCell, Place
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import Family, Layout, family_of
from inframind_gym.benchmark.metrics import TAIL
from inframind_gym.benchmark.stats import pooled_quantile, resample_counts
from inframind_gym.benchmark.store import (
    Timing,
    read_blocks,
    read_episodes,
    read_header,
    read_timings,
)

NUM_PARTS = 10  # of a sweep, where a single one has to stand for itself


@dataclass(frozen=True, slots=True)
class Sweep:
    """One finished cell.

    Attributes:
        episodes: Number of its episodes: queries in the order of arrival, or decisions.
        sums: Sums over each of ten stretches of them, ``(NUM_PARTS, width)``.
        values: Numbers whose tail is a metric, such as every query's latency, ``(num_values,)``.
        part: Stretch of each of them, ``(num_values,)``.
    """

    episodes: int
    sums: NDArray[np.float64]
    values: NDArray[np.float64]
    part: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stratum:
    """The sweeps behind one row, as units that can be resampled.

    A unit is a sweep. A lone sweep is cut into ten stretches of consecutive queries, which are its
    units (the method of batch means): neighbours share their queues, distant stretches hardly do.

    Attributes:
        sums: ``(num_units, width)``.
        values: ``(num_values,)``.
        unit: Unit of each of them, ``(num_values,)``.
    """

    sums: NDArray[np.float64]
    values: NDArray[np.float64]
    unit: NDArray[np.int64]

    @classmethod
    def of(cls, sweeps: Sequence[Sweep]) -> Stratum:
        """Pool the sweeps of one row."""
        if len(sweeps) == 1:
            used = np.unique(_parts(sweeps[0].episodes))
            unit = np.searchsorted(used, sweeps[0].part)
            return cls(sweeps[0].sums[used], sweeps[0].values, unit)
        sizes = [sweep.values.size for sweep in sweeps]
        return cls(
            np.stack([sweep.sums.sum(axis=0) for sweep in sweeps]),
            np.concatenate([sweep.values for sweep in sweeps]),
            np.repeat(np.arange(len(sweeps)), sizes),
        )

    @property
    def num_units(self) -> int:
        """Units that are resampled."""
        return int(self.sums.shape[0])

    def metrics(self, layout: Layout, counts: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Every metric of the pooled sweeps, where unit u is taken ``counts[b, u]`` times.

        Args:
            layout: Of the sums.
            counts: ``(num_resamples, num_units)``.

        Returns:
            Values, ``(num_resamples,)`` each.
        """
        metrics = layout.evaluate(counts @ self.sums)
        if self.values.size:
            metrics[layout.tail] = pooled_quantile(self.values, self.unit, counts, TAIL)
        else:
            metrics[layout.tail] = np.zeros(counts.shape[0])
        return metrics

    def once(self) -> NDArray[np.int64]:
        """Counts that take every unit once: the estimate itself, ``(1, num_units)``."""
        return np.ones((1, self.num_units), dtype=np.int64)

    def draws(
        self, layout: Layout, place: Place, seed: int, num_resamples: int
    ) -> dict[str, NDArray[np.float64]]:
        """Every metric of bootstrap resamples.

        The resamples are the same for every policy and independent of those of other strata. Few
        units give few different resamples (five seeds: 126), and each is evaluated once.

        Args:
            layout: Of the sums.
            place: The stratum.
            seed: Seed of the bootstrap.
            num_resamples: Number of resamples.

        Returns:
            Values, ``(num_resamples,)`` each.
        """
        different, which = np.unique(
            self.counts(place, seed, num_resamples), axis=0, return_inverse=True
        )
        metrics = self.metrics(layout, different)
        return {name: values[which.ravel()] for name, values in metrics.items()}

    def counts(self, place: Place, seed: int, num_resamples: int) -> NDArray[np.int64]:
        """How often each resample takes each unit, ``(num_resamples, num_units)``."""
        digest = hashlib.sha256(repr(place).encode()).digest()
        rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
        return resample_counts(rng, self.num_units, num_resamples)


@dataclass(frozen=True, slots=True)
class Results:
    """A results folder.

    Attributes:
        folder: Where it is.
        header: Content of ``run.json``.
        family: What kind of cells it holds.
        layout: Of the sums.
        sweeps: The finished cells.
        timings: How long policies took to decide in them, where that was measured.
    """

    folder: Path
    header: dict[str, Any]
    family: Family
    layout: Layout
    sweeps: dict[BaseCell, Sweep]
    timings: dict[BaseCell, Timing]

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies with results, in the order of the run."""
        present = {cell.policy for cell in self.sweeps}
        return tuple(name for name in self.header["policies"] if name in present)

    @property
    def episodes(self) -> int:
        """Queries (or decisions) of all finished cells."""
        return sum(sweep.episodes for sweep in self.sweeps.values())

    def strata(self, policy: str) -> dict[Place, dict[int, Sweep]]:
        """The sweeps of a policy by place and seed."""
        strata: dict[Place, dict[int, Sweep]] = {}
        for cell, sweep in sorted(self.sweeps.items(), key=lambda item: item[0].sort_key):
            if cell.policy == policy:
                strata.setdefault(cell.place, {})[cell.seed] = sweep
        return strata


def load_results(folder: Path) -> Results:
    """Read the finished cells of a folder.

    Raises:
        BenchmarkError: It is no results folder, holds no finished cell, or is damaged.
    """
    header = read_header(folder)
    try:
        family = family_of(header["suite"])
        layout = family.layout(header)
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
        block.cell: _sweep(layout, episodes) for block, episodes in read_episodes(folder, blocks)
    }
    taken = read_timings(folder)
    timings = {b.cell: taken[b.line["cell"]] for b in blocks if b.line["cell"] in taken}
    return Results(folder, header, family, layout, sweeps, timings)


def _parts(episodes: int) -> NDArray[np.int64]:
    """The stretch of every episode."""
    return np.asarray(np.arange(episodes) * NUM_PARTS // episodes, dtype=np.int64)


def _sweep(layout: Layout, episodes: list[dict[str, Any]]) -> Sweep:
    part = _parts(len(episodes))
    edges = np.searchsorted(part, np.arange(NUM_PARTS + 1))
    values = [layout.values(episode) for episode in episodes]
    return Sweep(
        len(episodes),
        np.stack([layout.sums(episodes[i:j]) for i, j in itertools.pairwise(edges)]),
        np.array(list(itertools.chain.from_iterable(values)), dtype=np.float64),
        np.repeat(part, [len(some) for some in values]),
    )
