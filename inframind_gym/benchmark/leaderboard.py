"""The leaderboard of a results folder: rows per place, and averages over places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from inframind_gym.benchmark.cells import Axis, Place, in_order
from inframind_gym.benchmark.draws import DrawOrder
from inframind_gym.benchmark.families import Family
from inframind_gym.benchmark.results import Estimate, Results, Stratum
from inframind_gym.benchmark.stats import CONFIDENCE, NUM_RESAMPLES, interval

MIN_SEEDS = 5


def leaderboard(
    results: Results,
    *,
    bootstrap_seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
    fluid: bool = False,
) -> dict[str, Any]:
    """Compute a leaderboard as JSON content.

    A row pools the queries of all seeds of one policy and place (for routing a workload, rate and
    budget). Averages give each place the same weight, over the places that every policy has
    finished, so that policies stay comparable while a run goes on.

    Args:
        results: A results folder.
        bootstrap_seed: Seed of the intervals.
        num_resamples: Resamples of the bootstrap.
        fluid: Whether to compute fluid bounds that have not been computed yet.

    Returns:
        ``rows``; ``ranking`` and one table for each axis, for routing ``by_workload``, ``by_rate``
        and ``by_budget`` (averages, best score first); ``fluid`` (bounds on goodput, or None);
        ``notes`` for the reader; numbers of ``cells`` and of ``planned`` ones, with those that are
        ``missing`` by policy, and reasons of policies ``left_out``; and the method of the
        intervals. Every metric has its interval under ``<metric>_ci95``. Policies that cannot be
        beaten (``bound`` is true) are listed without a rank; ``of_bound`` is the share of the best
        bound's score that the others reach, ``regret`` what they lose to `Family.regret`.
        ``timing`` has the times that policies take to decide, where they were measured. Of a run
        over draws of quality ``ahead_of_next`` counts those in which a policy has a better score
        than the next one.
    """
    family, layout = results.family, results.layout
    score = family.metrics[family.score]
    cell = family.suite.cell
    axes: dict[str, Axis | None] = {"ranking": None, **{axis.table: axis for axis in cell.axes}}
    names = layout.measured(family.metrics)
    bounds = set(results.header.get("bounds", ()))
    strata = {policy: results.strata(policy) for policy in results.policies}
    common = [
        key for key in next(iter(strata.values())) if all(key in own for own in strata.values())
    ]
    rows: list[dict[str, Any]] = []
    found: dict[str, dict[Place, Estimate]] = {policy: {} for policy in strata}
    # (table, value on its axis) -> policy -> average over the places with that value
    averages: dict[tuple[str, Any], dict[str, Estimate]] = {}
    orders: dict[tuple[str, Any], DrawOrder] = {}
    for policy, own in strata.items():
        known = {"policy": policy, "bound": policy in bounds}
        shown: dict[Place, list[Estimate]] = {}  # of every draw
        for place, episodes in own.items():
            trainings = Stratum.by_training(episodes.values())
            there, draw = cell.without_draw(place)
            estimate = Estimate.of(
                names, layout, policy, trainings, there, bootstrap_seed, num_resamples
            )
            where = cell.describe(place)
            rows.append({**known, **where, "seeds": sorted(episodes), **estimate.to_json()})
            if place not in common:
                continue
            if family.scored:
                found[policy][place] = estimate.only(family.scored)
            shown.setdefault(there, []).append(estimate)
            if draw is not None:
                for group in zip(axes, (None, *there), strict=True):
                    order = orders.setdefault(group, DrawOrder())
                    order.add(policy, draw, score.signed(estimate.value(score.name)))
        for place, estimates in shown.items():
            estimate = Estimate.over_draws(estimates)
            for group in zip(axes, (None, *place), strict=True):
                peers = averages.setdefault(group, {})
                peers[policy] = peers[policy] + estimate if policy in peers else estimate
    tables: dict[str, list[dict[str, Any]]] = {table: [] for table in axes}
    for (table, value), peers in averages.items():
        axis = axes[table]
        where = {axis.name: value} if axis else {}
        for policy, average in peers.items():
            known = {"policy": policy, "bound": policy in bounds, **where}
            known["cells"] = len(average.units)
            known["missing"] = len(results.missing.get(policy, ()))
            tables[table].append(
                {**known, **average.to_json(), **_of_bound(average, peers, bounds, family)}
            )
    for table, axis in axes.items():
        tables[table].sort(
            key=lambda row, axis=axis: (  # type: ignore[misc]
                *in_order((row[axis.name],) if axis else ()),
                -score.signed(row[score.name]),
                row["policy"],
            )
        )
        for at, ranked in groupby(
            (row for row in tables[table] if not row["bound"]),
            key=lambda row, axis=axis: row[axis.name] if axis else None,  # type: ignore[misc]
        ):
            if (table, at) in orders:
                orders[table, at].mark(list(ranked))
    timing = _timing_rows(results, common)
    return {
        "folder": str(results.folder),
        "suite": results.header["suite"]["name"],
        "kind": family.kind,
        **{key: results.header["suite"][key] for key in family.shown},
        "cells": len(results.episodes),
        "planned": results.planned,
        "missing": results.missing,
        "damaged": results.damaged,
        "left_out": results.left_out,
        "records": results.records,
        "intervals": {
            "method": "stratified bootstrap over episodes, expanded percentile interval",
            "confidence": CONFIDENCE,
            "num_resamples": num_resamples,
            "seed": bootstrap_seed,
        },
        "fluid": family.limits(results, common, compute=fluid),
        "notes": results.notes() + _notes(strata, common),
        "rows": rows,
        **tables,
        **family.scores(results, found),
        **({"timing": timing} if timing else {}),
    }


def _of_bound(
    average: Estimate, peers: Mapping[str, Estimate], bounds: set[str], family: Family
) -> dict[str, Any]:
    """Return the score over that of the best bound, or the reverse where less is better.

    Of a family with `regret`, return how much better the policy is that it names.
    """
    score = family.metrics[family.score]
    bounds = bounds & {family.regret} if family.regret else bounds
    known = [peers[name] for name in peers if name in bounds]
    if not known:
        return {}
    i = average.names.index(score.name)
    best = max(known, key=lambda bound: score.signed(bound.values[i]))
    if family.regret:
        lost = score.signed(1.0) * (best.draws[:, i] - average.draws[:, i])
        by_training = [average.by_training[:, i]]
        return {
            "regret": score.signed(float(best.values[i] - average.values[i])),
            "regret_ci95": _ends(lost, average, by_training),
        }
    over, under = (average, best) if score.better == "higher" else (best, average)
    if not under.values[i]:
        return {}
    top, bottom = over.draws[:, i], under.draws[:, i]
    ratios = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
    by_training = [over.by_training[:, i] / np.maximum(under.by_training[:, i], 1e-12)]
    return {
        "of_bound": float(over.values[i] / under.values[i]),
        "of_bound_ci95": _ends(ratios, average, by_training),
    }


def _ends(draws: Any, average: Estimate, by_training: Sequence[Any]) -> list[float]:
    ends = interval(draws, np.asarray(average.units), by_training=by_training)
    return list(map(float, ends))


def _notes(
    strata: Mapping[str, Mapping[Place, Mapping[int, Any]]], common: Sequence[Place]
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
            "some cells have one seed: their intervals come from stretches of that one episode"
        )
    elif fewest < MIN_SEEDS:
        notes.append(
            f"some cells have {fewest} seeds: intervals from fewer than {MIN_SEEDS} are rough"
        )
    return notes


def _timing_rows(results: Results, places: Sequence[Place]) -> list[dict[str, Any]]:
    """Return medians over cells of the times that policies take, by policy and first axis.

    Times are measured, not computed: they differ from run to run and have no intervals.
    """
    axis = results.family.suite.cell.axes[0].name
    found: dict[tuple[str, Any], list[dict[str, float]]] = {}
    for cell, timing in results.timings.items():
        if cell.place in places:
            found.setdefault((cell.policy, cell.place[0]), []).append(timing)
    return [
        {
            "policy": policy,
            axis: value,
            "cells": len(timings),
            **{name: float(np.median([t[name] for t in timings])) for name in timings[0]},
        }
        for policy in results.policies
        for value in dict.fromkeys(place[0] for place in places)
        if (timings := found.get((policy, value)))
    ]
