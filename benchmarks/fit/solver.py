"""Robust least squares for simulated data: Gauss-Newton with numerical derivatives.

The residuals come from simulations on common random numbers, so differences of nearby points are
smooth enough to be divided. Parameters that touch different residuals are moved in one simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class Problem(NamedTuple):
    """What is to be fitted: R residuals, P parameters."""

    residuals: Callable[[Vector], Vector]  # (P,) -> (R,), in standard deviations
    weights: Vector  # (R,)
    prior_mean: Vector  # (P,)
    prior_precision: NDArray[np.float64]  # (P, P)
    together: Sequence[Sequence[int]]  # parameters that are moved in one simulation
    touches: NDArray[np.bool_]  # (P, R) residuals that a parameter can change
    step: float  # for derivatives
    central: bool  # differences to both sides: twice the simulations, less noise
    longest_step: float  # of a parameter in one iteration


def huber(r: Vector) -> Vector:
    """Squares up to one standard deviation, straight lines beyond: outliers pull no harder."""
    size = np.abs(r)
    out: Vector = np.where(size < 1.0, 0.5 * r * r, size - 0.5)
    return out


def minimise(
    problem: Problem,
    start: Vector,
    *,
    iterations: int,
    tell: Callable[[int, float], None] = lambda iteration, loss: None,
) -> tuple[Vector, float]:
    """Least Huber loss plus prior, by damped Gauss-Newton steps (Levenberg, Marquardt).

    Returns:
        The best point and its loss.
    """

    def loss(r: Vector, x: Vector) -> float:
        away = x - problem.prior_mean
        return float(
            (huber(r) * problem.weights).sum() + 0.5 * away @ problem.prior_precision @ away
        )

    x, r = start.copy(), problem.residuals(start)
    best, damping = loss(r, x), 0.3
    for iteration in range(iterations):
        jacobian = _jacobian(problem, x, r)
        weights = problem.weights / np.maximum(np.abs(r), 1.0)
        hessian = jacobian.T @ (jacobian * weights[:, None]) + problem.prior_precision
        gradient = jacobian.T @ (weights * r) + problem.prior_precision @ (x - problem.prior_mean)
        gain = 0.0
        for _ in range(5):
            step = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            nearby = x + np.clip(step, -problem.longest_step, problem.longest_step)
            r_nearby = problem.residuals(nearby)
            gain = best - loss(r_nearby, nearby)
            if gain > 0.0:
                x, r, best = nearby, r_nearby, best - gain
                damping = max(0.25 * damping, 1e-3)
                break
            damping *= 4.0
        tell(iteration, best)
        if gain < 0.3:
            break
    return x, best


def _jacobian(problem: Problem, x: Vector, r: Vector) -> NDArray[np.float64]:
    """(R, P) derivatives, by differences."""
    out = np.zeros((len(r), len(x)))
    for moved in problem.together:
        shift = np.zeros(len(x))
        shift[list(moved)] = problem.step
        slope = (problem.residuals(x + shift) - r) / problem.step
        if problem.central:
            slope = 0.5 * (slope - (problem.residuals(x - shift) - r) / problem.step)
        for parameter in moved:
            touched = problem.touches[parameter]
            out[touched, parameter] = slope[touched]
    return out
