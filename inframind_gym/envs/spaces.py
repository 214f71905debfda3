"""Forms of observations and masks, and the checks of actions and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.errors import ActionError, ConfigError, unknown

Ints = NDArray[np.int64]
Places = dict[str, Ints]


class ObservationForm:
    """The form in which an environment shows its observations: a Box, or a Dict of its numbers.

    Args:
        flat: the Box of all numbers, (d,).
        places: of each entry of a Dict the places of its numbers in the Box, in the entry's shape;
            None: the Box itself is shown.

    Attributes:
        space: of the observations.
        width: numbers of one observation in the Box.
    """

    def __init__(self, flat: spaces.Box, places: Places | None = None) -> None:
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


class SampleMask:
    """Masks in the form of `space.sample(mask=…)`.

    Args:
        space: of the actions.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._parts: list[slice] | None = None
        if isinstance(space, spaces.MultiDiscrete):
            ends = np.cumsum(space.nvec).tolist()
            self._parts = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]

    def of(self, mask: NDArray[np.bool_]) -> Any:
        """Return (n,) int8 for a Discrete space, for a MultiDiscrete one a tuple, an array a part.

        Args:
            mask: (n,) of all parts of the action, one after the other.
        """
        numbers = mask.astype(np.int8)
        return numbers if self._parts is None else tuple([numbers[part] for part in self._parts])


def check_actions(actions: Any, highs: Ints, num_envs: int, out: Ints | None = None) -> Ints:
    """Return actions as an array (num_envs, a), every number in its range.

    It is contiguous and writable, as compiled code takes it.

    Args:
        actions: one action an environment, in any form that NumPy takes.
        highs: (a,) int64 number of choices of each part.
        num_envs: how many are expected.
        out: (num_envs, a), written and returned; None: a new array is.

    Raises:
        ActionError: a wrong shape, a number that is not an integer, or one out of range.
    """
    array = np.asarray(actions)
    if array.dtype.kind not in "iu":
        raise ActionError(
            f"actions must be integers, got {array.dtype} ({actions!r}); use the action space"
        )
    parts = len(highs)
    fits = (
        array.shape == (num_envs, parts)
        or (parts == 1 and array.shape == (num_envs,))
        or (num_envs == 1 and array.shape == (parts,))
        or (num_envs == parts == array.size == 1)
    )
    if not fits:
        raise ActionError(
            f"actions have shape {array.shape}; expected {num_envs} of {parts} numbers each"
        )
    array = array.reshape(num_envs, parts)
    checked = np.empty((num_envs, parts), np.int64) if out is None else out
    np.copyto(checked, array, casting="same_kind")
    # What is negative is large.
    if np.count_nonzero(checked.view(np.uint64) >= highs.view(np.uint64)):
        env, part = np.argwhere((array < 0) | (array >= highs))[0].tolist()
        where = f" of environment {env}" if num_envs > 1 else ""
        where += f", part {part}" if parts > 1 else ""
        raise ActionError(
            f"action {array[env, part]}{where} is out of range: it must be in 0..{highs[part] - 1}"
        )
    return checked


def check_options(options: object, known: Sequence[str]) -> dict[str, Any]:
    """Return the options of a `reset`.

    Raises:
        ConfigError: they are not a dict, or one is unknown.
    """
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ConfigError(f"reset: options must be a dict or None, got {options!r}")
    for key in options:
        if key not in known:
            raise ConfigError(f"reset: {unknown('option', key, known)}")
    return options
