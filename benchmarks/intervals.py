"""Intervals where both the training seed and the episode are chance: a two-way bootstrap.

The scores of one entry in one cell of the tables (workload, rate, budget) form a matrix of training
seeds x episodes. Both are drawn with replacement, independently of each other, because every
training seed meets the same episodes. The episodes drawn are the same for all entries, whose
differences are therefore paired; so are the training seeds of entries that play with the same
trainings. Over the cells of one entry the training seeds are drawn together (one agent meets them
all), the episodes apart.

Few units make percentile intervals too short; as in `inframind_gym.benchmark.stats` they are
widened to Hesterberg's expanded percentile interval. The factor and the degrees of freedom of its t
quantile come from the two parts of the variance, by Satterthwaite's formula: with vT and vS the
variance of the draws when only seeds, or only episodes, are drawn,

    df = (vT + vS)² / (vT² / dfT + vS² / dfS),   stretch² = (vT·nT/dfT + vS·nS/dfS) / (vT + vS)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.stats import CONFIDENCE, resample_counts, student_t_quantile

RESAMPLES: Final = 5_000
_NORMAL: Final = NormalDist()
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Units:
    """Number of resampled units and of their degrees of freedom."""

    count: int
    df: int


@dataclass(frozen=True, slots=True)
class Draws:
    """A score with its bootstrap draws.

    Attributes:
        value: The score itself.
        draws: Draws of training seeds and episodes, of training seeds alone, and of episodes alone,
            ``(3, num_resamples)``.
        num_trained: Training seeds; count 1 where nothing is trained.
        num_episodes: Episodes.
    """

    value: float
    draws: Array
    num_trained: Units
    num_episodes: Units

    def __sub__(self, other: Draws) -> Draws:
        """The paired difference."""
        return self._with(other, np.subtract)

    def __truediv__(self, other: Draws) -> Draws:
        """The ratio; not a number where the other is 0."""
        return self._with(other, _ratio)

    def _with(self, other: Draws, operation: Callable[[Any, Any], Any]) -> Draws:
        """Combine the draws of two scores on the same episodes."""
        trained = [one for one in (self.num_trained, other.num_trained) if one.df > 0]
        return Draws(
            float(operation(np.float64(self.value), np.float64(other.value))),
            operation(self.draws, other.draws),
            min(trained, key=lambda units: units.df, default=self.num_trained),
            self.num_episodes,
        )

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The expanded percentile interval."""
        factors = zip(self.draws[1:], (self.num_trained, self.num_episodes), strict=True)
        parts = [(float(draws.var()), units) for draws, units in factors if units.df > 0]
        variance = sum(v for v, _ in parts)
        if variance <= 0.0:
            return self.value, self.value
        df = variance**2 / sum(v**2 / units.df for v, units in parts)
        widened = sum(v * units.count / units.df for v, units in parts) / variance
        t = student_t_quantile(0.5 + confidence / 2.0, max(1, math.floor(df + 1e-9)))
        tail = _NORMAL.cdf(-math.sqrt(widened) * t)
        low, high = np.quantile(self.draws[0], [tail, 1.0 - tail])
        return float(low), float(high)


def draw(
    matrix: Array, trained: str, stratum: Sequence[object], seed: int = 0, num: int = RESAMPLES
) -> Draws:
    """Bootstrap the mean of scores, ``(num_training_seeds, num_episodes)``.

    Equal keys `trained` draw the same training seeds, equal keys `stratum` the same episodes.
    """
    num_trained, num_episodes = matrix.shape
    seeds = _counts(repr(("training", trained)), seed, num_trained, num)
    episodes = _counts(repr(("sweeps", *stratum)), seed, num_episodes, num)
    both = np.einsum("bt,ts,bs->b", seeds, matrix, episodes, optimize=True)
    return Draws(
        float(matrix.mean()),
        np.stack([both, seeds @ matrix.mean(axis=1), episodes @ matrix.mean(axis=0)]),
        Units(num_trained, num_trained - 1),
        Units(num_episodes, num_episodes - 1),
    )


def mean(draws: Sequence[Draws]) -> Draws:
    """The mean over strata of one entry (or of one difference), each with the same weight."""
    return Draws(
        float(np.mean([one.value for one in draws])),
        np.mean([one.draws for one in draws], axis=0),
        draws[0].num_trained,
        Units(
            sum(one.num_episodes.count for one in draws), sum(one.num_episodes.df for one in draws)
        ),
    )


@lru_cache(maxsize=256)
def _counts(key: str, seed: int, units: int, num: int) -> Array:
    """Weights of each unit in each resample, ``(num, units)``; every row sums to 1.

    The text of the key seeds the draws: another spelling moves every interval a little.
    """
    digest = hashlib.sha256(key.encode()).digest()
    rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
    return resample_counts(rng, units, num) / units


def _ratio(one: Any, other: Any) -> Any:
    return np.divide(one, other, out=np.full_like(one, np.nan), where=other != 0)
