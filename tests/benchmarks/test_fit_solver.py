"""The solver of the fit finds known minima."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.fit.solver import Problem, minimise
from inframind_gym.calibration.fit import Vector

A = np.array([[1.0, 0.5], [0.2, 2.0], [1.0, -1.0], [0.3, 0.3]])
B = np.array([1.0, -0.5, 0.3, 8.0])  # the last one is an outlier


def linear(outlier: float, jacobian_every: int = 1) -> Problem:
    return Problem(
        lambda x: A @ x - B,
        lambda _x, _r: A,
        mean=np.array([0.1, -0.2]),
        precision=np.diag([0.5, 0.25]),
        iterations=60,
        jacobian_every=jacobian_every,
        longest_step=0.5,
        outlier=outlier,
    )


def test_without_outliers_it_is_a_ridge_regression() -> None:
    problem = linear(1e9)
    found, losses = minimise(problem, np.zeros(2))
    hessian = problem.hessian(A, A @ found - B)
    np.testing.assert_allclose(hessian, A.T @ A + problem.precision)
    exact = np.linalg.solve(hessian, A.T @ B + problem.precision @ problem.mean)
    # It stops at a step that gains little loss, ENOUGH.
    assert losses[-1] - problem.loss(A @ exact - B, exact) < 0.3
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == pytest.approx(problem.loss(A @ found - B, found))


def test_an_outlier_counts_linearly() -> None:
    problem = linear(1.0)
    found, losses = minimise(problem, np.zeros(2))
    least = minimize(lambda x: problem.loss(problem.residuals(x), x), found, method="Nelder-Mead")
    assert losses[-1] < least.fun + 0.3 < losses[0]
    assert abs((A @ found - B)[3]) > 7.0
    squares, _ = minimise(linear(1e9), np.zeros(2))
    assert np.abs(squares - found).max() > 0.3


def test_derivatives_are_updated_between_two_that_are_computed() -> None:
    calls = []

    def jacobian(x: Vector, r: Vector) -> Vector:
        calls.append(len(r))
        return np.diag(3.0 * np.square(x)) + 0.3

    problem = Problem(
        lambda x: 10.0 * (x**3 + 0.3 * x.sum() - np.array([9.0, 2.0])),
        lambda x, r: 10.0 * jacobian(x, r),
        mean=np.zeros(2),
        precision=1e-6 * np.eye(2),
        iterations=40,
        jacobian_every=4,
        longest_step=0.5,
        outlier=100.0,
    )
    found, losses = minimise(problem, np.ones(2))
    assert losses[-1] < 0.3
    assert len(calls) < len(losses)
    np.testing.assert_allclose(found**3 + 0.3 * found.sum(), [9.0, 2.0], atol=0.1)
