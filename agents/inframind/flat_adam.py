"""Adam over all parameters of a network at once.

The networks here are small and updated thousands of times a minute: all parameters lie in one
vector, over which a compiled loop goes once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from agents.inframind.layers import Array, Parameters
from inframind_gym.simulator.jit import make_jit

BETAS: Final = (0.9, 0.999)
EPS: Final = 1e-5


class FlatAdam:
    """Adam (Kingma and Ba 2015) with gradients clipped by their norm.

    Args:
        parameters: of the network; their vector is changed in place.
        lr: learning rate.
        max_grad_norm: gradients with a longer norm are scaled to it.
    """

    def __init__(self, parameters: Parameters, lr: float, max_grad_norm: float) -> None:
        self.lr, self.max_grad_norm = lr, max_grad_norm
        self._parameters = parameters
        self._mean = np.zeros_like(parameters.vector)
        self._square = np.zeros_like(parameters.vector)
        self._steps = 0

    def step(self) -> None:
        """Move the parameters against their gradient."""
        self._steps += 1
        gradient = self._parameters.gradient
        norm = math.sqrt(gradient @ gradient)
        clip = self.max_grad_norm / (norm + 1e-6) if norm > self.max_grad_norm else 1.0
        first, second = BETAS
        rate = self.lr / (1.0 - first**self._steps)
        scale = 1.0 / math.sqrt(1.0 - second**self._steps)
        numbers = np.array([clip, 1 - first, 1 - second, rate, scale, EPS], gradient.dtype)
        _move(self._parameters.vector, gradient, self._mean, self._square, numbers)

    def state(self, prefix: str) -> dict[str, NDArray[Any]]:
        """What `restore` needs beside the parameters."""
        return {
            f"{prefix}mean": self._mean.copy(),
            f"{prefix}square": self._square.copy(),
            f"{prefix}steps": np.array([self._steps], np.int64),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        """Go back to a `state`."""
        self._mean[:] = arrays[f"{prefix}mean"]
        self._square[:] = arrays[f"{prefix}square"]
        self._steps = int(arrays[f"{prefix}steps"][0])


@make_jit(allocates=True)
def _move(values: Array, gradient: Array, mean: Array, square: Array, numbers: Array) -> None:
    """One step over vectors (P,), in their own precision."""
    clip, new_mean, new_square, rate, scale, eps = numbers
    for i in range(len(values)):
        g = clip * gradient[i]
        mean[i] += new_mean * (g - mean[i])
        square[i] += new_square * (g * g - square[i])
        values[i] -= rate * mean[i] / (scale * np.sqrt(square[i]) + eps)
