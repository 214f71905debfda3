"""The fitter finds the bottom of valleys that are not aligned with the axes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.calibration.fit import minimise


@pytest.mark.parametrize("d", [1, 3, 6])
def test_a_narrow_valley(d: int) -> None:
    rotation, _ = np.linalg.qr(np.random.default_rng(d).normal(size=(d, d)))
    goal = np.arange(1.0, d + 1)

    def valley(x: NDArray[np.float64]) -> float:
        return float((((x - goal) @ rotation) ** 2 * 100.0 ** np.linspace(0, 1, d)).sum())

    point, value = minimise(valley, np.zeros(d), spread=0.5, evaluations=4000, seed=0)
    np.testing.assert_allclose(point, goal, atol=1e-3)
    assert value == valley(point)


def test_infinite_values_are_avoided_and_seeds_repeat() -> None:
    def wall(x: NDArray[np.float64]) -> float:
        return float("inf") if x[0] < 1 else float(x @ x)

    runs = [minimise(wall, np.full(2, 2.0), spread=0.3, evaluations=600, seed=3) for _ in range(2)]
    assert runs[0][1] == runs[1][1] == pytest.approx(1.0, abs=0.01)


def test_the_start_counts() -> None:
    point, value = minimise(lambda x: float(x @ x), np.zeros(2), spread=1.0, evaluations=0, seed=0)
    assert value == 0.0
    assert point.tolist() == [0.0, 0.0]
