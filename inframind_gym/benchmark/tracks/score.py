"""Scores of tracks: goodput over the informed bound, pairs of policies, and frontiers.

The score of a policy on a track is the interquartile mean over its cells (Agarwal et al., "Deep RL
at the Edge of the Statistical Precipice", NeurIPS 2021) of what it reaches of the informed bound.
Intervals come from the stratified bootstrap over episodes, in which all policies take the same
episodes: a difference of two policies is paired.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.results import Estimate, Results
from inframind_gym.benchmark.stats import interval
from inframind_gym.benchmark.tracks.metrics import PROMISES, SCORE

AHEAD_IN: Final = 0.75  # of the tracks; and behind in none

Estimates = Mapping[str, Mapping[Place, Estimate]]  # policy -> place -> its metrics


def iqm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half of values (..., n), (...).

    Values at the quartiles count by the part of them that lies between.
    """
    n = values.shape[-1]
    edges = np.clip(np.arange(n + 1) / n, 0.25, 0.75)
    return np.asarray(np.sort(values, axis=-1) @ (2.0 * np.diff(edges)), np.float64)


def track_scores(results: Results, estimates: Estimates) -> dict[str, Any]:
    """Return what a leaderboard of tracks has beside its metrics.

    Args:
        results: A results folder of tracks.
        estimates: Metrics of every policy at the places that all have finished.

    Returns:
        ``tracks`` (score of every policy on every track, best first, and those of its trainings
        where there are several), ``pairs`` (of policies: in
        how many tracks the first is above and below the second, and whether it is ahead),
        ``promises`` and ``costs`` (frontiers), ``places`` (rates and bounds) and ``fits``.
    """
    places_of = results.header["places"].values()
    known = {(at["track"], at["scenario"], at["load"]): at for at in places_of}
    bounds = set(results.header.get("bounds", ()))
    players = {policy: own for policy, own in estimates.items() if policy not in bounds}
    played = {place for own in estimates.values() for place in own}
    tracks = dict.fromkeys(place[0] for place in known if place in played)
    drawn: dict[str, dict[str, _Drawn]] = {policy: {} for policy in players}
    rows = []
    for track in tracks:
        places = _bounded(known, next(iter(estimates.values())), track)
        if not places:
            continue
        informed = np.array([known[place]["informed"] for place in places])
        for policy, own in players.items():
            found = [own[place] for place in places]
            one = drawn[policy][track] = _Drawn.of(found, informed)
            values = np.array([estimate.value(SCORE) for estimate in found])
            rows.append(
                {
                    "policy": policy,
                    "track": track,
                    "cells": len(places),
                    SCORE: float(iqm(values / informed)),
                    f"{SCORE}_ci95": one.interval(),
                    **({"by_training": by} if len(by := one.by_training.tolist()) > 1 else {}),
                }
            )
    rows.sort(key=lambda row: (list(tracks).index(row["track"]), -row[SCORE], row["policy"]))
    return {
        "tracks": rows,
        "pairs": _pairs(drawn),
        "promises": _promises(players, tracks),
        "costs": _costs(players, known),
        "places": [known[place] for place in known],
        "fits": results.header["fits"],
    }


def _bounded(known: Mapping[Place, Any], own: Mapping[Place, Estimate], track: str) -> list[Place]:
    """Return the places of a track that have a bound."""
    return [p for p in own if p[0] == track and (known.get(p) or {}).get("informed")]


class _Drawn(NamedTuple):
    """The score of a policy on a track.

    Attributes:
        draws: (B,) of the bootstrap.
        by_training: (T,) scores of its trainings.
        units: Resampled episodes of each cell.
    """

    draws: NDArray[np.float64]
    by_training: NDArray[np.float64]
    units: NDArray[np.int64]

    @classmethod
    def of(cls, found: Sequence[Estimate], informed: NDArray[np.float64]) -> _Drawn:
        """Score the estimates of a track's cells over their bounds (n,)."""
        i = found[0].names.index(SCORE)
        drawn = np.stack([one.draws[:, i] for one in found], axis=1)
        trained = np.stack(np.broadcast_arrays(*(one.by_training[:, i] for one in found)), axis=1)
        units = np.concatenate([one.units for one in found])
        return cls(iqm(drawn / informed), iqm(trained / informed), units)

    def interval(self, other: _Drawn | None = None) -> list[float]:
        """Return the ends of the interval, or of that of the paired difference to another."""
        draws, trained, units = self
        if other is None:
            return list(map(float, interval(draws, units, by_training=[trained])))
        both = [trained, other.by_training]
        fewer = np.minimum(units, other.units)
        return list(map(float, interval(draws - other.draws, fewer, by_training=both)))


def _pairs(drawn: Mapping[str, Mapping[str, _Drawn]]) -> list[dict[str, Any]]:
    """Compare every two policies on the tracks, in either order."""
    rows = []
    for policy, other in itertools.permutations(drawn, 2):
        above, below = [], []
        for track, own in drawn[policy].items():
            low, high = own.interval(drawn[other][track])
            above += [track] if low > 0.0 else []
            below += [track] if high < 0.0 else []
        tracks = len(drawn[policy])
        rows.append(
            {
                "policy": policy,
                "other": other,
                "above": above,
                "below": below,
                "ahead": len(above) >= max(1, math.ceil(AHEAD_IN * tracks)) and not below,
            }
        )
    return rows


def _mean(own: Mapping[Place, Estimate], places: Sequence[Place], metric: str) -> float:
    return float(np.mean([own[place].value(metric) for place in places]))


def _promises(players: Estimates, tracks: Mapping[str, None]) -> list[dict[str, Any]]:
    """Return the best goodput among the policies that keep a promise, by track and promise."""
    rows = []
    for track, promise in itertools.product(tracks, (*PROMISES, 0.0)):
        kept = {}
        for policy, own in players.items():
            places = [place for place in own if place[0] == track]
            if _mean(own, places, "slo_100s") >= promise:
                kept[policy] = _mean(own, places, "goodput")
        if kept:
            best = max(kept, key=lambda name: kept[name])
            found = {"policy": best, "goodput": kept[best]}
        else:
            found = {"policy": None, "goodput": None}
        rows.append({"track": track, "promise": promise, **found})
    return rows


def _costs(players: Estimates, known: Mapping[Place, Any]) -> list[dict[str, Any]]:
    """Return cost, goodput and hypervolume of every policy on the tracks that cap the cost.

    The hypervolume of a place is the area of the points that a policy dominates, from no cost to
    the largest cap of its track, over the whole: (1 - cost / cap) * goodput. That of all policies
    together is the row without a policy.
    """
    rows: list[dict[str, Any]] = []
    capped = {place: at for place, at in known.items() if at["cap_s"]}
    for track in dict.fromkeys(place[0] for place in capped):
        places = [p for p in next(iter(players.values()), {}) if p[0] == track and p in capped]
        if not places:
            continue
        largest = {p: max(at["cap_s"] for q, at in capped.items() if q[0] == track) for p in places}
        points = {
            policy: [(own[p].value("work_s_per_query"), own[p].value("goodput")) for p in places]
            for policy, own in players.items()
        }
        reference = [largest[p] for p in places]
        for policy, own in points.items():
            areas = [
                _hypervolume([point], most) for point, most in zip(own, reference, strict=True)
            ]
            work_s, goodput = np.mean(own, axis=0)
            rows.append(
                {
                    "track": track,
                    "policy": policy,
                    "work_s_per_query": float(work_s),
                    "goodput": float(goodput),
                    "hypervolume": float(np.mean(areas)),
                }
            )
        at_places = zip(*points.values(), strict=True)
        areas = [_hypervolume(at, most) for at, most in zip(at_places, reference, strict=True)]
        rows.append({"track": track, "policy": None, "hypervolume": float(np.mean(areas))})
    return rows


def _hypervolume(points: Sequence[tuple[float, float]], most: float) -> float:
    """Return the share of the box up to cost `most` and goodput 1 that points dominate."""
    area, best, last = 0.0, 0.0, 0.0
    for cost, goodput in [*sorted(points), (most, 0.0)]:
        cost = min(cost, most)
        area += best * (cost - last)
        best, last = max(best, goodput), cost
    return area / most
