"""Observations as a Dict, with servers, GPUs or models as rows: the numbers of the flat ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Places = dict[str, NDArray[np.int64]]


class ObservationForm:
    """The form in which an environment shows its observations.

    Args:
        flat: the Box of all numbers, (d,).
        places: of each entry of a Dict the places of its numbers in the Box, in the entry's shape;
            None: the Box itself is shown.

    Attributes:
        space: of the observations.
        width: numbers of one observation in the Box.
    """

    def __init__(self, flat: spaces.Box, places: Places | None) -> None:
        self._places = places
        self.space: spaces.Space[Any] = flat
        self.width = len(flat.low)
        if places is not None:
            boxes: dict[str, spaces.Space[Any]] = {
                name: spaces.Box(flat.low[at], flat.high[at], dtype=np.float32)
                for name, at in places.items()
            }
            self.space = spaces.Dict(boxes)

    def of(self, flat: NDArray[np.float32]) -> Any:
        """Return flat observations (..., d) in this form; the arrays of a Dict are new."""
        if self._places is None:
            return flat
        return {name: flat[..., at] for name, at in self._places.items()}
