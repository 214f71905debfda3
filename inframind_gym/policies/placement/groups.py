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


class Plan(NamedTuple):
    """One decision as a problem; G GPUs, M models, K copies. Solving it changes it in place."""

    tp: NDArray[np.int64]  # (M,) GPUs of an instance
    free: NDArray[np.bool_]  # (G,) GPUs that may change; a group that comes takes its GPUs out
    target: NDArray[np.int64]  # (G,) model that is, or is to be, awake on each GPU; NONE
    copies: NDArray[np.int64]  # (M,) instances that are awake, are coming or are to come
    gains: NDArray[np.float64]  # (M, K) request-seconds saved by copies; rows do not increase
    switch: NDArray[np.float64]  # (G, M) request-seconds to bring a model to a GPU; infinity: it
    # may not come. The keep-arc: 0 where it is.
    left: NDArray[np.bool_]  # (G,) GPUs that a group has left; all False at first
    extra: NDArray[np.int64]  # (M,) scratch
    choice: NDArray[np.int64]  # (G,) scratch: models of the GPUs of a block that is split
    found: NDArray[np.int64]  # (3,) scratch: model, first GPU, COMES or GOES


def make_plan(
    tp: NDArray[np.int64],
    free: NDArray[np.bool_],
    target: NDArray[np.int64],
    copies: NDArray[np.int64],
    gains: NDArray[np.float64],
    switch: NDArray[np.float64],
) -> Plan:
    """Return a plan with fresh scratch; the arguments are its first fields."""
    gpus, models = switch.shape
    return Plan(
        tp, free, target, copies, np.ascontiguousarray(gains), np.ascontiguousarray(switch),
        left=np.zeros(gpus, np.bool_),
        extra=np.zeros(models, np.int64),
        choice=np.zeros(gpus, np.int64),
        found=np.zeros(3, np.int64),
    )  # fmt: skip


@inner
def worth(plan: Plan, m: int, copy: int) -> float:
    """Return the request-seconds that copy number `copy` (from 1) of model `m` saves."""
    if copy < 1 or copy > plan.gains.shape[1]:
        return 0.0
    return float(plan.gains[m, copy - 1])


@inner
def begins_here(plan: Plan, first: int, g: int) -> bool:
    """Return whether `g` is the first GPU, from `first` on, of its instance."""
    a = plan.target[g]
    if a == NONE:
        return False
    return g == first or plan.target[g - 1] != a or g % plan.tp[a] == 0


@inner
def loss(plan: Plan, first: int, width: int) -> float:
    """Return the request-seconds that are lost when all instances on a block go."""
    total = 0.0
    for g in range(first, first + width):
        if begins_here(plan, first, g):
            a = int(plan.target[g])
            gone = 0
            for other in range(first, g):
                if plan.target[other] == a and begins_here(plan, first, other):
                    gone += 1
            total += worth(plan, a, plan.copies[a] - gone)
    return total


@inner
def apart(plan: Plan, first: int, width: int) -> float:
    """Return the request-seconds that a block saves with single models, written to `choice`."""
    for m in range(plan.extra.shape[0]):
        plan.extra[m] = 0
    total = 0.0
    for g in range(first, first + width):
        best = 0.0
        which = NONE
        for m in range(plan.tp.shape[0]):
            if plan.tp[m] == 1:
                saves = worth(plan, m, plan.copies[m] + plan.extra[m] + 1)
                saves -= plan.switch[g, m]
                if saves > best:
                    best = saves
                    which = m
        plan.choice[g] = which
        if which != NONE:
            plan.extra[which] += 1
            total += best
    return total


@inner
def is_open(plan: Plan, m: int, first: int, width: int) -> bool:
    """Return whether a group of model `m` could come: all GPUs free, none there, none left."""
    for g in range(first, first + width):
        if not plan.free[g] or plan.left[g] or plan.target[g] == m:
            return False
    return True


@inner
def may_go(plan: Plan, m: int, first: int, width: int) -> bool:
    """Return whether a group of model `m` is on a block and free to go."""
    for g in range(first, first + width):  # noqa: SIM110  (compiled: no generators)
        if not plan.free[g] or plan.target[g] != m:
            return False
    return True


@inner
def find_change(plan: Plan) -> bool:
    """Write the change that saves most to `found`; return whether there is one."""
    best = 0.0
    found, copies = plan.found, plan.copies
    for m in range(plan.tp.shape[0]):
        width = int(plan.tp[m])
        if width == 1:
            continue
        next_copy = worth(plan, m, copies[m] + 1)
        last_copy = worth(plan, m, copies[m])
        for first in range(0, plan.target.shape[0] - width + 1, width):
            saves = 0.0
            comes = is_open(plan, m, first, width)
            if comes:
                price = 0.0
                for g in range(first, first + width):
                    price = max(price, plan.switch[g, m])
                if next_copy - price > best:
                    saves = next_copy - price
                    saves -= loss(plan, first, width)
            elif may_go(plan, m, first, width):
                saves = apart(plan, first, width) - last_copy
            if saves > best:
                best = saves
                found[0] = m
                found[1] = first
                found[2] = COMES if comes else GOES
    return best > 0.0


@inner
def vacate(plan: Plan, first: int, width: int) -> None:
    """Take all instances away that have a GPU in a block."""
    for g in range(first, first + width):
        a = int(plan.target[g])
        if a != NONE:
            start = first_gpu_inner(g, int(plan.tp[a]))
            plan.copies[a] -= 1
            for other in range(start, start + plan.tp[a]):
                plan.target[other] = NONE


@placement_jit
def settle_groups(plan: Plan) -> int:
    """Let groups come and go while that saves request-seconds; return the number of changes."""
    target, copies, choice = plan.target, plan.copies, plan.choice
    changes = 0
    while find_change(plan):
        m, first = int(plan.found[0]), int(plan.found[1])
        width = int(plan.tp[m])
        comes = plan.found[2] == COMES
        vacate(plan, first, width)
        if comes:
            copies[m] += 1
        else:
            apart(plan, first, width)
        for g in range(first, first + width):
            if comes:
                target[g] = m
                plan.free[g] = False
            else:
                plan.left[g] = True
                target[g] = choice[g]
                if choice[g] != NONE:
                    copies[choice[g]] += 1
        changes += 1
    return changes
