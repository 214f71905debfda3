"""Min-cost flows: numbers worked out by hand, and what holds for every problem."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inframind_gym.envs.placement import PlacementContext, PlacementSpec
from inframind_gym.policies.mcf import (
    FORBIDDEN,
    UNIT_S,
    Load,
    Plan,
    assign,
    copy_gains,
    request_seconds,
    solve,
    solve_spec,
    spec_costs,
)
from inframind_gym.simulator.placement.state import ABSENT, ACTIVE, NONE, SLEPT
from tests.placement.toys import ROW, card, started, write_cluster

# Three models A, B, C: t_sleep 1, 2, 3; t_wake 2, 3, 4; t_load 20, 30, 40; t_offload 4, 5, 6;
# slept memory 1,000, 1,500 and 2,000 MB. GPUs of 80,000 MB, alpha 0.05: 4,000 MB may sleep.


def toys(
    folder: Path, state: list[Any], ages_s: Any = (0, 0, 0), **given: Any
) -> tuple[PlacementSpec, PlacementContext]:
    """A spec of some GPUs, and one row of a context that is idle but for what is given."""
    cards = [
        card(
            "ABC"[m],
            **{"t_sleep_s": 1.0 + m, "t_wake_s": 2.0 + m, "t_load_s": 20.0 + 10 * m},
            **{"t_offload_s": 4.0 + m, "slept_mem_tp1_MB": 1000 + 500 * m},
        )
        for m in range(3)
    ]
    cluster = write_cluster(folder, cards, len(state), alpha=0.05)
    simulation, _ = started({"cluster": cluster, "initial": "empty"})
    awake = np.array(state) == ACTIVE
    given |= {"state": state, "active": np.where(awake.any(-1), awake.argmax(-1), NONE)}
    given["age_sum_s"] = np.array(ages_s, float)
    changed = {name: np.array([value]) for name, value in given.items()}
    return simulation.policy_spec(), simulation.contexts(ROW)._replace(**changed)


@pytest.mark.parametrize(
    ("state", "outstanding", "ages_s", "switch", "activate", "chosen"),
    [
        # A ACTIVE, nothing asleep. For B: 0 + 1,000 + 1,500 = 2,500 <= 4,000: sleep. 3 requests
        # need A: t_sleep(A) + 3·t_wake(A) = 1 + 6 = 7. For C: 3,000 <= 4,000: 7 as well. For A
        # itself: 0. Sink: A is active: 0; B and C are not there: t_load = 30 and 40. B's calls have
        # waited 12 s. Totals: A 0, B 7 + 30 - 12 = 25, C 47.
        ((ACTIVE, ABSENT, ABSENT), (3, 2, 1), (0, 12, 0), (0, 7, 7), (0, 30, 40), {0: 0}),
        # A ACTIVE, C SLEPT. For B: 2,000 + 1,000 + 1,500 = 4,500 > 4,000: offload the one of least
        # t_offload + requests·t_load: A 4 + 2·20 = 44, C 6 + 0·40 = 6: C, so 6. For C: 2,000 +
        # 1,000 + 2,000 = 5,000 > 4,000, C itself counted twice: 6 too. Sink: B t_load 30, C sleeps
        # here: t_wake 4. C is not needed.
        ((ACTIVE, ABSENT, SLEPT), (2, 1, 0), (0, 0, 0), (0, 6, 6), (0, 30, 4), {0: 0}),
        # As before, but 5 requests need C: A 4 + 1·20 = 24, C 6 + 5·40 = 206: A goes, for 24.
        ((ACTIVE, ABSENT, SLEPT), (1, 1, 5), (0, 0, 0), (0, 24, 24), (0, 30, 4), {0: 0}),
        # Nothing ACTIVE, B SLEPT. For A: 1,500 + 0 + 1,000 = 2,500: sleep, of no model: 0.
        ((ABSENT, SLEPT, ABSENT), (1, 1, 0), (0, 0, 0), (0, 0, 0), (20, 3, 40), {0: 1}),
        # A defect: every GPU must act. B is needed by one request that has not waited yet; A is
        # ACTIVE and not needed: the GPU takes B for 1 + 0 + 30 = 31 s rather than nothing.
        ((ACTIVE, ABSENT, ABSENT), (0, 1, 0), (0, 0, 0), (0, 1, 1), (0, 30, 40), {0: 1}),
        # No model is needed.
        ((ACTIVE, ABSENT, ABSENT), (0, 0, 0), (0, 0, 0), (0, 1, 1), (0, 30, 40), {}),
    ],
)
def test_one_gpu_worked_out(
    tmp_path: Path,
    state: Any,
    outstanding: Any,
    ages_s: Any,
    switch: Any,
    activate: Any,
    chosen: Any,
) -> None:
    costs = spec_costs(*toys(tmp_path, [state], ages_s, outstanding=outstanding), 0)
    assert costs.switch.tolist() == [list(switch)]
    assert costs.activate.tolist() == [list(activate)]
    assert costs.relief.tolist() == list(ages_s)
    assert costs.models.tolist() == np.flatnonzero(outstanding).tolist()
    assert solve_spec(costs) == chosen


def test_unstable_gpus_and_loading_models_stay_out(tmp_path: Path) -> None:
    changes = {"stable": [False, True], "loading": [False, True, False], "outstanding": [1, 9, 1]}
    states = [[ACTIVE, ABSENT, ABSENT], [ABSENT, ABSENT, ABSENT]]
    costs = spec_costs(*toys(tmp_path, states, (0, 900, 0), **changes), 0)
    assert costs.gpus.tolist() == [1]
    assert costs.models.tolist() == [0, 2]
    assert solve_spec(costs) == {1: 0}  # load A 20 s, load C 40 s


def flow_cost(switch: NDArray[Any], gain: NDArray[Any], model: NDArray[np.int64]) -> int:
    """Costs of an assignment, less what its copies are worth."""
    copies = np.bincount(model, minlength=len(gain))
    worth = sum(int(gain[m, : copies[m]].sum()) for m in range(len(gain)))
    return int(switch[np.arange(len(model)), model].sum()) - worth


def problem(
    seed: int, gpus: int, models: int, copies: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    gain = -np.sort(-rng.integers(0, most, (models, copies)), axis=1)
    switch = rng.integers(0, most, (gpus, models))
    switch[rng.random((gpus, models)) < 0.2] = FORBIDDEN
    start = rng.integers(0, models, gpus)
    switch[np.arange(gpus), start] = 0
    return switch, gain, start


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    gpus=st.integers(1, 5),
    models=st.integers(1, 4),
    copies=st.integers(1, 3),
    most=st.sampled_from([3, 100]),
)
def test_against_all_assignments(seed: int, gpus: int, models: int, copies: int, most: int) -> None:
    switch, gain, start = problem(seed, gpus, models, copies, most)
    found = assign(switch, gain, start)
    best = min(
        flow_cost(switch, gain, np.array(x)) for x in itertools.product(range(models), repeat=gpus)
    )
    assert flow_cost(switch, gain, found) == best


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
    return Plan(tp, free, target, copies, gains, switch)


def plan_cost(plan: Plan, start: NDArray[np.int64], target: NDArray[np.int64]) -> float:
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


@settings(max_examples=80, deadline=None)
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
    assert plan_cost(plan, start, found) <= plan_cost(plan, start, start) + gpus * UNIT_S


def one_load(waiting: float, rate: float) -> Load:
    """Calls of 100 steps; a step takes 0.01 s + 0.001 s a call; 10 slots: 2 s, 5 calls/s."""
    return Load(
        waiting=np.array([waiting]),
        rate=np.array([rate]),
        work=np.array([100.0]),
        base_s=np.array([0.01]),
        per_seq_s=np.array([0.001]),
        slots=np.array([10]),
    )


def test_request_seconds_worked_out() -> None:
    """n = 20, λ = 3/s, H = 10 s, T = 5 s.

    k = 0: ∫ 20 + 3t = 200 + 150 = 350; q(10) = 50: 250 more. Nothing is served: 600.
    k = 1: μ = 5: q falls by 2 a second and is empty at 10 s: 20·10/2 = 100, q(10) = 0. Served:
    min(3 + 2, 5) = 5/s; S = 1 / (1 - 0.1·5) = 2 s (the full batch): 5·10·2 = 100. In all 200.
    k = 2: empty after 20/7 s: 20·20/7/2 = 28.57. Served 5/s, 2.5 each: S = 1/0.75 = 1.333 s:
    66.67. In all 95.24."""
    cost = request_seconds(one_load(20.0, 3.0), 2, horizon_s=10.0, tail_s=5.0)
    assert cost[0] == pytest.approx([600.0, 200.0, 28.5714 + 66.6667], rel=1e-5)
    gains = copy_gains(one_load(20.0, 3.0), 2, horizon_s=10.0, tail_s=5.0)
    assert gains[0] == pytest.approx([400.0, 104.762], rel=1e-5)
    assert copy_gains(one_load(0.0, 0.0), 3, 30.0, 15.0).tolist() == [[0.0, 0.0, 0.0]]


@settings(max_examples=100, deadline=None)
@given(waiting=st.floats(0, 500), rate=st.floats(0, 50), horizon=st.floats(5, 100))
def test_further_copies_are_worth_less(waiting: float, rate: float, horizon: float) -> None:
    gains = copy_gains(one_load(waiting, rate), 20, horizon, 10.0)[0]
    assert (gains >= 0.0).all()
    assert (np.diff(gains) <= 1e-9).all()
    assert np.isfinite(gains).all()


def toy_plan(tp: list[int], target: list[int], gains: list[list[float]]) -> Plan:
    """All GPUs are free; a switch costs 1."""
    now, widths = np.array(target), np.array(tp)
    there = now[:, None] == np.arange(len(tp))
    free = np.ones(len(target), np.bool_)
    copies = there.sum(axis=0) // widths
    return Plan(widths, free, now, copies, np.array(gains), np.where(there, 0.0, 1.0))


@pytest.mark.parametrize(
    ("tp", "target", "gains", "copies"),
    [
        # The keep-arc: a change that saves less than a switch costs is not made.
        ([1, 1], [0, 0], [[0.0, 0.0], [0.9, 0.0]], [2, 0]),
        ([1, 1], [0, 0], [[0.0, 0.0], [1.1, 0.0]], [1, 1]),
        # The hot model's copies save 50, 20, 5 and 0.5 and switching costs 1; the other's second to
        # fourth copies save nothing: three GPUs change, the fourth keeps the other's copy of 9.
        ([1, 1], [0, 0, 0, 0], [[9.0, 0.0, 0.0, 0.0], [50.0, 20.0, 5.0, 0.5]], [1, 3]),
        # The pair saves 30. GPUs 0, 1 hold models of 40 and 0; GPUs 2, 3 of 5 and 6: the second
        # block gives up 11 and a switch of 1. GPU 1, which is worth nothing, then takes the model
        # of 6, for 1.
        ([1, 1, 1, 1, 2], [0, 1, 2, 3], [[40.0], [0.0], [5.0], [6.0], [30.0]], [1, 0, 0, 1, 2]),
        # A group that is worth less than its GPUs goes: it saves 3, the two others 20 and 10.
        ([1, 1, 2], [2, 2], [[20.0], [10.0], [3.0]], [1, 1, 0]),
        ([1, 1, 2], [2, 2], [[20.0], [10.0], [30.0]], [0, 0, 2]),
    ],
)
def test_plans_worked_out(
    tp: list[int], target: list[int], gains: list[list[float]], copies: list[int]
) -> None:
    """`copies`: GPUs of each model after the decision."""
    assert np.bincount(solve(toy_plan(tp, target, gains)), minlength=len(tp)).tolist() == copies
