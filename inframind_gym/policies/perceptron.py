"""Perceptrons of trained policies, played with NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies import checkpoint

ACTIVATIONS: Final[dict[str, Callable[..., NDArray[Any]]]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0.0),
}


def checkpoint_folder(folder: Path) -> Path:
    """Return a checkpoint's folder: the one named, or `checkpoint` in that of a training."""
    inside = folder / "checkpoint"
    return inside if inside.is_dir() else folder


def check_layers(where: Path, tensors: checkpoint.Tensors, widths: Sequence[int]) -> None:
    """Check the shapes of layers of these widths, the observation's first.

    Raises:
        ConfigError: a tensor is missing, left over or of another shape.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        shapes |= {f"layer{i}.weight": (outputs, inputs), f"layer{i}.bias": (outputs,)}
    checkpoint.check_shapes(where, tensors, shapes)


def forward(
    tensors: checkpoint.Tensors, x: NDArray[Any], activation: str = "tanh"
) -> NDArray[np.float64]:
    """Return the outputs (n, a) for observations (n, d); a row's bits are its own."""
    layers = len(tensors) // 2
    for i in range(layers):
        weight = tensors[f"layer{i}.weight"].astype(np.float64)
        x = np.einsum("ni,oi->no", x.astype(np.float64), weight) + tensors[f"layer{i}.bias"]
        x = ACTIVATIONS[activation](x) if i < layers - 1 else x
    return np.asarray(x, np.float64)
