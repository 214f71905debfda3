"""Paired differences of policies, in one results folder or in several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from inframind_gym.errors import ConfigError, shortened, unknown
from inframind_gym.evaluation.board import MIN_SEEDS, Results
from inframind_gym.evaluation.cells import Place
from inframind_gym.evaluation.metrics import Metric
from inframind_gym.evaluation.stats import NUM_RESAMPLES, Estimate
from inframind_gym.evaluation.store import differences
from inframind_gym.evaluation.suite import family_of
from inframind_gym.evaluation.tables import Table


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a policy of a results folder."""

    results: Results  # the folder
    policy: str  # the policy

    def __post_init__(self) -> None:
        """Check that the folder has the policy."""
        if self.policy not in self.results.policies:
            message = unknown("policy", self.policy, self.results.policies)
            raise ConfigError(f"{self.results.folder}: {message}")


def sides_of(results: Sequence[Results], names: Sequence[str]) -> list[tuple[Side, Side]]:
    """Return the pairs of sides to compare.

    Args:
        results: One folder or two.
        names: Of two policies. None with two folders: the one policy that each has alone, else all
            policies that both have.

    Raises:
        ConfigError: A folder has no such policy, or there is nothing to choose.
    """
    a, b = results[0], results[-1]
    if len(names) == 2:
        return [(Side(a, names[0]), Side(b, names[1]))]
    if a is b or names:
        raise ConfigError(
            f"compare takes two policies of {a.folder}, got {len(names)}. "
            f"It has: {', '.join(a.policies)}."
        )
    own = [sorted({*x.policies} - {*y.policies}) for x, y in ((a, b), (b, a))]
    if len(own[0]) == len(own[1]) == 1:
        return [(Side(a, own[0][0]), Side(b, own[1][0]))]
    pairs = [(Side(a, name), Side(b, name)) for name in a.policies if name in b.policies]
    if not pairs:
        raise ConfigError("two folders without a common policy; name two: DIR_A DIR_B A B.")
    return pairs


def paired(
    sides: Sequence[Side], names: Sequence[str], num_resamples: int = NUM_RESAMPLES
) -> tuple[Iterator[dict[Place, Estimate]], int, list[str]]:
    """Estimate metrics of sides of one family on the episodes that all have, of the same length.

    Returns:
        An iterator over the sides' estimates by place; the number of episodes; notes for the
        reader.
    """
    strata = [side.results.strata(side.policy) for side in sides]
    first, *others = strata
    common: dict[Place, list[int]] = {}
    for place, by_seed in first.items():
        for seed, (episode, *_) in by_seed.items():
            there = [other.get(place, {}).get(seed) for other in others]
            if all(one and one[0].records == episode.records for one in there):
                common.setdefault(place, []).append(seed)
    estimates = (
        {
            place: Estimate.of(
                tuple(names),
                side.results.layout,
                side.policy,
                [own[place][seed] for seed in seeds],
                place,
                num_resamples,
            )
            for place, seeds in common.items()
        }
        for side, own in zip(sides, strata, strict=True)
    )
    notes = []
    places = {place for own in strata for place in own}
    if len(common) < len(places):
        notes.append(f"compared are the {len(common)} of {len(places)} cells that all have")
    # A lone episode is cut into more units than it has seeds.
    if any(1 < len(seeds) < MIN_SEEDS for seeds in common.values()):
        notes.append(f"some cells have fewer than {MIN_SEEDS} seeds: their intervals are rough")
    for results in list({id(side.results): side.results for side in sides}.values())[1:]:
        if differing := "; ".join(differences(sides[0].results.header, results.header)):
            notes.append(f"the two runs differ in {shortened(differing, 400)}")
    return estimates, sum(map(len, common.values())), notes


def compare(a: Side, b: Side, *, num_resamples: int = NUM_RESAMPLES) -> dict[str, Any]:
    """Compute differences b - a over the episodes that both have, paired by place and seed.

    Both sides of a pair ran on the same queries or jobs, arrivals and latent outcomes, so that most
    of the noise cancels; the bootstrap draws the same episodes for both.

    Args:
        a: The baseline.
        b: What is compared with it.
        num_resamples: Resamples of the bootstrap.

    Returns:
        ``overall`` and ``rows`` (one for each place): for each metric ``a``,
        ``b``, ``difference`` and ``difference_ci95``; ``notes`` for the reader.

    Raises:
        ConfigError: The sides have no episode in common.
    """
    family = a.results.family
    if family is not b.results.family:
        raise ConfigError(
            f"{a.results.folder} and {b.results.folder} hold results of different families: they "
            "cannot be paired."
        )
    names = [n for n in family.metrics if n in a.results.measured and n in b.results.measured]
    (left, right), _, paired_notes = paired([a, b], names, num_resamples)
    if not left:
        axes = [axis.label.partition("/")[0] for axis in family.axes]
        raise ConfigError(
            f"{a.policy} ({a.results.folder}) and {b.policy} ({b.results.folder}) have no episode "
            f"of the same {', '.join(axes)}, seed and length: there is nothing to pair."
        )
    folders = {str(side.results.folder): side.results for side in (a, b)}
    notes = [f"{name}: {note}" for name, results in folders.items() for note in results.notes()]
    notes += [f"{a.policy} is compared with itself"] * (a.policy == b.policy)
    return {
        "a": {"folder": str(a.results.folder), "policy": a.policy},
        "b": {"folder": str(b.results.folder), "policy": b.policy},
        "cells": len(left),
        "overall": _differences(*(reduce(add, side.values()) for side in (left, right))),
        "rows": [{**family.describe(p), **_differences(left[p], right[p])} for p in left],
        "notes": notes + paired_notes,
        "kind": a.results.kind,
    }


def _differences(a: Estimate, b: Estimate) -> dict[str, Any]:
    return {
        name: {"a": x, "b": y, "difference": y - x, "difference_ci95": ends}
        for name, x, y, ends in zip(
            a.names, a.values.tolist(), b.values.tolist(), b.ends(a).T.tolist(), strict=True
        )
    }


def comparison_tables(comparison: Mapping[str, Any]) -> list[Table]:
    """Make the tables of a comparison: every metric overall, then the main ones cell by cell."""
    a, b = comparison["a"], comparison["b"]
    sides = f"A = {a['policy']} in {a['folder']}, B = {b['policy']} in {b['folder']}"
    family, overall = family_of(comparison), comparison["overall"]
    body = []
    for name, d in overall.items():
        one = family.metrics[name]
        body.append([one.heading, one.text(d["a"]), one.text(d["b"]), *difference_text(one, d)])
    caption = "Better or worse where the interval leaves 0 out; an interval for each metric alone."
    title = f"{sides}: paired means over {comparison['cells']} cells"
    tables = [Table(title, ["metric", "A", "B", "B - A", "95 % interval", ""], body, caption)]
    if len(comparison["rows"]) > 1:
        shown = [family.metrics[name] for name in family.compared if name in overall]
        headings = [*(axis.label for axis in family.axes), *(metric.heading for metric in shown)]
        cells = []
        for row in comparison["rows"]:
            place = [axis.text(row[axis.name]) for axis in family.axes]
            texts = (difference_text(metric, row[metric.name])[:2] for metric in shown)
            cells.append([*place, *map(" ".join, texts)])
        tables.append(Table(f"B - A by cell, {sides}", headings, cells))
    return tables


def difference_text(metric: Metric, d: Mapping[str, Any]) -> list[str]:
    """Return a difference B - A, its interval, and "better", "worse", "differs" or nothing."""
    low, high = d["difference_ci95"]
    verdict = ""
    if low > 0 or high < 0:
        better = (low > 0) == (metric.better == "higher")
        verdict = "differs" if metric.better is None else "better" if better else "worse"
    sign = "+" if d["difference"] > 0 else ""
    between = f"[{metric.text(low)}, {metric.text(high)}]"
    return [sign + metric.text(d["difference"]), between, verdict]


def compare_all(sides: Sequence[tuple[int, Side]]) -> dict[str, Any] | None:
    """Compare every two policies of (numbered) runs of one family, paired by place and seed.

    Returns:
        ``kind``, ``episodes``, ``sides``, ``notes`` and ``metrics``: by name rows, of which
        rows[i][j] is `difference_text` of side i less j. None where there are not two policies with
        an episode in common.
    """
    if len(sides) < 2:
        return None
    runs = [side.results for _, side in sides]
    metrics = runs[0].family.metrics
    names = [n for n in runs[0].family.compared if all(n in run.measured for run in runs)]
    estimates, episodes, notes = paired([side for _, side in sides], names)
    if not episodes:
        return None
    totals = [reduce(add, own.values()) for own in estimates]
    between = [[_differences(other, one) for other in totals] for one in totals]
    return {
        "kind": runs[0].kind,
        "episodes": episodes,
        "sides": [{"run": i, "policy": side.policy} for i, side in sides],
        "metrics": {
            name: [[difference_text(metrics[name], d[name]) for d in row] for row in between]
            for name in names
        },
        "notes": notes,
    }
