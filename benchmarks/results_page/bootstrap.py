"""Intervals where both the training seed and the sweep are chance: a two-way bootstrap.

The scores of one entry in one cell of the tables (workload, rate, budget) form a matrix: training
seeds x sweeps. Both are drawn with replacement, independently of each other (crossed, because every
training seed meets the same sweeps). The sweeps drawn are the same for all entries, whose
differences are therefore paired, and so are the training seeds of entries that play with the same
trainings; those of others are unrelated. Over the cells of one entry the training seeds are drawn
together (one agent meets them all), the sweeps apart.

Few units make percentile intervals too short; as in `inframind_gym.benchmark.stats` they are widened to
Hesterberg's expanded percentile interval. The factor and the degrees of freedom of its t quantile
come from the two parts of the variance, by Satterthwaite's formula: with vT and vS the variance of
the draws when only seeds, or only sweeps, are drawn,

    df = (vT + vS)² / (vT² / dfT + vS² / dfS),   stretch² = (vT·nT/dfT + vS·nS/dfS) / (vT + vS)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.stats import CONFIDENCE, resample_counts, student_t_quantile

RESAMPLES: Final = 5_000

_NORMAL = NormalDist()
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Units:
    """How many things were drawn, and how many degrees of freedom they leave."""

    count: int
    df: int


@dataclass(frozen=True, slots=True)
class Draws:
    """A score with its bootstrap draws.

    Attributes:
        value: The score itself.
        both: Draws of training seeds and sweeps, ``(num_resamples,)``.
        training: Draws of training seeds alone, ``(num_resamples,)``.
        sweeps: Draws of sweeps alone, ``(num_resamples,)``.
        trained: Training seeds; count 1 where nothing is trained.
        swept: Sweeps.
    """

    value: float
    both: Array
    training: Array
    sweeps: Array
    trained: Units
    swept: Units

    def __sub__(self, other: Draws) -> Draws:
        """The paired difference."""
        return Draws(
            self.value - other.value,
            self.both - other.both,
            self.training - other.training,
            self.sweeps - other.sweeps,
            _fewer(self.trained, other.trained),
            self.swept,
        )

    def __truediv__(self, other: Draws) -> Draws:
        """The ratio."""
        return Draws(
            self.value / other.value if other.value else math.nan,
            _ratio(self.both, other.both),
            _ratio(self.training, other.training),
            _ratio(self.sweeps, other.sweeps),
            _fewer(self.trained, other.trained),
            self.swept,
        )

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The expanded percentile interval."""
        parts = [
            (float(draws.var()), units)
            for draws, units in ((self.training, self.trained), (self.sweeps, self.swept))
            if units.df > 0
        ]
        variance = sum(v for v, _ in parts)
        if variance <= 0.0:
            return self.value, self.value
        df = variance**2 / sum(v**2 / units.df for v, units in parts)
        widened = sum(v * units.count / units.df for v, units in parts) / variance
        t = student_t_quantile(0.5 + confidence / 2.0, max(1, math.floor(df + 1e-9)))
        tail = _NORMAL.cdf(-math.sqrt(widened) * t)
        low, high = np.quantile(self.both, [tail, 1.0 - tail])
        return float(low), float(high)


def draw(
    matrix: Array, trained: str, stratum: Sequence[object], seed: int = 0, num: int = RESAMPLES
) -> Draws:
    """Bootstrap the mean of a matrix of scores.

    Args:
        matrix: One score for each training seed and sweep, ``(num_training_seeds, num_sweeps)``.
        trained: Which training they come from: decides which training seeds are drawn.
        stratum: Where they were made: decides which sweeps are drawn.
        seed: Seed of the bootstrap.
        num: Number of resamples.
    """
    num_trained, num_swept = matrix.shape
    seeds = _counts(("training", trained), seed, num_trained, num)
    swept = _counts(("sweeps", *stratum), seed, num_swept, num)
    return Draws(
        float(matrix.mean()),
        np.einsum("bt,ts,bs->b", seeds, matrix, swept, optimize=True),
        seeds @ matrix.mean(axis=1),
        swept @ matrix.mean(axis=0),
        Units(num_trained, num_trained - 1),
        Units(num_swept, num_swept - 1),
    )


def mean(draws: Sequence[Draws]) -> Draws:
    """The mean over strata of one entry (or of one difference), each with the same weight."""
    first = draws[0]
    return Draws(
        float(np.mean([one.value for one in draws])),
        np.mean([one.both for one in draws], axis=0),
        np.mean([one.training for one in draws], axis=0),
        np.mean([one.sweeps for one in draws], axis=0),
        first.trained,
        Units(sum(one.swept.count for one in draws), sum(one.swept.df for one in draws)),
    )


def _counts(key: Sequence[object], seed: int, units: int, num: int) -> Array:
    """Weights of each unit in each resample, ``(num, units)``; every row sums to 1."""
    digest = hashlib.sha256(repr(tuple(key)).encode()).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
    return resample_counts(rng, units, num) / units


def _fewer(one: Units, other: Units) -> Units:
    """The smaller number of training seeds of two entries; what is not trained does not count."""
    trained = [units for units in (one, other) if units.df > 0]
    return min(trained, key=lambda units: units.df) if trained else one


def _ratio(one: Array, other: Array) -> Array:
    return np.divide(one, other, out=np.full_like(one, np.nan), where=other != 0)
