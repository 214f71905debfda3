"""Rules of the budget, by hand and for anything that hypothesis comes up with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.rules import (
    CRITIC,
    CUT,
    EXECUTOR,
    PLANNER,
    REALLOCATE,
    STOP,
    Evidence,
    TeamState,
)
from inframind_gym.teams.token_budget.settings import STRATEGIES, ProxyWeights, load_settings

ROW = np.zeros(1, np.int64)


def at(agent: int) -> np.ndarray:
    return np.array([agent])


def opened(budget: int = 20_000, mode: str = "adaptive") -> TeamState:
    state = TeamState(load_settings(), 1, 150, 20)
    state.begin(ROW, np.array([budget]), STRATEGIES.index(mode), ROW, 0)
    return state


def limits(state: TeamState, prompts: tuple[int, ...] = (300, 300, 300)) -> list[list[int]]:
    state.look(ROW, np.array([prompts]), np.array([True]))
    rows: list[list[int]] = state.limits[0].tolist()
    return rows


@pytest.mark.parametrize(
    ("mode", "shares"),
    [
        ("frontload", [10_000, 8_000, 2_000]),
        ("critique_heavy", [3_000, 7_000, 10_000]),
        ("adaptive", [6_000, 8_000, 6_000]),
    ],
)
def test_the_modes_share_the_budget_out(mode: str, shares: list[int]) -> None:
    assert opened(mode=mode).left[0].tolist() == shares
    for budget in (1, 2, 999, 20_001):  # rounding loses no token
        assert opened(budget, mode).left.sum() == budget


def test_a_call_is_limited_by_allocation_and_ceiling_and_refused_below_the_least() -> None:
    state = opened(2_000)  # 600, 800, 600
    assert limits(state) == [[300, 300, 300], [500, 500, 500], [300, 300, 300]]
    assert limits(state, (401, 600, 400)) == [[0] * 3, [200] * 3, [200] * 3]
    state.decide(ROW, at(REALLOCATE + EXECUTOR))
    # 2,000 less rating and prompt; the others have nothing left.
    assert limits(state) == [[0] * 3, [1200, 1550, 1550], [0] * 3]
    state.decide(ROW, at(CUT + EXECUTOR))
    assert limits(state)[EXECUTOR] == [0] * 3
    assert limits(state)[PLANNER] == [800, 1550, 1550]  # from what was returned


def test_the_mask_closes_reviews_without_a_draft_and_agents_that_were_cut() -> None:
    state = opened()
    rules.cut(state, ROW, at(PLANNER))
    state.look(ROW, np.array([[300] * 3]), np.array([False]))
    expected = [*range(3, 6), CUT + 1, CUT + 2, REALLOCATE + 1, REALLOCATE + 2, STOP]
    assert np.flatnonzero(state.mask[0]).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(500, 30_000),
    script=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5000)), max_size=30
    ),
    share=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_tokens_are_conserved(
    budget: int, script: list[tuple[int, int, int]], share: float
) -> None:
    """Allocations and pool never exceed what agents have not spent, and nothing is negative."""
    ledger = opened(budget)
    for kind, agent, tokens in script:
        if kind == 0:
            rules.cut(ledger, ROW, at(agent))
        elif kind == 1:
            rules.reallocate(ledger, ROW, at(agent), share)
        else:
            most = int(ledger.left[0, agent] + ledger.free[0])
            rules.spend(ledger, ROW, at(agent), np.array([min(tokens, most)]))
        assert ledger.left.sum() + ledger.free.sum() + ledger.used.sum() == budget
        assert (ledger.left >= 0).all() and (ledger.free >= 0).all()


def test_quality_is_the_mean_of_the_proxies_that_there_are() -> None:
    nan, weights = float("nan"), ProxyWeights(self_eval=0.6, flags=0.2, checklist=0.2)
    proxies = [80.0, 80.0, nan, nan], [nan, 0.5, nan, nan], [nan, 1.0, 0.25, nan]
    assert rules.quality(*proxies, weights).tolist() == pytest.approx([80.0, 78.0, 25.0, 0.0])


def test_a_review_is_worth_its_claim_and_counts_as_a_proxy_at_the_next_revision() -> None:
    state = opened()

    def step(agent: int, found: int = 0, resolved: int = 0) -> tuple[float, float]:
        facts = (60.0, 1.0, found, resolved, 4.0 * found)
        evidence = Evidence(*(np.array([fact]) for fact in facts))
        state.take(ROW, at(agent), np.array([1000]), evidence)
        return float(state.score[0]), float(state.last_delta[0, agent])

    assert step(EXECUTOR) == pytest.approx((70.0, 70.0))
    assert step(CRITIC, found=2) == pytest.approx((70.0, 8.0))
    assert step(EXECUTOR, resolved=1) == pytest.approx((66.0, -4.0))
    assert (state.flags_open[0], state.flags_resolved[0]) == (1, 1)
    assert state.last_roi[0].tolist() == pytest.approx([0.0, -0.004, 0.008])
