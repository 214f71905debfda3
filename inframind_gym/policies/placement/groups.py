"""Tensor-parallel groups, settled before the flow: the most profitable change first.

Either a group comes to a block, which costs its switch and the savings of the instances that are
there; or a group goes and its GPUs take single models, each the one that saves most by then (the
flow, which follows, may do better). Where a group came nothing changes again, and where one went
none comes in the same decision, so the search ends.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.placement.compiled import inner, placement_jit
from inframind_gym.simulator.placement.state import NONE, first_gpu_inner

COMES: Final = 1
GOES: Final = 0


@inner
def worth(gains: NDArray[np.float64], m: int, copy: int) -> float:
    """Return the request-seconds that copy number `copy` (from 1) of model `m` saves."""
    if copy < 1 or copy > gains.shape[1]:
        return 0.0
    return float(gains[m, copy - 1])


@inner
def begins_here(tp: NDArray[np.int64], target: NDArray[np.int64], first: int, g: int) -> bool:
    """Return whether `g` is the first GPU, from `first` on, of its instance."""
    a = target[g]
    if a == NONE:
        return False
    return g == first or target[g - 1] != a or g % tp[a] == 0


@inner
def loss(
    tp: NDArray[np.int64],
    target: NDArray[np.int64],
    copies: NDArray[np.int64],
    gains: NDArray[np.float64],
    first: int,
    width: int,
) -> float:
    """Return the request-seconds that are lost when all instances on a block go."""
    total = 0.0
    for g in range(first, first + width):
        if begins_here(tp, target, first, g):
            a = int(target[g])
            gone = 0
            for other in range(first, g):
                if target[other] == a and begins_here(tp, target, first, other):
                    gone += 1
            total += worth(gains, a, copies[a] - gone)
    return total


@inner
def apart(
    tp: NDArray[np.int64],
    copies: NDArray[np.int64],
    gains: NDArray[np.float64],
    switch: NDArray[np.float64],
    extra: NDArray[np.int64],
    choice: NDArray[np.int64],
    first: int,
    width: int,
) -> float:
    """Return the request-seconds that the GPUs of a block save with single models.

    `choice` (G,) is written on the block: these models, or NONE; `extra` (M,) is scratch.
    """
    for m in range(extra.shape[0]):
        extra[m] = 0
    total = 0.0
    for g in range(first, first + width):
        best = 0.0
        which = NONE
        for m in range(tp.shape[0]):
            if tp[m] == 1:
                saves = worth(gains, m, copies[m] + extra[m] + 1) - switch[g, m]
                if saves > best:
                    best = saves
                    which = m
        choice[g] = which
        if which != NONE:
            extra[which] += 1
            total += best
    return total


@inner
def is_open(
    free: NDArray[np.bool_],
    left: NDArray[np.bool_],
    target: NDArray[np.int64],
    m: int,
    first: int,
    width: int,
) -> bool:
    """Return whether a group of model `m` could come: all GPUs free, none there, none left."""
    for g in range(first, first + width):  # noqa: SIM110  (compiled: no generators)
        if not free[g] or left[g] or target[g] == m:
            return False
    return True


@inner
def may_go(
    free: NDArray[np.bool_], target: NDArray[np.int64], m: int, first: int, width: int
) -> bool:
    """Return whether a group of model `m` is on a block and free to go."""
    for g in range(first, first + width):  # noqa: SIM110  (compiled: no generators)
        if not free[g] or target[g] != m:
            return False
    return True


@inner
def find_change(
    tp: NDArray[np.int64],
    free: NDArray[np.bool_],
    left: NDArray[np.bool_],
    target: NDArray[np.int64],
    copies: NDArray[np.int64],
    gains: NDArray[np.float64],
    switch: NDArray[np.float64],
    extra: NDArray[np.int64],
    choice: NDArray[np.int64],
    found: NDArray[np.int64],
) -> bool:
    """Write the change that saves most to `found`: model, first GPU, COMES or GOES."""
    best = 0.0
    gpus = target.shape[0]
    for m in range(tp.shape[0]):
        width = int(tp[m])
        if width == 1:
            continue
        next_copy = worth(gains, m, copies[m] + 1)
        last_copy = worth(gains, m, copies[m])
        for first in range(0, gpus - width + 1, width):
            saves = 0.0
            comes = False
            if is_open(free, left, target, m, first, width):
                comes = True
                price = 0.0
                for g in range(first, first + width):
                    price = max(price, switch[g, m])
                if next_copy - price > best:
                    saves = next_copy - price
                    saves -= loss(tp, target, copies, gains, first, width)
            elif may_go(free, target, m, first, width):
                saves = apart(tp, copies, gains, switch, extra, choice, first, width) - last_copy
            if saves > best:
                best = saves
                found[0] = m
                found[1] = first
                found[2] = COMES if comes else GOES
    return best > 0.0


@inner
def vacate(
    tp: NDArray[np.int64],
    target: NDArray[np.int64],
    copies: NDArray[np.int64],
    first: int,
    width: int,
) -> None:
    """Take all instances away that have a GPU in a block."""
    for g in range(first, first + width):
        a = int(target[g])
        if a != NONE:
            start = first_gpu_inner(g, int(tp[a]))
            copies[a] -= 1
            for other in range(start, start + tp[a]):
                target[other] = NONE


@placement_jit
def settle_groups(
    tp: NDArray[np.int64],
    free: NDArray[np.bool_],
    left: NDArray[np.bool_],
    target: NDArray[np.int64],
    copies: NDArray[np.int64],
    gains: NDArray[np.float64],
    switch: NDArray[np.float64],
    extra: NDArray[np.int64],
    choice: NDArray[np.int64],
    found: NDArray[np.int64],
) -> int:
    """Let groups come and go while that saves request-seconds.

    Args:
        tp: (M,) GPUs of an instance.
        free: (G,) GPUs that may change; written: those of a group that comes no longer may.
        left: (G,) written: GPUs that a group has left; all False at first.
        target: (G,) model of each GPU or NONE, changed in place.
        copies: (M,) instances, kept up to date.
        gains: (M, K) worth of copies.
        switch: (G, M) cost of bringing a model to a GPU; infinity: it may not come.
        extra: (M,), choice: (G,), found: (3,) scratch.

    Returns:
        Number of changes.
    """
    changes = 0
    while find_change(tp, free, left, target, copies, gains, switch, extra, choice, found):
        m, first = int(found[0]), int(found[1])
        width = int(tp[m])
        vacate(tp, target, copies, first, width)
        if found[2] == COMES:
            copies[m] += 1
        else:
            apart(tp, copies, gains, switch, extra, choice, first, width)
        for g in range(first, first + width):
            if found[2] == COMES:
                target[g] = m
                free[g] = False
            else:
                left[g] = True
                target[g] = choice[g]
                if choice[g] != NONE:
                    copies[choice[g]] += 1
        changes += 1
    return changes
