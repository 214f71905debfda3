"""What copies are worth, how groups are settled, and that nothing thrashes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.policies.placement import registry as placement
from inframind_gym.policies.placement.mcf_plus import (
    Load,
    Plan,
    copy_gains,
    make_plan,
    request_seconds,
    solve,
)
from inframind_gym.simulator.placement.state import ACTIVE, SLEPT
from tests.placement.toys import decisions, make


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
    return make_plan(widths, free, now, copies, np.array(gains), np.where(there, 0.0, 1.0))


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
    found = solve(toy_plan(tp, target, gains))
    assert np.bincount(found, minlength=len(tp)).tolist() == copies


@pytest.mark.parametrize("cluster", ["h100-4gpu", "h100-8gpu", "h100-16gpu"])
def test_nothing_is_woken_and_slept_in_alternate_cycles(cluster: str) -> None:
    """Under constant demand, whatever became ACTIVE is ACTIVE in the two decisions after."""
    states, switches, _ = play(cluster, seed=11)
    awake = states == ACTIVE  # (decisions, rows, G, M)
    became = awake[1:] & ~awake[:-1]
    for later in (1, 2):
        kept = awake[1 + later :] | ~became[: len(became) - later]
        assert kept.all()
    asleep_again = (states[2:] == SLEPT) & became[:-1]
    assert not asleep_again.any()
    assert switches > 0 or cluster != "h100-4gpu"


def test_with_room_for_all_it_comes_to_rest() -> None:
    """Sixteen GPUs, twelve models, constant demand: in the last five minutes hardly one change."""
    _, _, moves = play("h100-16gpu", seed=5)
    assert moves[60:].sum() <= 3 * 2
    assert moves.sum() > 0


def play(cluster: str, seed: int) -> tuple[Any, int, Any]:
    """States before each decision, transitions in all, and GPUs that change per decision."""
    env = make(3, cluster=cluster, demand="steady")
    policy = placement.resolve("mcf_plus")
    played = list(decisions(env, policy, [seed, seed + 1, seed + 2]))
    assert not any(infos["illegal"].any() for *_, infos in played)
    final = played[-1][3]["final_info"]
    switches = int(final["wakes"].sum() + final["loads"].sum() + final["sleeps"].sum())
    states = np.array([contexts.state for contexts, *_ in played])
    return states, switches, np.array([(actions > 0).sum() for _, actions, _, _ in played])
