"""The exchange of GPUs finds the min-cost flow."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inframind_gym.policies.placement.exchange import FORBIDDEN, assign


def total(switch: NDArray[Any], gain: NDArray[Any], model: NDArray[np.int64]) -> int:
    """Costs of an assignment, less what its copies are worth."""
    copies = np.bincount(model, minlength=len(gain))
    worth = sum(int(gain[m, : copies[m]].sum()) for m in range(len(gain)))
    return int(switch[np.arange(len(model)), model].sum()) - worth


def problem(
    seed: int, gpus: int, models: int, copies: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    gain = -np.sort(-rng.integers(0, most, (models, copies)), axis=1)
    switch = rng.integers(0, most, (gpus, models))
    switch[rng.random((gpus, models)) < 0.2] = FORBIDDEN
    start = rng.integers(0, models, gpus)
    switch[np.arange(gpus), start] = 0
    return switch, gain, start


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    gpus=st.integers(1, 5),
    models=st.integers(1, 4),
    copies=st.integers(1, 3),
    most=st.sampled_from([3, 100]),
)
def test_against_all_assignments(seed: int, gpus: int, models: int, copies: int, most: int) -> None:
    switch, gain, start = problem(seed, gpus, models, copies, most)
    found = assign(switch, gain, start)
    best = min(
        total(switch, gain, np.array(x)) for x in itertools.product(range(models), repeat=gpus)
    )
    assert total(switch, gain, found) == best


@pytest.mark.parametrize(("gpus", "models"), [(16, 12), (64, 16), (120, 30)])
@pytest.mark.parametrize("seed", range(4))
def test_against_scipy(gpus: int, models: int, seed: int) -> None:
    """The same flow as an assignment of GPUs to copies."""
    optimize = pytest.importorskip("scipy.optimize")
    copies = max(2, gpus // models * 2)
    switch, gain, start = problem(seed, gpus, models, copies, 10_000)
    wide = np.repeat(switch, copies, axis=1) - gain.ravel()
    wide = np.concatenate([wide, np.repeat(switch, gpus, axis=1)], axis=1)  # copies beyond the last
    rows, columns = optimize.linear_sum_assignment(wide)
    assert total(switch, gain, assign(switch, gain, start)) == int(wide[rows, columns].sum())


def test_wrong_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be more"):
        assign(np.zeros((1, 1), np.int64), np.array([[1, 2]]), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="not possible"):
        assign(np.full((1, 1), FORBIDDEN), np.array([[1]]), np.zeros(1, np.int64))
