"""CMA-ES, a derivative-free minimiser for rugged functions of few variables.

A simulated schedule jumps when a request just misses a step, so derivatives of the mismatch between
a log and its simulation mislead. The covariance matrix adaptation evolution strategy samples from
a normal distribution and moves it towards the better half of the samples. Source: N. Hansen, "The
CMA Evolution Strategy: A Tutorial", arXiv 1604.00772, with its default constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
_PATIENCE: Final = 60  # generations in which the best value must fall by a thousandth


class CMAES:
    """The strategy as a loop of one's own: `ask` for a generation, judge it, `tell` the values.

    Args:
        start: (d,) centre of the first samples.
        spread: standard deviation of the first samples, the same for every variable.
        samples: points in a generation; None takes the default for d variables.

    Attributes:
        mean: (d,) centre of the distribution.
        step: its scale.
        generation: generations told so far.
    """

    def __init__(self, start: Vector, spread: float, samples: int | None = None) -> None:
        d = len(start)
        self.samples = samples or 4 + 2 * int(3 * np.log(d + 1))
        parents = self.samples // 2
        weights = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
        self._weights: Vector = weights / weights.sum()
        self._mass = 1.0 / float(np.sum(self._weights**2))  # effective number of parents
        mass = self._mass
        self._c_path = (4 + mass / d) / (d + 4 + 2 * mass / d)
        self._c_step = (mass + 2) / (d + mass + 5)
        self._c_one = 2 / ((d + 1.3) ** 2 + mass)
        self._c_rank = min(1 - self._c_one, 2 * (mass - 2 + 1 / mass) / ((d + 2) ** 2 + mass))
        excess = max(0.0, float(np.sqrt((mass - 1) / (d + 1))) - 1)
        self._damping = 1 + 2 * excess + self._c_step
        self._chi = float(np.sqrt(d) * (1 - 1 / (4 * d) + 1 / (21 * d * d)))

        self.mean: Vector = np.array(start, np.float64)
        self.step = spread
        self.generation = 0
        self._covariance: Vector = np.eye(d)
        self._path_step: Vector = np.zeros(d)
        self._path: Vector = np.zeros(d)
        self._moves: Vector = np.zeros((0, d))

    @property
    def largest_deviation(self) -> float:
        """Standard deviation of the samples along the longest axis."""
        return self.step * float(np.sqrt(max(float(np.linalg.eigvalsh(self._covariance)[-1]), 0.0)))

    def ask(self, rng: np.random.Generator) -> Vector:
        """The next generation, (samples, d)."""
        axes, scale = self._axes()
        self._moves = (rng.standard_normal((self.samples, len(self.mean))) * scale) @ axes.T
        points: Vector = self.mean + self.step * self._moves
        return points

    def tell(self, values: Vector) -> None:
        """What the points of the last generation are worth, (samples,); small is good."""
        d = len(self.mean)
        axes, scale = self._axes()
        chosen = self._moves[np.argsort(values, kind="stable")[: len(self._weights)]]
        move = self._weights @ chosen
        self.mean = self.mean + self.step * move
        self.generation += 1

        c_path, c_step, mass = self._c_path, self._c_step, self._mass
        self._path_step = (1 - c_step) * self._path_step + np.sqrt(c_step * (2 - c_step) * mass) * (
            axes @ ((axes.T @ move) / scale)
        )
        length = float(np.linalg.norm(self._path_step))
        warmth = np.sqrt(1 - (1 - c_step) ** (2 * self.generation))
        settled = bool(length / warmth < (1.4 + 2 / (d + 1)) * self._chi)
        self._path = (1 - c_path) * self._path + settled * np.sqrt(
            c_path * (2 - c_path) * mass
        ) * move
        unsettled = (not settled) * c_path * (2 - c_path)
        self._covariance = (
            (1 - self._c_one - self._c_rank) * self._covariance
            + self._c_one * (np.outer(self._path, self._path) + unsettled * self._covariance)
            + self._c_rank * (chosen.T * self._weights) @ chosen
        )
        self.step *= float(np.exp(c_step / self._damping * (length / self._chi - 1)))

    def state(self) -> dict[str, Vector]:
        """All that `restore` needs to go on from here, as arrays."""
        return {
            "mean": self.mean,
            "covariance": self._covariance,
            "path_step": self._path_step,
            "path": self._path,
            "scalars": np.array([self.step, self.generation], np.float64),
        }

    def restore(self, state: Mapping[str, Vector]) -> None:
        """Go on from a `state`."""
        self.mean = np.array(state["mean"], np.float64)
        self._covariance = np.array(state["covariance"], np.float64)
        self._path_step = np.array(state["path_step"], np.float64)
        self._path = np.array(state["path"], np.float64)
        self.step = float(state["scalars"][0])
        self.generation = int(state["scalars"][1])

    def _axes(self) -> tuple[Vector, Vector]:
        """Principal axes (d, d), as columns, and standard deviations along them (d,)."""
        variances, axes = np.linalg.eigh(self._covariance)
        return axes, np.sqrt(np.maximum(variances, 1e-20))


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
    strategy = CMAES(start, spread)
    best, best_value = strategy.mean.copy(), function(strategy.mean)
    history = [best_value]
    for _ in range(evaluations // strategy.samples):
        points = strategy.ask(rng)
        values = np.array([function(point) for point in points])
        strategy.tell(values)
        first = int(np.argsort(values, kind="stable")[0])
        if values[first] < best_value:
            best, best_value = points[first], float(values[first])
        history.append(best_value)
        stalled = len(history) > _PATIENCE and best_value > 0.999 * history[-1 - _PATIENCE]
        if stalled or strategy.largest_deviation < 1e-6:
            break
    return best, best_value
