"""Results as arrays, from which a leaderboard and a comparison are computed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.cells import BaseCell, Place
from inframind_gym.benchmark.episodes import Episode, parts
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import Family, family_of
from inframind_gym.benchmark.lines import BROKEN, CellResult, Timing
from inframind_gym.benchmark.metrics import TAIL, Layout
from inframind_gym.benchmark.stats import (
    distinct_rows,
    interval,
    pooled_quantile,
    resample_counts,
)
from inframind_gym.benchmark.store import CELLS, read_cells, read_header, read_timings


def _generator(seed: int, of: object) -> np.random.Generator:
    """Return the generator of what the bootstrap draws for a place or a policy."""
    digest = hashlib.sha256(repr(of).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


@dataclass(frozen=True, slots=True)
class Stratum:
    """The episodes behind one row, as units that can be resampled.

    A unit is an episode. A lone episode is cut into ten stretches of consecutive queries, which are
    its units (the method of batch means): neighbours share their queues, distant stretches hardly
    do.

    Attributes:
        sums: ``(num_units, width)``.
        values: ``(num_values,)``.
        unit: Unit of each of them, ``(num_values,)``.
        records: Number of records of all episodes.
    """

    sums: NDArray[np.float64]
    values: NDArray[np.float64]
    unit: NDArray[np.int64]
    records: int

    @classmethod
    def by_training(cls, episodes: Iterable[Sequence[Episode]]) -> list[Stratum]:
        """Pool the episodes of each training, from those of each seed."""
        return [cls.of(own) for own in zip(*episodes, strict=True)]

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Stratum:
        """Pool the episodes of one row."""
        records = sum(episode.records for episode in episodes)
        if len(episodes) == 1:
            used = np.unique(parts(records))
            unit = np.searchsorted(used, episodes[0].part)
            return cls(episodes[0].sums[used], episodes[0].values, unit, records)
        sizes = [episode.values.size for episode in episodes]
        return cls(
            np.stack([episode.sums.sum(axis=0) for episode in episodes]),
            np.concatenate([episode.values for episode in episodes]),
            np.repeat(np.arange(len(episodes)), sizes),
            records,
        )

    @property
    def num_units(self) -> int:
        """Units that are resampled."""
        return int(self.sums.shape[0])

    def metrics(self, layout: Layout, counts: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Compute every metric with unit u taken ``counts[b, u]`` times, ``(num_resamples,)``."""
        tail = np.zeros(len(counts))
        if self.values.size:
            tail = pooled_quantile(self.values, self.unit, counts, TAIL)
        return {**layout.evaluate(counts @ self.sums), layout.tail: tail}

    def counts(self, place: Place, seed: int, num_resamples: int) -> NDArray[np.int64]:
        """Draw how often each resample takes each unit, ``(num_resamples, num_units)``."""
        return resample_counts(_generator(seed, place), self.num_units, num_resamples)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Metrics of a stratum, or of several with the same weight, with their bootstrap draws.

    Attributes:
        names: The metrics, M of them.
        sums: Sums of their values over the strata, ``(M,)``.
        draws_of_sums: The same for every resample, ``(num_resamples, M)``.
        units: Resampled units of each stratum.
        records: Number of records behind it.
        shares: Sums over the strata of shares of what was used.
        sums_by_training: `sums` of every training, ``(num_trainings, M)``.
    """

    names: tuple[str, ...]
    sums: NDArray[np.float64]
    draws_of_sums: NDArray[np.float64]
    units: tuple[int, ...]
    records: int
    shares: dict[str, dict[str, float]]
    sums_by_training: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        layout: Layout,
        policy: str,
        trainings: Sequence[Stratum],
        place: Place,
        seed: int,
        num_resamples: int,
    ) -> Estimate:
        """Estimate the metrics of a policy at a place, from the same episodes of each training.

        A metric is the mean over the trainings, which are drawn alike at all places.
        """
        alone = [
            cls._of_training(names, layout, stratum, place, seed, num_resamples)
            for stratum in trainings
        ]
        count = len(alone)
        if count == 1:
            return alone[0]
        pooled = cls.over_draws(alone)
        drawn = resample_counts(_generator(seed, policy), count, num_resamples) / count
        weighted = (
            one.draws_of_sums * own[:, None] for one, own in zip(alone, drawn.T, strict=True)
        )
        return replace(
            pooled,
            draws_of_sums=sum(weighted, np.zeros_like(pooled.draws_of_sums)),
            sums_by_training=np.stack([one.sums for one in alone]),
        )

    @classmethod
    def _of_training(
        cls,
        names: tuple[str, ...],
        layout: Layout,
        stratum: Stratum,
        place: Place,
        seed: int,
        num_resamples: int,
    ) -> Estimate:
        """Estimate the metrics of one stratum: episodes of one training at one place.

        The resamples are the same for every policy and independent of those of other strata. Few
        units give few different resamples (five seeds: 126), and each is evaluated once.
        """
        counts = stratum.counts(place, seed, num_resamples)
        different, which = distinct_rows(counts)
        all_once = np.ones((1, stratum.num_units), dtype=np.int64)
        metrics = stratum.metrics(layout, np.concatenate([all_once, different]))
        table = np.stack([metrics[name] for name in names], axis=1)
        shares = layout.shares(stratum.sums.sum(axis=0))
        draws = table[1:][which]
        units, by_training = (stratum.num_units,), table[:1]
        return cls(names, table[0], draws, units, stratum.records, shares, by_training)

    def __add__(self, other: Estimate) -> Estimate:
        """Pool with another estimate; each stratum keeps its weight."""
        return Estimate(
            self.names,
            self.sums + other.sums,
            self.draws_of_sums + other.draws_of_sums,
            self.units + other.units,
            self.records + other.records,
            {
                share: {name: value + other.shares[share][name] for name, value in own.items()}
                for share, own in self.shares.items()
            },
            self.sums_by_training + other.sums_by_training,
        )

    @classmethod
    def over_draws(cls, estimates: Sequence[Estimate]) -> Estimate:
        """Average estimates of the same episodes under draws of quality: one stratum still."""
        first, count = estimates[0], len(estimates)
        if count == 1:
            return first
        return cls(
            first.names,
            np.mean([estimate.sums for estimate in estimates], axis=0),
            np.mean([estimate.draws_of_sums for estimate in estimates], axis=0),
            first.units,
            sum(estimate.records for estimate in estimates),
            {
                share: {
                    name: sum(estimate.shares[share][name] for estimate in estimates) / count
                    for name in own
                }
                for share, own in first.shares.items()
            },
            np.mean([estimate.sums_by_training for estimate in estimates], axis=0),
        )

    def only(self, names: Sequence[str]) -> Estimate:
        """Return the estimate of some of the metrics, without shares."""
        i = [self.names.index(name) for name in names]
        return replace(
            self,
            names=tuple(names),
            sums=self.sums[i],
            draws_of_sums=self.draws_of_sums[:, i],
            shares={},
            sums_by_training=self.sums_by_training[:, i],
        )

    def value(self, name: str) -> float:
        """Return the mean of a metric."""
        return float(self.values[self.names.index(name)])

    @property
    def values(self) -> NDArray[np.float64]:
        """Means over the strata, ``(M,)``."""
        return self.sums / len(self.units)

    @property
    def draws(self) -> NDArray[np.float64]:
        """Means over the strata for every resample, ``(num_resamples, M)``."""
        return self.draws_of_sums / len(self.units)

    @property
    def by_training(self) -> NDArray[np.float64]:
        """Means over the strata with every training, ``(num_trainings, M)``."""
        return self.sums_by_training / len(self.units)

    def to_json(self) -> dict[str, Any]:
        """Return records, every metric followed by its 95 % interval, and shares."""
        content: dict[str, Any] = {"records": self.records}
        if len(self.by_training) > 1:
            content["trainings"] = len(self.by_training)
        ends = interval(self.draws, np.asarray(self.units), by_training=[self.by_training])
        for name, value, interval_of in zip(self.names, self.values, ends.T, strict=True):
            content |= {name: float(value), f"{name}_ci95": interval_of.tolist()}
        for share, own in self.shares.items():
            content[share] = {name: value / len(self.units) for name, value in own.items()}
        return content


@dataclass(frozen=True, slots=True)
class Results:
    """A results folder.

    Attributes:
        folder: Where it is.
        header: Content of ``run.json``.
        family: Family of its cells.
        layout: Of the sums.
        episodes: The finished cells, but for those of policies that were left out.
        timings: Time that policies took to decide in them, where that was measured.
        missing: Coordinates of the planned cells that are not there, by policy.
        damaged: Lines of ``cells.jsonl`` that do not hold their checksum.
        unplanned: Cells that are left out, since the folder's runs did not plan them.
    """

    folder: Path
    header: dict[str, Any]
    family: Family
    layout: Layout
    episodes: dict[BaseCell, Episode]
    timings: dict[BaseCell, Timing]
    missing: dict[str, list[str]]
    damaged: int
    unplanned: int

    @property
    def left_out(self) -> dict[str, str]:
        """Policies that could not play, and why."""
        return dict(self.header.get("left_out", {}))

    @property
    def planned(self) -> int:
        """Number of cells of a complete folder."""
        return len(self.episodes) + sum(map(len, self.missing.values()))

    def notes(self) -> list[str]:
        """Return what a reader has to know who takes the folder for complete."""
        notes = [f"{policy} was left out: {why}" for policy, why in self.left_out.items()]
        for texts in self.header.get("estimates", {}).values():
            notes += [text for text in texts if text not in notes]
        if self.missing:
            parts = [
                f"{len(cells)} of {policy} ({'; '.join(cells[:2])}{'; …' if cells[2:] else ''})"
                for policy, cells in self.missing.items()
            ]
            damaged = f" ({self.damaged} damaged or torn)" if self.damaged else ""
            notes.append(
                f"unfinished, {len(self.episodes)} of {self.planned} cells; missing{damaged}: "
                f"{', '.join(parts)}. The command that made {self.folder} continues it"
            )
        if self.unplanned:
            notes.append(f"left out: {self.unplanned} cells that no run of {self.folder} planned")
        if self.timings and len(self.timings) < len(self.episodes):
            notes.append(f"times are those of {len(self.timings)} of {len(self.episodes)} cells")
        return notes

    @property
    def policies(self) -> tuple[str, ...]:
        """Policies with results, in the order of the run."""
        present = {cell.policy for cell in self.episodes}
        return tuple(name for name in self.header["policies"] if name in present)

    @property
    def records(self) -> int:
        """Queries (or decisions) of all finished cells."""
        return sum(episode.records for episode in self.episodes.values())

    def strata(self, policy: str) -> dict[Place, dict[int, tuple[Episode, ...]]]:
        """Return the episodes of a policy by place and seed, one of each training.

        A seed that not all trainings of the place have finished is left out.
        """
        found: dict[Place, dict[int, list[Episode]]] = {}
        for cell, episode in sorted(self.episodes.items(), key=lambda item: item[0].sort_key):
            if cell.policy == policy:
                found.setdefault(cell.place, {}).setdefault(cell.seed, []).append(episode)
        strata = {}
        for place, by_seed in found.items():
            trainings = max(map(len, by_seed.values()))
            strata[place] = {s: tuple(own) for s, own in by_seed.items() if len(own) == trainings}
        return strata


def load_results(folder: Path, computed: Mapping[str, CellResult] | None = None) -> Results:
    """Read the finished cells of a folder.

    Args:
        folder: A results folder.
        computed: Cells that this process has just put there, by their ids: they are not read.

    Raises:
        InfraMindError: It is no results folder, or holds no finished cell that can be read.
    """
    header = read_header(folder)
    try:
        family = family_of(header["suite"])
        layout = family.layout(header)
        if not {"name", *family.shown} <= header["suite"].keys():
            raise KeyError
    except (KeyError, TypeError):
        raise BenchmarkError(
            f"{folder}: run.json was written by another version of the benchmark."
        ) from None
    planned = header.get("planned", {})
    missing = {
        policy: dict(cells)
        for policy, cells in planned.items()
        if policy not in header.get("left_out", {})
    }
    taken = read_timings(folder)
    episodes: dict[BaseCell, Episode] = {}
    timings: dict[BaseCell, Timing] = {}
    damaged = unplanned = 0

    def keep(cell: BaseCell, name: str) -> bool:
        """Return whether a cell counts, and take it off what is missing."""
        nonlocal unplanned
        if cell.policy in header.get("left_out", {}):
            return False
        if planned and name not in planned.get(cell.policy, {}):
            unplanned += 1
            return False
        missing.get(cell.policy, {}).pop(name, None)
        if name in taken:
            timings[cell] = taken[name]
        return True

    for name, one in (computed or {}).items():
        if keep(one.cell, name):
            episodes[one.cell] = one.episode
    for found in read_cells(folder, besides=computed or ()):
        if found is None:
            damaged += 1
        elif keep(found.cell, name := found.line["cell"]):
            try:
                episodes[found.cell] = found.episode(layout)
            except BROKEN as error:
                raise BenchmarkError(
                    f"{folder / CELLS}: the records of cell {name} cannot be read ({error!r:.200})"
                    ", although its checksum holds: another program wrote them. Delete the line "
                    f"and run the command that made {folder} again."
                ) from None
    if not episodes:
        torn = f" ({damaged} damaged or torn)" if damaged else ""
        raise BenchmarkError(
            f"{folder} holds no finished cell yet{torn}. Run the command that made it again."
        )
    lacking = {policy: list(cells.values()) for policy, cells in missing.items() if cells}
    return Results(folder, header, family, layout, episodes, timings, lacking, damaged, unplanned)
