"""The solver of the fit: damped Gauss-Newton steps for a Huber loss with a normal prior.

SciPy's `least_squares` has no Huber loss with a quadratic prior, no limit on each step, and takes
derivatives at every step; here Broyden's rank-one updates stand between two that are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from inframind_gym.calibration.fit import Vector

ENOUGH: Final = 0.3  # a step that gains less loss is the last
TRIES: Final = 5  # of one step, each four times as damped as the one before


@dataclass(frozen=True)
class Problem:
    """Constants (P,) whose residuals (R,), in standard deviations, and prior are to be small."""

    residuals: Callable[[Vector], Vector]
    jacobian: Callable[[Vector, Vector], Vector]  # (R, P) at constants with these residuals
    mean: Vector  # (P,) of the normal prior
    precision: Vector  # (P, P)
    iterations: int  # at most
    jacobian_every: int  # iterations
    longest_step: float  # of a constant in one iteration
    outlier: float  # residuals beyond count linearly

    def loss(self, r: Vector, x: Vector) -> float:
        """Return the Huber loss, linear beyond `outlier`, less the log prior."""
        size, away = np.abs(r), x - self.mean
        huber = np.where(
            size < self.outlier, 0.5 * r * r, self.outlier * (size - 0.5 * self.outlier)
        )
        return float(huber.sum() + 0.5 * away @ self.precision @ away)

    def hessian(self, jacobian: Vector, r: Vector) -> Vector:
        """Return the Hessian (P, P) of the loss, by Gauss and Newton."""
        return np.asarray(jacobian.T @ (jacobian * self.weights(r)[:, None]) + self.precision)

    def weights(self, r: Vector) -> Vector:
        """Return (R,) weights that make squares of the Huber loss."""
        return self.outlier / np.maximum(np.abs(r), self.outlier)


def minimise(problem: Problem, start: Vector) -> tuple[Vector, list[float]]:
    """Return constants of little loss, by Levenberg-Marquardt steps from `start`, and the losses.

    The losses are those of the start and after every step that was taken.
    """
    x = start.copy()
    r = problem.residuals(x)
    best, damping = problem.loss(r, x), 0.3
    losses = [best]
    jacobian, age = problem.jacobian(x, r), 0
    for _ in range(problem.iterations):
        if age >= problem.jacobian_every:
            jacobian, age = problem.jacobian(x, r), 0
        hessian = problem.hessian(jacobian, r)
        gradient = jacobian.T @ (problem.weights(r) * r)
        gradient = gradient + problem.precision @ (x - problem.mean)
        gain = 0.0
        for _ in range(TRIES):
            step = -np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            step = np.clip(step, -problem.longest_step, problem.longest_step)
            nearby = problem.residuals(x + step)
            gain = best - problem.loss(nearby, x + step)
            # Broyden's update is good wherever the step ends.
            jacobian = jacobian + np.outer(nearby - r - jacobian @ step, step) / (step @ step)
            if gain > 0.0:
                x, r, best = x + step, nearby, best - gain
                losses.append(best)
                damping = max(0.25 * damping, 1e-3)
                break
            damping *= 4.0
        age += 1
        if gain < ENOUGH:
            if age == 1:
                break
            age = problem.jacobian_every  # the derivatives may be stale: once more with new ones
    return x, losses
