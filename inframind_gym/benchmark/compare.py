"""Paired differences of two policies, or of one policy in two results folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.draws import DrawOrder
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import family_of
from inframind_gym.benchmark.leaderboard import MIN_SEEDS
from inframind_gym.benchmark.metrics import Metric
from inframind_gym.benchmark.results import Estimate, Results, Stratum
from inframind_gym.benchmark.stats import NUM_RESAMPLES, interval
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.errors import unknown

Trainings = list[Stratum]  # the same episodes of every training


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        results: Its folder.
        policy: Its policy.
    """

    results: Results
    policy: str

    def __post_init__(self) -> None:
        """Check that the folder has the policy."""
        if self.policy not in self.results.policies:
            message = unknown("policy", self.policy, self.results.policies)
            raise BenchmarkError(f"{self.results.folder}: {message}")


def compare(
    a: Side, b: Side, *, bootstrap_seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> dict[str, Any]:
    """Compute differences b - a over the episodes that both have, paired by place and seed.

    Both sides of a pair ran on the same queries or jobs, arrivals and latent outcomes, so that most
    of the noise cancels; the bootstrap draws the same episodes for both.

    Args:
        a: The baseline.
        b: What is compared with it.
        bootstrap_seed: Seed of the intervals.
        num_resamples: Resamples of the bootstrap.

    Returns:
        ``overall`` and ``rows`` (one for each place): for each metric ``a``,
        ``b``, ``difference`` and ``difference_ci95``; ``notes`` for the reader. Of runs over draws
        of quality ``b_ahead_of_a`` counts those in which b has the better score.

    Raises:
        BenchmarkError: The sides have no episode in common.
    """
    family = a.results.family
    of_both = set(a.results.layout.measured(family.metrics))
    of_both &= set(b.results.layout.measured(family.metrics))
    names = tuple(name for name in family.metrics if name in of_both)
    pairs = _pairs(a, b)
    rows = []
    totals: list[Estimate] = []
    order, score = DrawOrder(), family.metrics[family.score]
    shown: dict[Place, list[tuple[Estimate, Estimate]]] = {}  # of every draw
    for place, strata in pairs.items():
        there, draw = family.suite.cell.without_draw(place)
        left, right = (
            Estimate.of(
                *(names, side.results.layout, side.policy, trainings),
                *(there, bootstrap_seed, num_resamples),
            )
            for side, trainings in zip((a, b), strata, strict=True)
        )
        shown.setdefault(there, []).append((left, right))
        if draw is not None:
            for side, estimate in (("a", left), ("b", right)):
                order.add(side, draw, score.signed(estimate.value(score.name)))
    for place, both in shown.items():
        sides = [Estimate.over_draws(estimates) for estimates in zip(*both, strict=True)]
        rows.append({**family.suite.cell.describe(place), **_differences(*sides)})
        totals = [x + y for x, y in zip(totals, sides, strict=True)] if totals else sides
    return {
        "a": {"folder": str(a.results.folder), "policy": a.policy},
        "b": {"folder": str(b.results.folder), "policy": b.policy},
        "cells": len(shown),
        **({"b_ahead_of_a": order.ahead("b", "a")} if order else {}),
        "overall": _differences(*totals),
        "rows": rows,
        "notes": _notes(a, b, pairs),
        "kind": family.kind,
    }


def _pairs(a: Side, b: Side) -> dict[Place, tuple[Trainings, Trainings]]:
    if a.results.family is not b.results.family:
        raise BenchmarkError(
            f"{a.results.folder} holds results of {a.results.family.kind}, {b.results.folder} of "
            f"{b.results.family.kind}: they cannot be paired."
        )
    left, right = a.results.strata(a.policy), b.results.strata(b.policy)
    pairs = {}
    for key in left:
        seeds = sorted(set(left[key]) & set(right.get(key, {})))
        if not seeds:
            continue
        episodes = [(left[key][seed], right[key][seed]) for seed in seeds]
        if any(one[0].records != other[0].records for one, other in episodes):
            raise BenchmarkError(
                f"{a.results.folder} and {b.results.folder} have episodes of different length: "
                "they cannot be paired."
            )
        one, other = zip(*episodes, strict=True)
        pairs[key] = (Stratum.by_training(one), Stratum.by_training(other))
    if not pairs:
        axes = [axis.label.partition("/")[0] for axis in a.results.family.suite.cell.axes]
        raise BenchmarkError(
            f"{a.policy} ({a.results.folder}) and {b.policy} ({b.results.folder}) have no "
            f"{', '.join(axes)} and seed in common: there is nothing to pair."
        )
    return pairs


def _differences(a: Estimate, b: Estimate) -> dict[str, Any]:
    of_both = [a.by_training, b.by_training]
    ends = interval(b.draws - a.draws, np.asarray(a.units), by_training=of_both)
    return {
        name: {
            "a": float(a.values[i]),
            "b": float(b.values[i]),
            "difference": float(b.values[i] - a.values[i]),
            "difference_ci95": ends[:, i].tolist(),
        }
        for i, name in enumerate(a.names)
    }


def _notes(a: Side, b: Side, pairs: dict[Place, tuple[Trainings, Trainings]]) -> list[str]:
    folders = {str(side.results.folder): side.results for side in (a, b)}
    notes = [f"{name}: {note}" for name, results in folders.items() for note in results.notes()]
    notes += run_differences(a.results, b.results)
    strata = {**a.results.strata(a.policy), **b.results.strata(b.policy)}
    if len(pairs) < len(strata):
        notes.append(f"compared are the {len(pairs)} of {len(strata)} cells that both have")
    if any(pair[0][0].num_units < MIN_SEEDS for pair in pairs.values()):
        notes.append(f"some cells have fewer than {MIN_SEEDS} seeds: their intervals are rough")
    return notes


def run_differences(a: Results, b: Results) -> list[str]:
    """Return what two runs of one family differ in, as notes for the reader."""
    notes = []
    one, other = a.header["settings"], b.header["settings"]
    differing = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    if differing:
        notes.append(f"the two runs differ in {', '.join(differing)}")
    for key, axis in a.family.suite.files().items():
        there, here = a.header.get(key, {}), b.header.get(key, {})
        changed = [name for name in there if here.get(name, there[name]) != there[name]]
        if changed:
            notes.append(f"the two runs differ in the content of {axis} {', '.join(changed)}")
    return notes


def comparison_sheets(comparison: dict[str, Any]) -> list[Sheet]:
    """Make the tables of a comparison: every metric overall, then the main ones cell by cell."""
    a, b = comparison["a"], comparison["b"]
    sides = f"A = {a['policy']} in {a['folder']}, B = {b['policy']} in {b['folder']}"
    family = family_of(comparison)
    metrics, axes = family.metrics, family.suite.cell.axes
    body = [
        [one.heading, one.text(d["a"]), one.text(d["b"]), *difference_text(one, d)]
        for one, d in ((metrics[name], d) for name, d in comparison["overall"].items())
    ]
    drawn = ""
    if "b_ahead_of_a" in comparison:
        order = comparison["b_ahead_of_a"]
        drawn = (
            f" B is ahead of A in {metrics[family.score].heading} in {order['draws_ahead']} of "
            f"{order['draws']} draws of what is uncertain of quality."
        )
    sheets = [
        Sheet(
            f"{sides}: paired means over {comparison['cells']} cells",
            ["metric", "A", "B", "B - A", "95 % interval", ""],
            body,
            "Better or worse where the interval leaves 0 out; an interval for each metric "
            f"alone.{drawn}",
        )
    ]
    if len(comparison["rows"]) > 1:
        shown = [metrics[name] for name in family.compared]
        sheets.append(
            Sheet(
                f"B - A by cell, {sides}",
                [*(axis.label for axis in axes), *(metric.heading for metric in shown)],
                [
                    [
                        *(axis.text(row[axis.name]) for axis in axes),
                        *(
                            " ".join(difference_text(metric, row[metric.name])[:2])
                            for metric in shown
                        ),
                    ]
                    for row in comparison["rows"]
                ],
            )
        )
    return sheets


def difference_text(metric: Metric, d: dict[str, Any]) -> list[str]:
    """Return a difference B - A, its interval, and "better", "worse", "differs" or nothing."""
    low, high = d["difference_ci95"]
    verdict = ""
    if low > 0 or high < 0:
        better = (low > 0) == (metric.better == "higher")
        verdict = "differs" if metric.better is None else "better" if better else "worse"
    sign = "+" if d["difference"] > 0 else ""
    between = f"[{metric.text(low)}, {metric.text(high)}]"
    return [sign + metric.text(d["difference"]), between, verdict]
