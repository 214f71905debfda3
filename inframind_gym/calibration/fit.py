"""The fitter of few constants with a rugged mismatch: CMA-ES.

A single simulated schedule jumps when a request just misses a step, so derivatives mislead. The
covariance matrix adaptation evolution strategy needs none (N. Hansen, "The CMA Evolution Strategy:
A Tutorial", arXiv 1604.00772); the package `cmaes` implements it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_PATIENCE: Final = 60  # generations in which the best value must fall by a thousandth
_NARROW: Final = 1e-6  # extent of a generation below which the search has converged


def minimise(
    function: Callable[[Vector], float],
    start: Vector,
    *,
    spread: float,
    evaluations: int,
    seed: int,
    samples: int | None = None,
) -> tuple[Vector, float]:
    """Find a point where `function` is small.

    Args:
        function: Of a vector (d,); may be infinite where it is undefined.
        start: (d,) centre of the first samples.
        spread: Standard deviation of the first samples, the same for every variable.
        evaluations: Number of calls of `function`, at most and roughly.
        seed: Of the samples: the same seed gives the same result.
        samples: Points of a generation: the more, the better a rugged valley is explored. Default:
            twice the package's own.

    Returns:
        The best point tried, (d,), and its value. `start` itself is tried.
    """
    samples = samples or 4 + 2 * int(3 * np.log(len(start) + 1))
    strategy = CMA(np.array(start, np.float64), spread, seed=seed, population_size=samples)
    best, least = np.array(start, np.float64), function(start)
    history = [least]
    for _ in range(evaluations // samples):
        points = [strategy.ask() for _ in range(samples)]
        values = [function(point) for point in points]
        strategy.tell(list(zip(points, values, strict=True)))
        if min(values) < least:
            least = min(values)
            best = points[values.index(least)]
        history.append(least)
        stalled = len(history) > _PATIENCE and least > 0.999 * history[-1 - _PATIENCE]
        if stalled or np.ptp(points, axis=0).max() < _NARROW:
            break
    return best, least
