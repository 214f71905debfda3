"""Accuracy of a model over questions whose difficulties are normal, and the way back.

P(right) = σ(ability - difficulty), difficulty normal with mean 0: the Rasch model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(41)
NODES: NDArray[np.float64] = _NODES  # (K,) standard normal quadrature
WEIGHTS: NDArray[np.float64] = _WEIGHTS / _WEIGHTS.sum()  # (K,) of the nodes, sum 1
_FARTHEST = 40.0  # logits, beyond which no accuracy is looked for
_HALVINGS = 60


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def accuracy(ability: NDArray[np.float64], difficulty_sd: float) -> NDArray[np.float64]:
    """Return the share of questions that models answer right.

    Args:
        ability: (M,) logits.
        difficulty_sd: Spread of the questions' difficulty, logits.

    Returns:
        (M,) in 0..1.
    """
    return np.asarray(sigmoid(ability[:, None] - difficulty_sd * NODES) @ WEIGHTS)


def ability_of(share_right: float, difficulty_sd: float) -> float:
    """Return the ability (logits) at which `accuracy` is `share_right`, in 0..1 exclusive."""
    low, high = -_FARTHEST, _FARTHEST
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if accuracy(np.array([middle]), difficulty_sd)[0] < share_right:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
