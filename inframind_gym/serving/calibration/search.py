"""CMA-ES, a derivative-free minimiser for rugged functions of few variables.

A simulated schedule jumps when a request just misses a step, so derivatives of the mismatch between
a log and its simulation mislead. The covariance matrix adaptation evolution strategy samples from
a normal distribution and moves it towards the better half of the samples. Source: N. Hansen, "The
CMA Evolution Strategy: A Tutorial", arXiv 1604.00772, with its default constants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_PATIENCE: Final = 60  # generations in which the best value must fall by a thousandth


def minimise(
    function: Callable[[Vector], float],
    start: Vector,
    *,
    spread: float,
    evaluations: int,
    seed: int,
) -> tuple[Vector, float]:
    """Find a point where `function` is small.

    Args:
        function: Of a vector (d,); may be infinite where it makes no sense.
        start: (d,) centre of the first samples.
        spread: Standard deviation of the first samples, the same for every variable.
        evaluations: At most about so many calls of `function`.
        seed: Of the samples: the same seed gives the same result.

    Returns:
        The best point that was tried, (d,), and its value. `start` itself is tried.
    """
    rng = np.random.default_rng(seed)
    d = len(start)
    samples = 4 + 2 * int(3 * np.log(d + 1))
    parents = samples // 2
    weights = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    weights /= weights.sum()
    mass = 1.0 / float(np.sum(weights**2))  # effective number of parents

    c_path = (4 + mass / d) / (d + 4 + 2 * mass / d)
    c_step = (mass + 2) / (d + mass + 5)
    c_one = 2 / ((d + 1.3) ** 2 + mass)
    c_rank = min(1 - c_one, 2 * (mass - 2 + 1 / mass) / ((d + 2) ** 2 + mass))
    damping = 1 + 2 * max(0.0, float(np.sqrt((mass - 1) / (d + 1))) - 1) + c_step
    chi = np.sqrt(d) * (1 - 1 / (4 * d) + 1 / (21 * d * d))

    mean = np.array(start, np.float64)
    step = spread
    covariance = np.eye(d)
    path_step = np.zeros(d)
    path = np.zeros(d)
    best, best_value = mean.copy(), function(mean)
    history = [best_value]
    for generation in range(1, evaluations // samples + 1):
        variances, axes = np.linalg.eigh(covariance)
        scale = np.sqrt(np.maximum(variances, 1e-20))
        moves = (rng.standard_normal((samples, d)) * scale) @ axes.T
        values = np.array([function(mean + step * move) for move in moves])
        order = np.argsort(values, kind="stable")
        if values[order[0]] < best_value:
            best, best_value = mean + step * moves[order[0]], float(values[order[0]])
        chosen = moves[order[:parents]]
        move = weights @ chosen
        mean = mean + step * move

        path_step = (1 - c_step) * path_step + np.sqrt(c_step * (2 - c_step) * mass) * (
            axes @ ((axes.T @ move) / scale)
        )
        length = float(np.linalg.norm(path_step))
        settled = length / np.sqrt(1 - (1 - c_step) ** (2 * generation)) < (1.4 + 2 / (d + 1)) * chi
        path = (1 - c_path) * path + settled * np.sqrt(c_path * (2 - c_path) * mass) * move
        covariance = (
            (1 - c_one - c_rank) * covariance
            + c_one * (np.outer(path, path) + (not settled) * c_path * (2 - c_path) * covariance)
            + c_rank * (chosen.T * weights) @ chosen
        )
        step *= float(np.exp(c_step / damping * (length / chi - 1)))
        history.append(best_value)
        stalled = len(history) > _PATIENCE and best_value > 0.999 * history[-1 - _PATIENCE]
        if stalled or step * float(scale.max()) < 1e-6:
            break
    return best, best_value
