"""Layers with gradients written by hand, in NumPy.

The networks here are so small that an autograd framework would spend most of an update on its own
bookkeeping. A layer remembers what it was last called with; its `backward` takes the gradient of
the loss with respect to what it returned, writes those of its parameters and returns that of its
input. Each layer is called once, then goes backward once. `tests/agents` holds all of it equal to
torch's autograd.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.inframind.executor_inference import LAYER_NORM_EPS

Array = NDArray[Any]


class Parameters:
    """Arrays with names, laid end to end in one vector, and their gradients in another.

    Args:
        arrays: name -> first value, in the order of the vector.
        dtype: of all arithmetic.

    Attributes:
        vector: (P,) the values.
        gradient: (P,) of the loss; every backward pass overwrites all of it.
    """

    def __init__(
        self, arrays: Mapping[str, Array], dtype: type[np.floating[Any]] = np.float32
    ) -> None:
        size = sum(array.size for array in arrays.values())
        self.vector = np.empty(size, dtype)
        self.gradient = np.zeros(size, dtype)
        self._values, self._gradients = {}, {}
        at = 0
        for name, array in arrays.items():
            here = slice(at, at + array.size)
            self._values[name] = self.vector[here].reshape(array.shape)
            self._gradients[name] = self.gradient[here].reshape(array.shape)
            at += array.size
        self.load(arrays)

    def __getitem__(self, name: str) -> tuple[Array, Array]:
        """Views of a parameter and of its gradient."""
        return self._values[name], self._gradients[name]

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Take over values by name."""
        for name, value in self._values.items():
            value[...] = arrays[name]

    def copies(self) -> dict[str, Array]:
        """The values by name."""
        return {name: value.copy() for name, value in self._values.items()}


class Linear:
    """y = x Wᵀ + b, from (n, inputs) to (n, outputs).

    Args:
        parameters: hold "<name>.weight" (outputs, inputs) and "<name>.bias" (outputs,).
        name: of the layer.
    """

    def __init__(self, parameters: Parameters, name: str) -> None:
        self._weight, self._d_weight = parameters[f"{name}.weight"]
        self._bias, self._d_bias = parameters[f"{name}.bias"]
        self._x: Array = np.zeros(0)
        self.outputs = len(self._bias)

    def __call__(self, x: Array) -> Array:
        """From (n, inputs)."""
        self._x = x
        y: Array = x @ self._weight.T
        y += self._bias
        return y

    def backward(self, d_y: Array) -> Array:
        """From (n, outputs) to the gradient (n, inputs) of the input."""
        self.stop(d_y)
        d_x: Array = d_y @ self._weight
        return d_x

    def stop(self, d_y: Array) -> None:
        """`backward` of a layer whose input needs no gradient."""
        np.matmul(d_y.T, self._x, out=self._d_weight)
        np.add.reduce(d_y, axis=0, out=self._d_bias)


class LayerNorm:
    """Rows (n, d) shifted and scaled to mean 0 and variance 1, then stretched."""

    def __init__(self, parameters: Parameters, name: str) -> None:
        self._weight, self._d_weight = parameters[f"{name}.weight"]
        self._bias, self._d_bias = parameters[f"{name}.bias"]
        self._scaled = self._inverse = np.zeros(0)

    def __call__(self, x: Array) -> Array:
        """From (n, d)."""
        centred = x - row_mean(x)
        variance = row_mean(np.square(centred))
        self._inverse = 1.0 / np.sqrt(variance + x.dtype.type(LAYER_NORM_EPS))  # (n, 1)
        self._scaled = np.multiply(centred, self._inverse, out=centred)
        y: Array = self._scaled * self._weight
        y += self._bias
        return y

    def backward(self, d_y: Array) -> Array:
        """From (n, d)."""
        product = d_y * self._scaled
        np.add.reduce(product, axis=0, out=self._d_weight)
        np.add.reduce(d_y, axis=0, out=self._d_bias)
        product *= self._weight
        d_x: Array = d_y * self._weight
        along = row_mean(product)
        d_x -= row_mean(d_x)
        d_x -= np.multiply(self._scaled, along, out=product)
        d_x *= self._inverse
        return d_x


class Unit:
    """Rows (n, d) scaled to length 1 (shorter ones than 1e-12 stay short, as in torch)."""

    def __init__(self) -> None:
        self._y = self._norm = np.zeros(0)

    def __call__(self, x: Array) -> Array:
        """From (n, d)."""
        squares = np.add.reduce(np.square(x), axis=1, keepdims=True)
        self._norm = np.maximum(np.sqrt(squares), 1e-12)
        self._y = x / self._norm
        return self._y

    def backward(self, d_y: Array) -> Array:
        """From (n, d)."""
        along = np.add.reduce(d_y * self._y, axis=1, keepdims=True)
        d_x: Array = d_y - self._y * along
        d_x /= self._norm
        return d_x


class ReLU:
    """max(x, 0), in place."""

    def __init__(self) -> None:
        self._y: Array = np.zeros(0)

    def __call__(self, x: Array) -> Array:
        """From any shape; `x` is overwritten."""
        self._y = np.maximum(x, 0.0, out=x)
        return self._y

    def backward(self, d_y: Array) -> Array:
        """From the same shape; `d_y` is overwritten."""
        d_y *= self._y > 0.0
        return d_y


class Pick:
    """Log-probabilities (n,) of one index a row of logits (n, A); logits may be -inf."""

    def __init__(self) -> None:
        self._probabilities: Array = np.zeros(0)
        self._at: tuple[Array, Array] = (np.zeros(0), np.zeros(0))

    def __call__(self, logits: Array, index: NDArray[np.int64]) -> Array:
        """Of `index` (n,)."""
        shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
        powers = np.exp(shifted)
        total = np.add.reduce(powers, axis=1, keepdims=True)
        self._probabilities = np.divide(powers, total, out=powers)
        self._at = (np.arange(len(index)), index)
        picked: Array = shifted[self._at] - np.log(total[:, 0])
        return picked

    def backward(self, d_picked: Array) -> Array:
        """From (n,) to the gradient (n, A) of the logits."""
        d_logits: Array = self._probabilities * -d_picked[:, None]
        d_logits[self._at] += d_picked
        return d_logits


def row_mean(x: Array) -> Array:
    """Mean (n, 1) of every row of (n, d), in the precision of `x`."""
    mean: Array = np.add.reduce(x, axis=1, keepdims=True)
    mean *= x.dtype.type(1.0 / x.shape[1])
    return mean
