"""Groups and single GPUs together: what holds for every plan."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inframind_gym.policies.placement.mcf_plus import UNIT_S, Plan, make_plan, solve
from inframind_gym.simulator.placement.state import NONE


def random_plan(seed: int, gpus: int) -> Plan:
    """Six models of TP 1, 1, 1, 2, 2 and 4 on some of the GPUs, whole blocks only."""
    rng = np.random.default_rng(seed)
    tp = np.array([1, 1, 1, 2, 2, 4])
    target = np.full(gpus, NONE)
    for g in range(gpus):
        m = int(rng.integers(-1, len(tp)))
        if m == NONE or g % tp[m] or g + tp[m] > gpus or (target[g : g + tp[m]] != NONE).any():
            continue
        target[g : g + tp[m]] = m
    whole = np.array([g - g % 4 for g in range(gpus)])
    free = rng.random(gpus)[whole] < 0.8  # by blocks of four, so that no group is half free
    switch = rng.integers(1, 30, (gpus, len(tp))).astype(np.float64)
    switch[rng.random(switch.shape) < 0.2] = np.inf
    there = np.flatnonzero(target != NONE)
    switch[there, target[there]] = 0.0
    gains = -np.sort(-rng.integers(0, 60, (len(tp), 4)), axis=1).astype(np.float64)
    copies = (target[:, None] == np.arange(len(tp))).sum(axis=0) // tp
    return make_plan(tp, free, target, copies, gains, switch)


def cost(plan: Plan, start: NDArray[np.int64], target: NDArray[np.int64]) -> float:
    """Switches, the dearest GPU of a block for a group, less what the copies save."""
    total = 0.0
    for m, tp in enumerate(plan.tp.tolist()):
        instances = 0
        for first in range(0, len(target) - tp + 1, tp):
            block = slice(first, first + tp)
            if (target[block] == m).all():
                instances += 1
                if not (start[block] == m).all():
                    total += plan.switch[block, m].max()
        total -= plan.gains[m, :instances].sum()
    return total


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), gpus=st.sampled_from([4, 8, 12]))
def test_plans_are_possible_and_no_worse_than_doing_nothing(seed: int, gpus: int) -> None:
    plan = random_plan(seed, gpus)
    start, free = plan.target.copy(), plan.free.copy()
    found = solve(plan)
    assert (found[~free] == start[~free]).all()
    for m, tp in enumerate(plan.tp.tolist()):
        on = np.flatnonzero(found == m)
        blocks = {int(g) // tp for g in on}
        assert len(on) == len(blocks) * tp  # whole blocks
        assert plan.copies[m] == len(blocks)
    came = (found != start) & (found != NONE)
    assert np.isfinite(plan.switch[came, found[came]]).all()
    assert cost(plan, start, found) <= cost(plan, start, start) + gpus * UNIT_S


def test_it_often_pays_to_change() -> None:
    """The property above is not that of a plan that never changes anything."""
    saved, came, went = 0.0, 0, 0
    for seed in range(100):
        plan = random_plan(seed, 8)
        start = plan.target.copy()
        before = cost(plan, start, start)
        found = solve(plan)
        saved += before - cost(plan, start, found)
        groups = (plan.tp[start] > 1) & (start != NONE)
        came += int(((plan.tp[found] > 1) & (found != NONE) & (found != start)).any())
        went += int((groups & (plan.tp[found] == 1)).any())
    assert saved > 1000.0
    assert came > 20
    assert went > 5
