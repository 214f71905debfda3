"""Arrays that are handed out again once nobody else has them: memory that is warm and mapped."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST: Final = 3  # arrays that are kept: the caller has one or two of a loop's observations


class SpareArrays:
    """Arrays of one shape and type, with any contents.

    Whoever keeps an array, or a view of it, keeps it to himself: a new one is made in its place.

    Args:
        shape: of each.
        dtype: of each.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, dtype
        self._arrays: list[NDArray[Any]] = [np.empty(shape, dtype)]
        for array in self._arrays:
            self._unshared = sys.getrefcount(array)

    def take(self) -> NDArray[Any]:
        """Return an array that nobody else has."""
        for array in self._arrays:
            if sys.getrefcount(array) == self._unshared:
                return array
        array = np.empty(self._shape, self._dtype)
        if len(self._arrays) < MOST:
            self._arrays.append(array)
        return array
