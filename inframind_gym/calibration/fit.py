"""The fitters: CMA-ES for rugged mismatches of few constants, least squares for many constants.

A single simulated schedule jumps when a request just misses a step, so derivatives mislead. The
covariance matrix adaptation evolution strategy needs none (N. Hansen, "The CMA Evolution Strategy:
A Tutorial", arXiv 1604.00772); the package `cmaes` implements it. Means over thousands of queries
are smooth: damped Gauss-Newton steps fit them. SciPy's `least_squares` has no Huber loss with a
quadratic prior and a limit on each step; these 60 lines are also what the shipped constants were
fitted with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LeastSquares:
    """A robust least-squares problem: R residuals of P parameters, with a normal prior.

    Residuals come from simulations on common random numbers, so differences of nearby points are
    smooth enough to be divided. Parameters that touch different residuals are moved in one
    simulation, of which a step of up to 35 parameters then takes some twenty.
    """

    residuals: Callable[[Vector], Vector]  # (P,) -> (R,), in standard deviations
    weights: Vector  # (R,)
    prior_mean: Vector  # (P,)
    prior_precision: Vector  # (P, P)
    together: Sequence[Sequence[int]]  # parameters that are moved in one simulation
    touches: NDArray[np.bool_]  # (P, R) residuals that a parameter can change
    step: float  # for derivatives
    central: bool  # differences to both sides: twice the simulations, less noise
    longest_step: float  # of a parameter in one iteration

    def loss(self, r: Vector, x: Vector) -> float:
        """Return the Huber loss, linear beyond one standard deviation, less the log prior."""
        size, away = np.abs(r), x - self.prior_mean
        huber = np.where(size < 1.0, 0.5 * r * r, size - 0.5)
        return float((huber * self.weights).sum() + 0.5 * away @ self.prior_precision @ away)

    def minimise(
        self,
        start: Vector,
        *,
        iterations: int,
        report: Callable[[int, float], None] = lambda iteration, loss: None,
    ) -> tuple[Vector, float]:
        """Find the point of least loss by damped Gauss-Newton steps (Levenberg, Marquardt).

        Args:
            start: (P,) first point.
            iterations: At most so many steps.
            report: Called after each step with its number and the loss.

        Returns:
            The best point and its loss.
        """
        x, r = start.copy(), self.residuals(start)
        best, damping = self.loss(r, x), 0.3
        for iteration in range(iterations):
            jacobian = self._jacobian(x, r)
            weights = self.weights / np.maximum(np.abs(r), 1.0)
            hessian = jacobian.T @ (jacobian * weights[:, None]) + self.prior_precision
            gradient = jacobian.T @ (weights * r) + self.prior_precision @ (x - self.prior_mean)
            gain = 0.0
            for _ in range(5):
                step = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
                nearby = x + np.clip(step, -self.longest_step, self.longest_step)
                r_nearby = self.residuals(nearby)
                gain = best - self.loss(r_nearby, nearby)
                if gain > 0.0:
                    x, r, best = nearby, r_nearby, best - gain
                    damping = max(0.25 * damping, 1e-3)
                    break
                damping *= 4.0
            report(iteration, best)
            if gain < 0.3:
                break
        return x, best

    def _jacobian(self, x: Vector, r: Vector) -> Vector:
        """Return (R, P) derivatives, by differences."""
        out = np.zeros((len(r), len(x)))
        for moved in self.together:
            shift = np.zeros(len(x))
            shift[list(moved)] = self.step
            slope = (self.residuals(x + shift) - r) / self.step
            if self.central:
                slope = 0.5 * (slope - (self.residuals(x - shift) - r) / self.step)
            for parameter in moved:
                touched = self.touches[parameter]
                out[touched, parameter] = slope[touched]
        return out
