"""Measured cells that contradict each other: what no model without a parameter per cell can fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Final, NamedTuple

from benchmarks.fidelity.evidence import OBLIVIOUS, RunEvidence
from inframind_gym.calibration.measured import MeasuredCell
from inframind_gym.calibration.replay_runs import Prediction

ALIKE: Final = 0.12  # largest share of the choices in which two cells differ that count as alike
APART: Final = 1.3  # ratio of their measured mean latencies from which on they are shown
DEVIATIONS: Final = 1.96  # of a difference of accuracies: one in twenty is as large by chance


class Pair(NamedTuple):
    """Two cells that should be nearly equal, with what the simulation says of them."""

    one: MeasuredCell
    other: MeasuredCell
    one_said: Prediction
    other_said: Prediction
    differ: float  # share of the choices


def alike_but_apart(runs: RunEvidence) -> list[Pair]:
    """Cells at one rate with nearly the same choices and measured latencies far from each other."""
    pairs = []
    for pair in _pairs(runs):
        rates = {cell.arrival_rate_per_min for cell in pair[:2]}
        low_s, high_s = sorted(cell.latency_s["mean"] for cell in pair[:2])
        if len(rates) == 1 and pair.differ <= ALIKE and high_s >= APART * low_s:
            pairs.append(pair)
    return pairs


def accuracies_that_differ_with_load(runs: RunEvidence) -> tuple[int, int]:
    """Pairs of cells of one oblivious router, and of those the ones whose accuracies differ.

    Returns:
        (pairs at two rates whose accuracies are more than DEVIATIONS apart, all such pairs).
    """
    apart = [
        _deviations(pair.one, pair.other) > DEVIATIONS
        for pair in _pairs(runs)
        if pair.one.cost_rate == pair.other.cost_rate
    ]
    return sum(apart), len(apart)


def _pairs(runs: RunEvidence) -> Iterator[Pair]:
    """All pairs of oblivious cells of one dataset."""
    cells = [
        (cell, said)
        for cell, said in zip(runs.cells, runs.predictions, strict=True)
        if cell.method == OBLIVIOUS
    ]
    for (one, one_said), (other, other_said) in combinations(cells, 2):
        if one.dataset == other.dataset:
            shares = (
                (one.model_share, other.model_share),
                (one.topology_share, other.topology_share),
            )
            differ = max(total_variation(a, b) for a, b in shares)
            yield Pair(one, other, one_said, other_said, differ)


def total_variation(one: Mapping[str, float] | None, other: Mapping[str, float] | None) -> float:
    """Half the sum of the differences of two distributions; 0 where both are unknown."""
    if one is None or other is None:
        return float(one is not other)
    return 0.5 * sum(abs(one.get(name, 0.0) - other.get(name, 0.0)) for name in {*one, *other})


def _deviations(one: MeasuredCell, other: MeasuredCell) -> float:
    """Difference of two accuracies in standard deviations; 0 where the counts are not told."""
    if not one.num_queries or not other.num_queries:
        return 0.0
    counts = one.num_queries, other.num_queries
    pooled = (one.accuracy * counts[0] + other.accuracy * counts[1]) / sum(counts)
    sd = math.sqrt(pooled * (1.0 - pooled) * (1.0 / counts[0] + 1.0 / counts[1]))
    return abs(one.accuracy - other.accuracy) / sd if sd else 0.0
