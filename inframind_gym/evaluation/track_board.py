"""Metrics, scores and tables of tracks.

A cell reaches a share of its informed bound. AGGREGATES makes a policy's numbers on a track from
the shares of its cells: the interquartile mean (Agarwal et al., "Deep RL at the Edge of the
Statistical Precipice", NeurIPS 2021), the mean and the smallest. `track_scores` computes them,
`scores_table` shows them, with mean and worst cell over all tracks. Intervals come from the
stratified bootstrap over episodes, the same ones for all policies: differences are paired.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.evaluation.cells import Place
from inframind_gym.evaluation.metrics import Columns, Metric, by_name
from inframind_gym.evaluation.queries import METRICS as QUERY_METRICS
from inframind_gym.evaluation.queries import QueryLayout
from inframind_gym.evaluation.routing import about_division
from inframind_gym.evaluation.scenarios import MOST_GROUPS
from inframind_gym.evaluation.stats import Estimate
from inframind_gym.evaluation.tables import Table, of_planned, short, with_margin

SCORE: Final = "score"
METRICS: Final[dict[str, Metric]] = {
    SCORE: Metric(SCORE, "track score", "%", "higher", whole=""),
    **QUERY_METRICS,
    **by_name(
        Metric("weighted_goodput", "weighted", "%", "higher", part="good_value", whole="value"),
        Metric("worst_goodput", "worst group", "%", "higher", whole=""),
        Metric("unanswered", "unanswered", "%", "lower"),
        Metric("work_s_per_query", "GPU s/query", "", "lower", 3, part="work_s"),
    ),
}
AHEAD_IN: Final = 0.75  # a policy ahead of another is above it in this share of tracks, below in 0
MAIN: Final = (
    SCORE,
    "goodput",
    "worst_goodput",
    "accuracy",
    "slo_100s",
    "latency_mean_s",
    "work_s_per_query",
    "unanswered",
    "wait_s",
    "avoidable_s",
    "wasted_share",
    "idle_share",
)
CAPTION: Final = (
    "Track score: the goodput that the track counts, by tenants' weights, of the worst "
    "budget or under the cap. Worst group: of the budgets. Unanswered: after the longest "
    "budget; they count as unsolved, with that latency. GPU s: of full steps. Wait: of a call, "
    "in its server's queue; avoidable: that while another server had no call. Wasted: of the "
    "tokens that were written, those for queries past their budget. Idle: slots without a call."
)
# Sums beyond those of routing: over all queries, and over each group of them.
_PLAIN: Final = ("value", "good_value", "work_s", "cap_s", "worst_counts", "unanswered")
_PER_GROUP: Final = ("queries", "good", "reach")

Estimates = Mapping[str, Mapping[Place, Estimate]]  # policy -> place -> its metrics


class TrackLayout(QueryLayout):
    """Layout of a row of sums over queries: those of routing, then those of the track."""

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Names of the columns of the table: those of routing, of all queries and of groups."""
        per_group = (f"{part}/{group}" for part in _PER_GROUP for group in range(MOST_GROUPS))
        return (*super().sums, *_PLAIN, *per_group)

    def derived(self, columns: Columns) -> dict[str, NDArray[Any]]:
        """Return each query's share of the sums that are not fields, (num_queries,) each."""
        parts, answered = super().derived(columns), columns["calls"] > 0
        parts |= {name: parts[name] & answered for name in parts if name.startswith("slo_")}
        good, group, reach = parts["goodput"], columns["group"], columns["reach"]
        parts |= {"good_value": columns["value"] * good, "unanswered": ~answered}
        for i in range(MOST_GROUPS):
            of = group == i
            parts |= {f"queries/{i}": of, f"good/{i}": of * good, f"reach/{i}": of * reach}
        return parts

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but the tail from sums ``(..., width)``, ``(...)`` each."""
        total, metrics = self.named(sums), super().evaluate(sums)
        queries, good, reach = (
            np.stack([total[f"{part}/{group}"] for group in range(MOST_GROUPS)], axis=-1)
            for part in _PER_GROUP
        )
        mean, worst = metrics["weighted_goodput"], _smallest(good, reach)
        counted = np.where(total["worst_counts"] > 0, worst, mean)
        work_s, cap_s = total["work_s"], total["cap_s"]
        paid_s = np.where(work_s > cap_s, cap_s, work_s)
        share = np.where(cap_s > 0, paid_s / np.maximum(work_s, 1e-12), 1.0)
        return {SCORE: counted * share, **metrics, "worst_goodput": _smallest(good, queries)}


def _smallest(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest ratio over groups (..., G) that have queries, (...)."""
    ratio = np.divide(part, whole, out=np.full_like(part, np.inf), where=whole > 0)
    least: NDArray[np.float64] = ratio.min(axis=-1)
    return np.where(np.isfinite(least), least, 0.0)


# Scores


def iqm(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half of values (..., n), (...).

    A value at a quartile counts with the fraction of it that lies within the middle half.
    """
    n = values.shape[-1]
    edges = np.clip(np.arange(n + 1) / n, 0.25, 0.75)
    return np.asarray(np.sort(values, axis=-1) @ (2.0 * np.diff(edges)), np.float64)


# Numbers of a policy on a track, (...), from its cells' shares of their bounds, (..., n).
AGGREGATES: Final[dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    SCORE: iqm,
    "mean": lambda values: np.asarray(values.mean(axis=-1)),
    "worst": lambda values: np.asarray(values.min(axis=-1)),
}


def _aggregate(cells: Sequence[Estimate], informed: NDArray[np.float64]) -> Estimate:
    """Return the numbers of a policy on a track from its scores and their bounds (n,)."""
    values = np.concatenate([cell.values for cell in cells]) / informed
    draws = np.concatenate([cell.draws for cell in cells], axis=1) / informed
    trained = np.broadcast_arrays(*(cell.by_training[:, 0] for cell in cells))
    by_training = np.stack(trained, axis=1) / informed
    sums, draw_sums, training_sums = (
        np.stack([of(part) for of in AGGREGATES.values()], axis=-1)
        for part in (values, draws, by_training)
    )
    units = tuple(unit for cell in cells for unit in cell.units)
    return Estimate(tuple(AGGREGATES), sums, draw_sums, training_sums, units)


def track_scores(header: Mapping[str, Any], estimates: Estimates) -> dict[str, Any]:
    """Return the further keys of a leaderboard of tracks, from the policies' scores.

    Returns:
        ``tracks`` (AGGREGATES of every policy on every track, best first, with the scores of its
        trainings where there are several), ``pairs`` (of policies: in how many tracks the first is
        above and below the second, and whether it is ahead), ``places`` (rates and bounds),
        ``fits`` and ``plans`` (who plans the queries of a policy).
    """
    limits = {(at["track"], at["scenario"], at["load"]): at for at in header["places"].values()}
    bounds = set(header.get("bounds", ()))
    players = {policy: cells for policy, cells in estimates.items() if policy not in bounds}
    common = list(next(iter(estimates.values())))
    played = {place[0] for place in common}
    tracks = [name for name in dict.fromkeys(place[0] for place in limits) if name in played]
    ranked: dict[str, dict[str, Estimate]] = {policy: {} for policy in players}
    rows = []
    for track in tracks:
        places = [p for p in common if p[0] == track and limits.get(p, {}).get("informed")]
        informed = np.array([limits[place]["informed"] for place in places])
        for policy, cells in players.items() if places else ():
            ranked[policy][track] = one = _aggregate([cells[place] for place in places], informed)
            row: dict[str, Any] = {"policy": policy, "track": track, "cells": len(places)}
            row |= one.with_intervals()
            shares = [float(cells[place].values[0]) for place in places] / informed
            names = ["{1} ρ {2:g}".format(*place) for place in places]
            row["worst_cell"] = min(zip(shares, names, strict=True))[1]
            if len(one.by_training) > 1:
                row["by_training"] = one.by_training[:, 0].tolist()
            rows.append(row)
    rows.sort(key=lambda row: (tracks.index(row["track"]), -row[SCORE], row["policy"]))
    pairs = []
    for policy, other in itertools.permutations(ranked, 2):
        ends = {t: one.ends(ranked[other][t])[:, 0] for t, one in ranked[policy].items()}
        above = [track for track, (low, _) in ends.items() if low > 0.0]
        below = [track for track, (_, high) in ends.items() if high < 0.0]
        ahead = len(above) >= max(1, math.ceil(AHEAD_IN * len(ends))) and not below
        pair = {"policy": policy, "other": other, "above": above, "below": below, "ahead": ahead}
        pairs.append(pair)
    copied = {"fits": header["fits"], "plans": header.get("plans", {})}
    return {"tracks": rows, "pairs": pairs, "places": list(limits.values())} | copied


# Tables


def ranked_policies(board: Mapping[str, Any]) -> list[str]:
    """Return the policies, best mean over the tracks first."""
    scores: dict[str, list[float]] = {}
    for row in board["tracks"]:
        scores.setdefault(row["policy"], []).append(row[SCORE])
    return sorted(scores, key=lambda name: -sum(scores[name]) / len(scores[name]))


def over_bound(board: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Yield the rows of places that have a bound, with the score over the bound."""
    at = ("track", "scenario", "load")
    informed = {tuple(place[k] for k in at): place["informed"] for place in board["places"]}
    for row in board["rows"]:
        if bound := informed.get(tuple(row[k] for k in at)):
            yield row, row[SCORE] / bound


def scores_table(board: Mapping[str, Any]) -> Table:
    """Make the table of the scores of all policies on all tracks."""
    tracks = list(dict.fromkeys(row["track"] for row in board["tracks"]))
    by_track = {(row["policy"], row["track"]): row for row in board["tracks"]}
    most = [max(row[SCORE] for row in board["tracks"] if row["track"] == t) for t in tracks]
    policies, fits = ranked_policies(board), board["fits"]
    shares: dict[str, dict[str, float]] = {policy: {} for policy in policies}
    for row, share in over_bound(board):
        name = f"{row['track']}/{row['scenario']}" if len(tracks) > 1 else row["scenario"]
        shares.get(row["policy"], {})[f"{name} ρ {row['load']:g}"] = share
    common = set.intersection(*map(set, shares.values())) if shares else set()
    body, best = [], set()
    for r, policy in enumerate(policies):
        rows = [by_track.get((policy, track)) for track in tracks]
        tops = enumerate(zip(rows, most, strict=True), start=1)
        best |= {(r, c) for c, (row, top) in tops if row and row[SCORE] >= top}
        ahead = sum(pair["ahead"] for pair in board["pairs"] if pair["policy"] == policy)
        fitted = fits["queries"].get(policy)
        texts = [with_margin(row, METRICS[SCORE]) if row else "–" for row in rows]
        worst, cell = min((shares[policy][cell], cell) for cell in common)
        texts.append(f"{100 * np.mean([shares[policy][cell] for cell in common]):.1f}")
        texts.append(f"{100 * worst:.1f} {cell}")
        texts += [f"{ahead} of {len(policies) - 1}", board["plans"].get(policy, "")]
        texts.append("" if fitted is None else f"{fitted:,}")
        body.append([short(policy), *texts])
    headings = ["policy", *tracks, "mean", "worst cell", "ahead of", "plan", "fitted with"]
    budget = fits["budget_queries"]
    caption = (
        "% of the informed bound: by track the interquartile mean over its cells ± half of the "
        "95 % interval, then the mean over all cells and the worst of them, a scenario at its "
        "load. Ahead of: policies below it, by the paired interval, in three of four tracks "
        "or more, and above it in none. Plan: of a query; own: the policy's."
    )
    if budget:
        caption += f" Fitted with: simulated queries for one scenario, of {budget:,} at most."
    else:
        headings, body = headings[:-1], [row[:-1] for row in body]
    if stale := sorted(
        {f"{at['track']}/{at['scenario']}" for at in board["places"] if at["stale"]}
    ):
        caption += f" Limits of other constants: {', '.join(stale)}; inframind bench limits."
    split = "" if board["split"] == "test" else f", {board['split']}"
    title = f"{board['suite']}: {of_planned(board, 'queries')}{about_division(board)}{split}"
    return Table(title, headings, body, caption, best=best)


def cells_table(board: Mapping[str, Any]) -> Table:
    """Make the table of the places, with rates, bounds and scores."""
    policies, names = ranked_policies(board), ("track", "scenario", "load")
    scores = {(row["policy"], *(row[n] for n in names)): row[SCORE] for row in board["rows"]}
    body = []
    for at in board["places"]:
        place = tuple(at[name] for name in names)
        shares = [at["informed"], *(scores.get((policy, *place)) for policy in policies)]
        texts = ["" if share is None else f"{100 * share:.1f}" for share in shares]
        rate = f"{at['rate_per_min']:.3g}"
        body.append([f"{at['track']}/{at['scenario']}", f"{at['load']:g}", rate, *texts])
    return Table(
        "Track score % by cell",
        ["scenario", "ρ", "/min", "informed", *(short(policy) for policy in policies)],
        body,
        "ρ: share of the capacity, the rate at which the informed bound has fallen to 90 % of that "
        "on idle servers.",
    )
