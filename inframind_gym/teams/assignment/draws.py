"""Random numbers of the application's decisions, each a function of the seed and its place."""

from __future__ import annotations

import numpy as np

from inframind_gym.simulator import rng
from inframind_gym.teams.assignment.simulate import key_of

STREAM_NEXT_TYPE = 221


class Draws:
    """Uniform numbers of one run.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self._key = key_of(seed)

    def at(self, stream: int, ordinal: int, place: int = 0) -> float:
        """Return the number in (0, 1) that belongs to a stream and a place."""
        first = np.array([ordinal], np.int64)
        return float(rng.uniform_array(self._key, stream, first, place)[0])

    def one_of(self, count: int, stream: int, ordinal: int, place: int = 0) -> int:
        """Return a whole number from 0 to `count` - 1."""
        return int(self.at(stream, ordinal, place) * count)
