"""State of n teams: arrays with a row each, columns of observations, keys of their draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Annotated, Any, Final, Self, get_args, get_origin, get_type_hints

import numpy as np
from gymnasium.spaces import Box
from gymnasium.utils import seeding
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Keys = NDArray[np.uint64]
Column = tuple[int, float, float, Callable[..., Any]]  # see `Columns`
_KINDS: Final = {Ints: np.int64, Floats: np.float64, Bools: np.bool_}


@cache
def _declared(holder: type) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return dtype and shape of a row of every array that a class declares, by name."""
    arrays = {}
    for name, hint in get_type_hints(holder, include_extras=True).items():
        kind, *shape = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if kind in _KINDS:
            arrays[name] = (_KINDS[kind], tuple(shape))
    return arrays


def zeros(holder: type, n: int) -> dict[str, NDArray[Any]]:
    """Return the arrays that a class declares, with n rows of zeros."""
    return {name: np.zeros((n, *shape), kind) for name, (kind, shape) in _declared(holder).items()}


class Rows:
    """Arrays with a row a team: `name: Ints` has the shape (n,), `Annotated[Ints, 3]` (n, 3)."""

    def __init__(self, n: int) -> None:
        vars(self).update(zeros(type(self), n))
        self.num_rows = n

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the declared arrays by their names."""
        holder: Any = type(self)
        return {name: getattr(self, name) for name in _declared(holder)}

    def clear(self, rows: Ints) -> None:
        """Set some rows to zero."""
        for part in self.arrays().values():
            part[rows] = 0

    def rows(self, rows: Ints) -> Self:
        """Return a state of copies of some rows (k,); its other attributes are the same."""
        some, parts = copy(self), {name: part[rows] for name, part in self.arrays().items()}
        vars(some).update(parts)
        some.num_rows = len(next(iter(parts.values())))
        return some

    def view(self, rows: Ints) -> Self:
        """Return ascending rows (k,) for reading only: the state itself if these are all."""
        return self if len(rows) == self.num_rows else self.rows(rows)


class Columns:
    """Columns of an observation, a Box: their bounds, and the functions that compute them.

    Args:
        columns: name -> number n of columns, their low and high, and the function that returns
            them of a state of k rows, (k,) or (k, n).

    Attributes:
        box: of all numbers, (d,).
        places: of each column in the Box, (n,).
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        widths, lows, highs, values = zip(*columns.values(), strict=True)
        low, high = (np.repeat(np.array(ends, np.float32), widths) for ends in (lows, highs))
        self.box = Box(low, high)
        parts = np.split(np.arange(len(low)), np.cumsum(widths)[:-1])
        self.places: dict[str, Ints] = dict(zip(columns, parts, strict=True))
        at = [int(p[0]) if len(p) == 1 else slice(p[0], p[-1] + 1) for p in parts]
        self._values = list(zip(at, values, strict=True))

    def of(self, state: Rows, *others: Any) -> NDArray[np.float32]:
        """Return the numbers of a state of k rows, (k, d), within their bounds.

        Args:
            state: is given to the columns' functions, with the `others`.
        """
        out = np.empty((state.num_rows, len(self.box.low)), np.float32)
        for at, values in self._values:
            out[:, at] = values(state, *others)
        # `np.clip` takes twice as long where bounds differ from column to column.
        return np.minimum(np.maximum(out, self.box.low, out=out), self.box.high, out=out)


def keys_of(rngs: Sequence[np.random.Generator]) -> Keys:
    """Draw the keys (k,) of runs, one from each generator."""
    # `random_raw` is `integers(2**64, dtype=np.uint64)`, ten times as fast.
    return np.array([rng.bit_generator.random_raw() for rng in rngs], np.uint64)


def key_of(seed: int) -> Keys:
    """Return the key (1,) of a run with this seed, as its environment draws it at a reset."""
    return keys_of([seeding.np_random(seed)[0]])
