"""Tensor-parallel groups, settled before the flow: the most profitable change first.

Either a group comes to a block, which costs its switch and the savings of the instances that are
there; or a group goes and its GPUs take single models, each the one that saves most by then (the
flow, which follows, may do better). Where a group came nothing changes again, and where one went
none comes in the same decision, so the search ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.placement.compiled import inner, placement_jit
from inframind_gym.simulator.placement.state import NONE, first_gpu_inner

COMES: Final = 1
GOES: Final = 0


class Blocks(NamedTuple):
    """One decision as arrays; G GPUs, M models, K copies."""

    tp: NDArray[np.int64]  # (M,) GPUs of an instance
    free: NDArray[np.bool_]  # (G,) GPUs that may change; a group that comes takes its GPUs out
    left: NDArray[np.bool_]  # (G,) GPUs that a group has left; all False at first
    target: NDArray[np.int64]  # (G,) model of each GPU or NONE, changed in place
    copies: NDArray[np.int64]  # (M,) instances, kept up to date
    gains: NDArray[np.float64]  # (M, K) worth of copies
    switch: NDArray[np.float64]  # (G, M) cost of bringing a model to a GPU; infinity: it may not
    extra: NDArray[np.int64]  # (M,) scratch
    choice: NDArray[np.int64]  # (G,) scratch: models of the GPUs of a block that is split
    found: NDArray[np.int64]  # (3,) scratch: model, first GPU, COMES or GOES


@inner
def worth(blocks: Blocks, m: int, copy: int) -> float:
    """Return the request-seconds that copy number `copy` (from 1) of model `m` saves."""
    if copy < 1 or copy > blocks.gains.shape[1]:
        return 0.0
    return float(blocks.gains[m, copy - 1])


@inner
def begins_here(blocks: Blocks, first: int, g: int) -> bool:
    """Return whether `g` is the first GPU, from `first` on, of its instance."""
    a = blocks.target[g]
    if a == NONE:
        return False
    return g == first or blocks.target[g - 1] != a or g % blocks.tp[a] == 0


@inner
def loss(blocks: Blocks, first: int, width: int) -> float:
    """Return the request-seconds that are lost when all instances on a block go."""
    total = 0.0
    for g in range(first, first + width):
        if begins_here(blocks, first, g):
            a = int(blocks.target[g])
            gone = 0
            for other in range(first, g):
                if blocks.target[other] == a and begins_here(blocks, first, other):
                    gone += 1
            total += worth(blocks, a, blocks.copies[a] - gone)
    return total


@inner
def apart(blocks: Blocks, first: int, width: int) -> float:
    """Return the request-seconds that a block saves with single models, written to `choice`."""
    for m in range(blocks.extra.shape[0]):
        blocks.extra[m] = 0
    total = 0.0
    for g in range(first, first + width):
        best = 0.0
        which = NONE
        for m in range(blocks.tp.shape[0]):
            if blocks.tp[m] == 1:
                saves = worth(blocks, m, blocks.copies[m] + blocks.extra[m] + 1)
                saves -= blocks.switch[g, m]
                if saves > best:
                    best = saves
                    which = m
        blocks.choice[g] = which
        if which != NONE:
            blocks.extra[which] += 1
            total += best
    return total


@inner
def is_open(blocks: Blocks, m: int, first: int, width: int) -> bool:
    """Return whether a group of model `m` could come: all GPUs free, none there, none left."""
    for g in range(first, first + width):
        if not blocks.free[g] or blocks.left[g] or blocks.target[g] == m:
            return False
    return True


@inner
def may_go(blocks: Blocks, m: int, first: int, width: int) -> bool:
    """Return whether a group of model `m` is on a block and free to go."""
    for g in range(first, first + width):
        if not blocks.free[g] or blocks.target[g] != m:
            return False
    return True


@inner
def find_change(blocks: Blocks) -> bool:
    """Write the change that saves most to `found`; return whether there is one."""
    best = 0.0
    found, copies = blocks.found, blocks.copies
    for m in range(blocks.tp.shape[0]):
        width = int(blocks.tp[m])
        if width == 1:
            continue
        next_copy = worth(blocks, m, copies[m] + 1)
        last_copy = worth(blocks, m, copies[m])
        for first in range(0, blocks.target.shape[0] - width + 1, width):
            saves = 0.0
            comes = is_open(blocks, m, first, width)
            if comes:
                price = 0.0
                for g in range(first, first + width):
                    price = max(price, blocks.switch[g, m])
                if next_copy - price > best:
                    saves = next_copy - price
                    saves -= loss(blocks, first, width)
            elif may_go(blocks, m, first, width):
                saves = apart(blocks, first, width) - last_copy
            if saves > best:
                best = saves
                found[0] = m
                found[1] = first
                found[2] = COMES if comes else GOES
    return best > 0.0


@inner
def vacate(blocks: Blocks, first: int, width: int) -> None:
    """Take all instances away that have a GPU in a block."""
    for g in range(first, first + width):
        a = int(blocks.target[g])
        if a != NONE:
            start = first_gpu_inner(g, int(blocks.tp[a]))
            blocks.copies[a] -= 1
            for other in range(start, start + blocks.tp[a]):
                blocks.target[other] = NONE


@placement_jit
def settle_groups(blocks: Blocks) -> int:
    """Let groups come and go while that saves request-seconds; return the number of changes."""
    target, copies, choice = blocks.target, blocks.copies, blocks.choice
    changes = 0
    while find_change(blocks):
        m, first = int(blocks.found[0]), int(blocks.found[1])
        width = int(blocks.tp[m])
        comes = blocks.found[2] == COMES
        vacate(blocks, first, width)
        if comes:
            copies[m] += 1
        else:
            apart(blocks, first, width)
        for g in range(first, first + width):
            if comes:
                target[g] = m
                blocks.free[g] = False
            else:
                blocks.left[g] = True
                target[g] = choice[g]
                if choice[g] != NONE:
                    copies[choice[g]] += 1
        changes += 1
    return changes
