"""Checks of what a policy has chosen; nothing here knows what it chooses from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ActionError


def check_actions(actions: Any, highs: NDArray[np.int64], num_envs: int) -> NDArray[np.int64]:
    """Actions as an array (num_envs, a), every number in its range.

    Args:
        actions: one action an environment, in any form that NumPy takes.
        highs: (a,) number of choices of each part.
        num_envs: how many are expected.

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
    array = array.reshape(num_envs, parts).astype(np.int64, copy=False)
    if (array < 0).any() or (array >= highs).any():
        env, part = np.argwhere((array < 0) | (array >= highs))[0].tolist()
        where = f" of environment {env}" if num_envs > 1 else ""
        where += f", part {part}" if parts > 1 else ""
        raise ActionError(
            f"action {array[env, part]}{where} is out of range: it must be in 0..{highs[part] - 1}"
        )
    return array
