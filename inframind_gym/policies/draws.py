"""Random draws that belong to a row, and names with arguments, for many policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.policies.base import BasePolicy
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array


class RowwiseDraws(BasePolicy):
    """A policy whose draws are functions of (seed of the row, decisions the row has made, use).

    Neither the order nor the company in which rows are asked can change a draw. A subclass adds 1
    to `decisions[rows]` at the end of its `act_batch`.
    """

    def __init__(self) -> None:
        self.decisions: NDArray[np.int64] = np.zeros(0, np.int64)  # (rows,)

    def reset(self, spec: PolicySpec, seeds: Sequence[int]) -> None:
        """Prepare for `len(seeds)` rows."""
        super().reset(spec, seeds)
        self.decisions = np.zeros(len(seeds), np.int64)

    def uniform(self, rows: NDArray[np.int64], use: int) -> NDArray[np.float64]:
        """One number in (0, 1) for each of `rows`, for its next decision."""
        return uniform_array(self.seeds[rows], STREAM_POLICY, self.decisions[rows], use)


def draw_from(weights: NDArray[np.float64], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draw one column a row.

    Args:
        weights: (n, k), not negative, with a positive sum in every row.
        u: (n,) uniform numbers in (0, 1).

    Returns:
        (n,) columns; a column of weight 0 is never drawn.
    """
    edges = np.cumsum(weights, axis=1)
    threshold = u * edges[:, -1]
    return np.asarray((edges <= threshold[:, None]).sum(axis=1), np.int64)


def named(name: str, *arguments: str) -> str:
    """A policy's name with its arguments, as `resolve_policy` reads it."""
    return ":".join((name, *arguments))
