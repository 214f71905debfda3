"""Adam over one flat vector is Adam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agents.inframind.flat_adam import EPS, FlatAdam
from agents.inframind.layers import Parameters
from tests.agents.gradients import gradients_of

torch = pytest.importorskip("torch")

SIZES = {"a.weight": (7, 5), "a.bias": (7,), "b.weight": (3, 7)}


def first(dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(size).astype(dtype) for name, size in SIZES.items()}


def gradient(step: int) -> Any:
    """Of 63 parameters; its norm is above the limit in some steps and below it in others."""
    return np.random.default_rng(step).standard_normal(63) * (0.01 + step % 3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("max_grad_norm", [0.5, 1e9])
def test_it_steps_as_torchs_own_with_clipped_gradients(max_grad_norm: float, dtype: Any) -> None:
    mine = Parameters(first(dtype), dtype)
    flat = FlatAdam(mine, 0.01, max_grad_norm)
    theirs = [torch.nn.Parameter(torch.from_numpy(array)) for array in first(dtype).values()]
    adam = torch.optim.Adam(theirs, lr=0.01, eps=EPS)
    for step in range(30):
        mine.gradient[:] = gradient(step)
        for parameter, own in zip(theirs, gradients_of(mine).values(), strict=True):
            parameter.grad = torch.from_numpy(own)
        flat.step()
        torch.nn.utils.clip_grad_norm_(theirs, max_grad_norm)
        adam.step()
    near = 1e-12 if dtype is np.float64 else 1e-6
    for value, parameter in zip(mine.copies().values(), theirs, strict=True):
        assert value == pytest.approx(parameter.detach().numpy(), rel=10 * near, abs=near)


def test_it_goes_on_from_a_state() -> None:
    whole, resumed = Parameters(first()), Parameters(first())
    flat, again = FlatAdam(whole, 0.01, 1.0), FlatAdam(resumed, 0.01, 1.0)
    for step in range(10):
        if step == 4:
            resumed.load(whole.copies())
            again.restore(flat.state("adam."), "adam.")
        whole.gradient[:] = gradient(step)
        flat.step()
        if step >= 4:
            resumed.gradient[:] = gradient(step)
            again.step()
    assert np.array_equal(whole.vector, resumed.vector)
    assert not np.array_equal(whole.vector, Parameters(first()).vector)
