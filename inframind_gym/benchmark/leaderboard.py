"""The leaderboard of a results folder: rows per cell, and averages over cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.cells import Axis, Place, in_order
from inframind_gym.benchmark.families import Family, Layout
from inframind_gym.benchmark.metrics import Metric
from inframind_gym.benchmark.results import Results, Stratum, Sweep
from inframind_gym.benchmark.stats import CONFIDENCE, NUM_RESAMPLES, interval, iqm
from inframind_gym.benchmark.timings import timing_rows

MIN_SEEDS = 5

Draws = dict[str, NDArray[np.float64]]


def leaderboard(
    results: Results,
    *,
    bootstrap_seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
    fluid: bool = False,
) -> dict[str, Any]:
    """Compute a leaderboard as JSON content.

    A row pools the episodes of all seeds of one policy and place (for routing a workload, rate and
    budget). Averages give each such cell the same weight, over the cells that every policy has
    finished, so that policies stay comparable while a run goes on.

    Args:
        results: A results folder.
        bootstrap_seed: Seed of the intervals.
        num_resamples: Resamples of the bootstrap.
        fluid: Whether fluid bounds that have not been computed yet are.

    Returns:
        ``rows``; ``ranking`` and one table for each axis, for routing ``by_workload``, ``by_rate``
        and ``by_budget`` (averages, best score first); ``fluid`` (bounds on goodput, or None);
        ``notes`` for the reader; and how the intervals were made. Every metric has its interval
        under ``<metric>_ci95``. Policies that cannot be beaten (``bound`` is true) are listed, but
        hold no place; what the others reach of the best of them is ``of_bound``. Where it was
        measured how long policies take to decide, ``timing`` has it.
    """
    family, layout = results.family, results.layout
    axes = {axis.table: axis for axis in family.cell.axes}
    bounds = set(results.header.get("bounds", ()))
    strata = {policy: results.strata(policy) for policy in results.policies}
    common = [
        key for key in next(iter(strata.values())) if all(key in own for own in strata.values())
    ]
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in ("rows", "ranking", *axes)}
    groups: dict[tuple[str, Any], dict[str, Average]] = {}
    for policy, own in strata.items():
        averages: dict[tuple[str, Any], Average] = {}
        for key, sweeps in own.items():
            stratum = Stratum.of(list(sweeps.values()))
            row, estimate, draws = _row(
                family, layout, policy, key, sweeps, stratum, bootstrap_seed, num_resamples
            )
            tables["rows"].append({**row, "bound": policy in bounds})
            if key not in common:
                continue
            for group in [("ranking", None), *zip(axes, key, strict=True)]:
                average = averages.setdefault(group, Average(family, layout))
                average.add(sweeps.values(), stratum, estimate, draws)
        for (table, value), average in averages.items():
            where = {} if table == "ranking" else {axes[table].name: value}
            row = {"policy": policy, "bound": policy in bounds, **where, **average.summary()}
            tables[table].append(row)
            groups.setdefault((table, value), {})[policy] = average
        if ("ranking", None) in averages:
            tables["ranking"][-1].update(
                _iqm(own, common, family.score, layout, bootstrap_seed, num_resamples)
            )
    for table in ("ranking", *axes):
        axis = axes.get(table)
        for row in tables[table]:
            peers = groups[table, row[axis.name] if axis else None]
            row.update(_of_bound(peers, row["policy"], bounds))
        tables[table].sort(key=_rank(axis, family.metrics[family.score]))
    timing = timing_rows(results, common)
    return {
        "folder": str(results.folder),
        "suite": results.header["suite"]["name"],
        **family.about(results.header),
        "cells": len(results.sweeps),
        "episodes": results.episodes,
        "intervals": {
            "method": "stratified bootstrap over sweeps, expanded percentile interval",
            "confidence": CONFIDENCE,
            "num_resamples": num_resamples,
            "seed": bootstrap_seed,
        },
        "fluid": family.limits(results, common, compute=fluid),
        "notes": _notes(strata, common),
        **tables,
        **({"timing": timing} if timing else {}),
    }


class Average:
    """The mean of every metric over strata, each with the same weight, with its bootstrap draws.

    Args:
        family: Which metrics there are, and which one is the score.
        layout: Of the sums.
    """

    def __init__(self, family: Family, layout: Layout) -> None:
        self._metrics, self._layout = family.metrics, layout
        self._score = family.metrics[family.score]
        self._estimate: dict[str, float] = {}
        self._draws: Draws = {}
        self._units: list[int] = []
        self._shares: list[dict[str, dict[str, float]]] = []
        self._episodes = 0

    def add(
        self, sweeps: Iterable[Sweep], stratum: Stratum, estimate: dict[str, float], draws: Draws
    ) -> None:
        """Take one more stratum into the average."""
        for name, value in estimate.items():
            self._estimate[name] = self._estimate.get(name, 0.0) + value
            self._draws[name] = (
                self._draws[name] + draws[name] if name in self._draws else draws[name]
            )
        self._units.append(stratum.num_units)
        self._shares.append(self._layout.shares(stratum.sums.sum(axis=0)))
        self._episodes += sum(sweep.episodes for sweep in sweeps)

    def ratio(self, other: Average) -> dict[str, Any]:
        """Score over that of a bound on the same strata, or the reverse where less is better.

        Returns:
            ``of_bound`` as JSON.
        """
        name = self._score.name
        over, under = (self, other) if self._score.higher_is_better else (other, self)
        if not under._estimate[name]:
            return {}
        draws = np.divide(
            over._draws[name],
            under._draws[name],
            out=np.zeros_like(over._draws[name]),
            where=under._draws[name] > 0,
        )
        ends = interval(draws, np.asarray(self._units, dtype=np.int64))
        value = over._estimate[name] / under._estimate[name]
        return {"of_bound": value, "of_bound_ci95": [float(ends[0]), float(ends[1])]}

    @property
    def score(self) -> float:
        """Mean score, larger is better."""
        return signed(self._score, self._estimate[self._score.name] / len(self._units))

    def summary(self) -> dict[str, Any]:
        """The averages as JSON."""
        n = len(self._units)
        means = {name: value / n for name, value in self._estimate.items()}
        draws = {name: values / n for name, values in self._draws.items()}
        shares = {
            share: {
                key: float(np.mean([s[share][key] for s in self._shares]))
                for key in self._shares[0][share]
            }
            for share in self._shares[0]
        }
        return {
            "cells": n,
            "episodes": self._episodes,
            **with_intervals(self._metrics, means, draws, self._units),
            **shares,
        }


def signed(metric: Metric, value: float) -> float:
    """A metric's value turned so that larger is better."""
    return value if metric.higher_is_better else -value


def with_intervals(
    metrics: Mapping[str, Metric],
    values: dict[str, float],
    draws: Draws,
    units: Sequence[int],
) -> dict[str, float | list[float]]:
    """Metrics in their usual order, each followed by its 95 % interval."""
    levels = np.asarray(units, dtype=np.int64)
    names = [name for name in metrics if name in values]
    ends = interval(np.stack([draws[name] for name in names], axis=1), levels)
    result: dict[str, float | list[float]] = {}
    for i, name in enumerate(names):
        result[name] = values[name]
        result[f"{name}_ci95"] = [float(ends[0, i]), float(ends[1, i])]
    return result


def _of_bound(group: dict[str, Average], policy: str, bounds: set[str]) -> dict[str, Any]:
    """What a policy reaches of the best bound's score; nothing where there is no bound."""
    known = [group[name] for name in group if name in bounds]
    if not known:
        return {}
    return group[policy].ratio(max(known, key=lambda average: average.score))


def _row(
    family: Family,
    layout: Layout,
    policy: str,
    key: Place,
    sweeps: dict[int, Sweep],
    stratum: Stratum,
    seed: int,
    num_resamples: int,
) -> tuple[dict[str, Any], dict[str, float], Draws]:
    estimate = {name: float(v[0]) for name, v in stratum.metrics(layout, stratum.once()).items()}
    draws = stratum.draws(layout, key, seed, num_resamples)
    row = {
        "policy": policy,
        **{axis.name: value for axis, value in zip(family.cell.axes, key, strict=True)},
        "seeds": sorted(sweeps),
        "episodes": sum(sweep.episodes for sweep in sweeps.values()),
        **with_intervals(family.metrics, estimate, draws, [stratum.num_units]),
        **layout.shares(stratum.sums.sum(axis=0)),
    }
    return row, estimate, draws


def _iqm(
    strata: dict[Place, dict[int, Sweep]],
    common: Iterable[Place],
    score: str,
    layout: Layout,
    seed: int,
    num_resamples: int,
) -> dict[str, Any]:
    """Interquartile mean of the score: over all sweeps but the best and the worst quarter."""
    scores, draws, units = [], [], []
    for key in common:
        stratum = Stratum.of(list(strata[key].values()))
        values = layout.evaluate(stratum.sums)[score]
        counts = stratum.counts(key, seed, min(num_resamples, 2000))
        index = np.repeat(np.tile(np.arange(stratum.num_units), counts.shape[0]), counts.ravel())
        scores.append(values)
        draws.append(values[index].reshape(counts.shape))
        units.append(stratum.num_units)
    ends = interval(iqm(np.concatenate(draws, axis=1)), np.asarray(units, dtype=np.int64))
    return {
        f"{score}_iqm": float(iqm(np.concatenate(scores))),
        f"{score}_iqm_ci95": [float(ends[0]), float(ends[1])],
    }


def _rank(axis: Axis | None, score: Metric) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        where = (row[axis.name],) if axis else ()
        return (*in_order(where), -signed(score, row[score.name]), row["policy"])

    return key


def _notes(strata: dict[str, dict[Place, dict[int, Sweep]]], common: Sequence[Place]) -> list[str]:
    notes = []
    every = {key for own in strata.values() for key in own}
    if len(common) < len(every):
        notes.append(
            f"averages are over the {len(common)} of {len(every)} cells "
            "that every policy has finished"
        )
    fewest = min(len(seeds) for own in strata.values() for seeds in own.values())
    if fewest == 1:
        notes.append(
            "some cells have one seed: their intervals come from stretches of that one sweep"
        )
    elif fewest < MIN_SEEDS:
        notes.append(
            f"some cells have {fewest} seeds: intervals from fewer than {MIN_SEEDS} are rough"
        )
    return notes
