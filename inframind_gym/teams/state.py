"""State of n teams as arrays with a row each, which a class declares; keys of their draws."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Annotated, Any, Final, Self, get_args, get_origin, get_type_hints

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Keys = NDArray[np.uint64]
_KINDS: Final = {Ints: np.int64, Floats: np.float64, Bools: np.bool_}


@cache
def _declared(holder: type) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return the kind of every array that a class declares, and what follows its first axis."""
    found = {}
    for name, hint in get_type_hints(holder, include_extras=True).items():
        kind, *shape = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if kind in _KINDS:
            found[name] = (_KINDS[kind], tuple(shape))
    return found


def zeros(holder: type, n: int) -> dict[str, NDArray[Any]]:
    """Return the arrays that a class declares, with n rows of zeros."""
    return {name: np.zeros((n, *shape), kind) for name, (kind, shape) in _declared(holder).items()}


class Rows:
    """Arrays with a row a team: `name: Ints` has the shape (n,), `Annotated[Ints, 3]` (n, 3)."""

    def __init__(self, n: int) -> None:
        vars(self).update(zeros(type(self), n))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the declared arrays by their names."""
        holder: Any = type(self)
        return {name: getattr(self, name) for name in _declared(holder)}

    def clear(self, rows: Ints) -> None:
        """Set some rows to zero."""
        for part in self.arrays().values():
            part[rows] = 0

    def rows(self, rows: Ints) -> Self:
        """Return copies of some rows (k,), with all else that belongs to them."""
        some = copy(self)
        vars(some).update({name: part[rows] for name, part in self.arrays().items()})
        return some


def keys_of(rngs: Sequence[np.random.Generator]) -> Keys:
    """Draw the keys (k,) of runs, one from each generator."""
    # `random_raw` is `integers(2**64, dtype=np.uint64)`, ten times as fast.
    return np.array([rng.bit_generator.random_raw() for rng in rngs], np.uint64)


def key_of(seed: int) -> Keys:
    """Return the key (1,) of a run with this seed, as its environment draws it at a reset."""
    return keys_of([seeding.np_random(seed)[0]])
