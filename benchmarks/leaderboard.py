"""The leaderboard of a results folder: rows per cell, and averages over cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fluid import fluid_averages
from benchmarks.metrics import METRICS, Columns
from benchmarks.results import Results, Stratum, StratumKey, Sweep
from benchmarks.stats import CONFIDENCE, NUM_RESAMPLES, interval, iqm

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

    A row pools the queries of all seeds of one policy, workload, rate and budget. Averages give
    each such cell the same weight, over the cells that every policy has finished, so that policies
    stay comparable while a run goes on.

    Args:
        results: A results folder.
        bootstrap_seed: Seed of the intervals.
        num_resamples: Resamples of the bootstrap.
        fluid: Whether fluid bounds that have not been computed yet are.

    Returns:
        ``rows``; ``ranking``, ``by_workload``, ``by_rate`` and ``by_budget`` (averages, best
        goodput first); ``fluid`` (bounds on goodput, or None); ``notes`` for the reader; and how
        the intervals were made. Every metric has its interval under ``<metric>_ci95``. Policies
        that cannot be beaten (``bound`` is true) are listed, but hold no place; what the others
        reach of the best of them is ``of_bound``.
    """
    bounds = set(results.header.get("bounds", ()))
    strata = {policy: results.strata(policy) for policy in results.policies}
    common = [
        key for key in next(iter(strata.values())) if all(key in own for own in strata.values())
    ]
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("rows", "ranking", "by_workload", "by_rate", "by_budget")
    }
    groups: dict[tuple[str, Any], dict[str, Average]] = {}
    for policy, own in strata.items():
        averages: dict[tuple[str, Any], Average] = {}
        for key, sweeps in own.items():
            stratum = Stratum.of(list(sweeps.values()))
            row, estimate, draws = _row(
                results.columns, policy, key, sweeps, stratum, bootstrap_seed, num_resamples
            )
            tables["rows"].append({**row, "bound": policy in bounds})
            if key not in common:
                continue
            for group in _groups(key):
                averages.setdefault(group, Average(results.columns)).add(stratum, estimate, draws)
        for (table, value), average in averages.items():
            where = {} if table == "ranking" else {_AXIS[table]: value}
            row = {"policy": policy, "bound": policy in bounds, **where, **average.summary()}
            tables[table].append(row)
            groups.setdefault((table, value), {})[policy] = average
        if ("ranking", None) in averages:
            tables["ranking"][-1].update(
                _iqm(own, common, results.columns, bootstrap_seed, num_resamples)
            )
    for table in ("ranking", "by_workload", "by_rate", "by_budget"):
        for row in tables[table]:
            peers = groups[table, row[_AXIS[table]] if table in _AXIS else None]
            row.update(_of_bound(peers, row["policy"], bounds))
        tables[table].sort(key=_rank(_AXIS.get(table)))
    return {
        "folder": str(results.folder),
        "suite": results.header["suite"]["name"],
        "tasks": results.header["suite"]["tasks"],
        "backend": results.header["suite"].get("backend", "surrogate"),
        "pool": results.header["suite"]["pool"],
        "cells": len(results.sweeps),
        "episodes": results.episodes,
        "intervals": {
            "method": "stratified bootstrap over sweeps, expanded percentile interval",
            "confidence": CONFIDENCE,
            "num_resamples": num_resamples,
            "seed": bootstrap_seed,
        },
        "fluid": fluid_averages(results, common, compute=fluid),
        "notes": _notes(strata, common),
        **tables,
    }


_AXIS = {"by_workload": "workload", "by_rate": "rate_per_min", "by_budget": "budget_s"}


class Average:
    """The mean of every metric over strata, each with the same weight, with its bootstrap draws.

    Args:
        columns: Layout of the sums.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._estimate: dict[str, float] = {}
        self._draws: Draws = {}
        self._units: list[int] = []
        self._shares: list[dict[str, dict[str, float]]] = []
        self._episodes = 0

    def add(self, stratum: Stratum, estimate: dict[str, float], draws: Draws) -> None:
        """Take one more stratum into the average."""
        for name, value in estimate.items():
            self._estimate[name] = self._estimate.get(name, 0.0) + value
            self._draws[name] = (
                self._draws[name] + draws[name] if name in self._draws else draws[name]
            )
        self._units.append(stratum.num_units)
        self._shares.append(self._columns.shares(stratum.sums.sum(axis=0)))
        self._episodes += stratum.latency_s.size

    def ratio(self, other: Average) -> dict[str, Any]:
        """Goodput over that of another policy on the same strata, ``of_bound`` as JSON."""
        if not other._estimate["goodput"]:
            return {}
        draws = np.divide(
            self._draws["goodput"],
            other._draws["goodput"],
            out=np.zeros_like(self._draws["goodput"]),
            where=other._draws["goodput"] > 0,
        )
        ends = interval(draws, np.asarray(self._units, dtype=np.int64))
        value = self._estimate["goodput"] / other._estimate["goodput"]
        return {"of_bound": value, "of_bound_ci95": [float(ends[0]), float(ends[1])]}

    @property
    def goodput(self) -> float:
        """Mean goodput."""
        return self._estimate["goodput"] / len(self._units)

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
            **with_intervals(means, draws, self._units),
            **shares,
        }


def with_intervals(
    values: dict[str, float], draws: Draws, units: Sequence[int]
) -> dict[str, float | list[float]]:
    """Metrics in their usual order, each followed by its 95 % interval."""
    levels = np.asarray(units, dtype=np.int64)
    names = [name for name in METRICS if name in values]
    ends = interval(np.stack([draws[name] for name in names], axis=1), levels)
    result: dict[str, float | list[float]] = {}
    for i, name in enumerate(names):
        result[name] = values[name]
        result[f"{name}_ci95"] = [float(ends[0, i]), float(ends[1, i])]
    return result


def _of_bound(group: dict[str, Average], policy: str, bounds: set[str]) -> dict[str, Any]:
    """What a policy reaches of the best bound's goodput; nothing where there is no bound."""
    known = [group[name] for name in group if name in bounds]
    if not known:
        return {}
    return group[policy].ratio(max(known, key=lambda average: average.goodput))


def _row(
    columns: Columns,
    policy: str,
    key: StratumKey,
    sweeps: dict[int, Sweep],
    stratum: Stratum,
    seed: int,
    num_resamples: int,
) -> tuple[dict[str, Any], dict[str, float], Draws]:
    estimate = {name: float(v[0]) for name, v in stratum.metrics(columns, stratum.once()).items()}
    draws = stratum.draws(columns, key, seed, num_resamples)
    row = {
        "policy": policy,
        **key._asdict(),
        "seeds": sorted(sweeps),
        "episodes": stratum.latency_s.size,
        **with_intervals(estimate, draws, [stratum.num_units]),
        **columns.shares(stratum.sums.sum(axis=0)),
    }
    return row, estimate, draws


def _groups(key: StratumKey) -> list[tuple[str, Any]]:
    return [
        ("ranking", None),
        ("by_workload", key.workload),
        ("by_rate", key.rate_per_min),
        ("by_budget", key.budget_s),
    ]


def _iqm(
    strata: dict[StratumKey, dict[int, Sweep]],
    common: Iterable[StratumKey],
    columns: Columns,
    seed: int,
    num_resamples: int,
) -> dict[str, Any]:
    """Interquartile mean of goodput: over all sweeps but the best and the worst quarter."""
    scores, draws, units = [], [], []
    for key in common:
        stratum = Stratum.of(list(strata[key].values()))
        goodput = columns.evaluate(stratum.sums)["goodput"]
        counts = stratum.counts(key, seed, min(num_resamples, 2000))
        index = np.repeat(np.tile(np.arange(stratum.num_units), counts.shape[0]), counts.ravel())
        scores.append(goodput)
        draws.append(goodput[index].reshape(counts.shape))
        units.append(stratum.num_units)
    ends = interval(iqm(np.concatenate(draws, axis=1)), np.asarray(units, dtype=np.int64))
    return {
        "goodput_iqm": float(iqm(np.concatenate(scores))),
        "goodput_iqm_ci95": [float(ends[0]), float(ends[1])],
    }


def _rank(axis: str | None) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        where = row[axis] if axis else 0
        return (float("inf") if where == "tiers" else where, -row["goodput"], row["policy"])

    return key


def _notes(
    strata: dict[str, dict[StratumKey, dict[int, Sweep]]], common: Sequence[StratumKey]
) -> list[str]:
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
