"""Paired differences of two policies, or of one policy in two results folders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from inframind_gym.benchmark.cells import Place
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.families import ROUTING, Family, family_of
from inframind_gym.benchmark.leaderboard import MIN_SEEDS, Draws
from inframind_gym.benchmark.metrics import Metric
from inframind_gym.benchmark.results import Results, Stratum
from inframind_gym.benchmark.stats import NUM_RESAMPLES, interval
from inframind_gym.benchmark.tables import Sheet, value_text
from inframind_gym.errors import unknown


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
    """Differences b - a over the sweeps that both have, paired by all coordinates but the policy.

    Both sides of a pair ran on the same queries or jobs, arrivals and latent outcomes, so that most
    of the noise cancels; the bootstrap draws the same sweeps for both.

    Args:
        a: The baseline.
        b: What is compared with it.
        bootstrap_seed: Seed of the intervals.
        num_resamples: Resamples of the bootstrap.

    Returns:
        ``overall`` and ``rows`` (one for each place): for each metric ``a``,
        ``b``, ``difference`` and ``difference_ci95``; ``notes`` for the reader.

    Raises:
        BenchmarkError: The sides have no sweep in common.
    """
    family = a.results.family
    metrics = family.metrics
    pairs = _pairs(a, b)
    rows = []
    totals: dict[str, list[float]] = {}
    total_draws: Draws = {}
    units = []
    for key, (left, right) in pairs.items():
        ones, how = left.once(), (key, bootstrap_seed, num_resamples)
        layouts = (a.results.layout, b.results.layout)
        va, vb = left.metrics(layouts[0], ones), right.metrics(layouts[1], ones)
        da, db = left.draws(layouts[0], *how), right.draws(layouts[1], *how)
        values = {name: [float(va[name][0]), float(vb[name][0])] for name in metrics}
        draws = {name: db[name] - da[name] for name in metrics}
        where = {axis.name: value for axis, value in zip(family.cell.axes, key, strict=True)}
        rows.append({**where, **_differences(family, values, draws, [left.num_units])})
        for name in metrics:
            old = totals.get(name, [0.0, 0.0])
            totals[name] = [x + y for x, y in zip(old, values[name], strict=True)]
            total_draws[name] = (
                total_draws[name] + draws[name] if name in total_draws else draws[name]
            )
        units.append(left.num_units)
    n = len(pairs)
    overall = _differences(
        family,
        {name: [x / n for x in both] for name, both in totals.items()},
        {name: values / n for name, values in total_draws.items()},
        units,
    )
    return {
        "a": _describe(a),
        "b": _describe(b),
        "cells": n,
        "overall": overall,
        "rows": rows,
        "notes": _notes(a, b, pairs),
        **({} if family.kind == ROUTING else {"kind": family.kind}),
    }


def _pairs(a: Side, b: Side) -> dict[Place, tuple[Stratum, Stratum]]:
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
        sweeps = [(left[key][seed], right[key][seed]) for seed in seeds]
        if any(one.episodes != other.episodes for one, other in sweeps):
            raise BenchmarkError(
                f"{a.results.folder} and {b.results.folder} have sweeps of different length: "
                "they cannot be paired."
            )
        pairs[key] = (Stratum.of([x for x, _ in sweeps]), Stratum.of([y for _, y in sweeps]))
    if not pairs:
        raise BenchmarkError(
            f"{a.policy} ({a.results.folder}) and {b.policy} ({b.results.folder}) have no "
            f"{', '.join(_words(a.results.family))} and seed in common: there is nothing to pair."
        )
    return pairs


def _words(family: Family) -> list[str]:
    """The axes in words: "rate/min" is a rate."""
    return [axis.label.partition("/")[0] for axis in family.cell.axes]


def _differences(
    family: Family, values: dict[str, list[float]], draws: Draws, units: list[int]
) -> dict[str, Any]:
    metrics = family.metrics
    ends = interval(
        np.stack([draws[name] for name in metrics], axis=1), np.asarray(units, dtype=np.int64)
    )
    return {
        name: {
            "a": values[name][0],
            "b": values[name][1],
            "difference": values[name][1] - values[name][0],
            "difference_ci95": [float(ends[0, i]), float(ends[1, i])],
        }
        for i, name in enumerate(metrics)
    }


def _describe(side: Side) -> dict[str, str]:
    return {"folder": str(side.results.folder), "policy": side.policy}


def _notes(a: Side, b: Side, pairs: dict[Place, tuple[Stratum, Stratum]]) -> list[str]:
    notes = []
    one, other = a.results.header["settings"], b.results.header["settings"]
    differing = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    if differing:
        notes.append(f"the two runs differ in {', '.join(differing)}")
    for key, axis in a.results.family.contents.items():
        there, here = a.results.header.get(key, {}), b.results.header.get(key, {})
        changed = [name for name in there if here.get(name, there[name]) != there[name]]
        if changed:
            notes.append(f"the two runs differ in the content of {axis} {', '.join(changed)}")
    strata = {**a.results.strata(a.policy), **b.results.strata(b.policy)}
    if len(pairs) < len(strata):
        notes.append(f"compared are the {len(pairs)} of {len(strata)} cells that both have")
    if any(pair[0].num_units < MIN_SEEDS for pair in pairs.values()):
        notes.append(f"some cells have fewer than {MIN_SEEDS} seeds: their intervals are rough")
    return notes


def comparison_sheets(comparison: dict[str, Any]) -> list[Sheet]:
    """The tables of a comparison: every metric overall, then the main ones cell by cell."""
    a, b = comparison["a"], comparison["b"]
    same_folder, same_policy = a["folder"] == b["folder"], a["policy"] == b["policy"]
    names = [
        side["policy"]
        if same_folder
        else (side["folder"] if same_policy else f"{side['policy']} ({side['folder']})")
        for side in (a, b)
    ]
    family = family_of(comparison)
    metrics, axes = family.metrics, family.cell.axes
    overall = comparison["overall"]
    body = [
        [
            metrics[name].label,
            value_text(metrics[name], d["a"]),
            value_text(metrics[name], d["b"]),
            *_difference(metrics[name], d),
        ]
        for name, d in overall.items()
    ]
    sheets = [
        Sheet(
            f"A = {names[0]}, B = {names[1]}: paired means over {comparison['cells']} cells",
            ["metric", "A", "B", "B - A", "95 % interval", ""],
            body,
            "Better or worse where the interval leaves 0 out; an interval for each metric alone.",
        )
    ]
    if len(comparison["rows"]) > 1:
        shown = [metrics[name] for name in family.compared]
        sheets.append(
            Sheet(
                "B - A by cell",
                [*(axis.label for axis in axes), *(metric.label for metric in shown)],
                [
                    [
                        *(axis.text(row[axis.name]) for axis in axes),
                        *(" ".join(_difference(metric, row[metric.name])[:2]) for metric in shown),
                    ]
                    for row in comparison["rows"]
                ],
            )
        )
    return sheets


def _difference(metric: Metric, d: dict[str, Any]) -> list[str]:
    low, high = d["difference_ci95"]
    better = metric.higher_is_better
    verdict = ""
    if low > 0 or high < 0:
        verdict = "differs" if better is None else ("better" if (low > 0) == better else "worse")
    sign = "+" if d["difference"] > 0 else ""
    between = f"[{value_text(metric, low)}, {value_text(metric, high)}]"
    return [sign + value_text(metric, d["difference"]), between, verdict]
