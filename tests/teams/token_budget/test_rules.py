"""Rules of the budget, by hand and for anything that hypothesis comes up with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inframind_gym.errors import ConfigError
from inframind_gym.teams.token_budget import rules
from inframind_gym.teams.token_budget.rules import CRITIC, EXECUTOR, PLANNER, Evidence, Ledger
from inframind_gym.teams.token_budget.settings import ProxyWeights, load_settings

SETTINGS = load_settings()
ROW = np.zeros(1, np.int64)
MOST = np.array([[800, 2000, 4000], [1200, 2500, 5000], [400, 1000, 2000]])


def at(agent: int) -> np.ndarray:
    return np.array([agent])


def opened(budget: int = 20_000, mode: str = "adaptive") -> Ledger:
    ledger = Ledger.empty(1)
    rules.open_budget(ledger, ROW, np.array([budget]), getattr(SETTINGS.strategies, mode))
    return ledger


@pytest.mark.parametrize(
    ("mode", "shares"),
    [
        ("frontload", (10_000, 8_000, 2_000)),
        ("critique_heavy", (3_000, 7_000, 10_000)),
        ("adaptive", (6_000, 8_000, 6_000)),
    ],
)
def test_the_modes_share_twenty_thousand_out(mode: str, shares: tuple[int, ...]) -> None:
    assert tuple(opened(mode=mode).left[0]) == shares


def test_rounding_loses_no_token() -> None:
    parts = rules.allocate(np.array([1, 2, 999, 20_001]), [0.3, 0.4, 0.3])
    assert parts.sum(axis=1).tolist() == [1, 2, 999, 20_001]
    assert (parts >= 0).all()


def test_the_worked_example_in_the_ledger() -> None:
    """The executor's 8,100 tokens need 100 of the 3,700 that the critic returned."""
    ledger = opened()
    for agent, tokens in ((0, 2100), (1, 3400), (2, 1200), (1, 2800), (2, 1100)):
        rules.spend(ledger, ROW, at(agent), np.array([tokens]))
    assert ledger.left[0].tolist() == [3900, 1800, 3700]
    rules.cut(ledger, ROW, at(CRITIC))
    assert (ledger.free[0], ledger.left[0, CRITIC]) == (3700, 0)
    rules.spend(ledger, ROW, at(EXECUTOR), np.array([1900]))
    assert (ledger.free[0], ledger.left[0, EXECUTOR]) == (3600, 0)
    assert (ledger.spent[0], ledger.remaining[0]) == (12_500, 7_500)
    roi = rules.roi(np.array([62.0, 2.0]), np.array([2100, 1100]))
    assert [round(float(value), 4) for value in roi] == [0.0295, 0.0018]


def limits(ledger: Ledger, prompts: tuple[int, int, int] = (300, 300, 300)) -> np.ndarray:
    estimate = np.array([prompts])
    return rules.call_limits(ledger, ROW, estimate, MOST, self_eval=150, min_completion=200)[0]


def test_a_call_is_limited_by_allocation_and_ceiling_and_refused_below_the_least() -> None:
    ledger = opened(2_000)  # 600, 800, 600
    assert limits(ledger).tolist() == [[300, 300, 300], [500, 500, 500], [300, 300, 300]]
    assert limits(ledger, (401, 600, 400)).tolist() == [[0] * 3, [200] * 3, [200] * 3]
    rules.reallocate(ledger, ROW, at(EXECUTOR), 1.0)
    # 2,000 less rating and prompt; the others have nothing left.
    assert limits(ledger).tolist() == [[0] * 3, [1200, 1550, 1550], [0] * 3]
    rules.cut(ledger, ROW, at(EXECUTOR))
    assert limits(ledger)[EXECUTOR].tolist() == [0] * 3
    assert limits(ledger)[PLANNER].tolist() == [800, 1550, 1550]  # from what was returned


def test_a_reallocation_moves_its_share() -> None:
    ledger = opened()
    rules.cut(ledger, ROW, at(PLANNER))
    assert rules.movable(ledger, ROW, 0.5)[0].tolist() == [13_000, 9_000, 10_000]
    assert rules.reallocate(ledger, ROW, at(CRITIC), 0.5)[0] == 10_000
    assert ledger.left[0].tolist() == [0, 4_000, 16_000]
    assert ledger.free[0] == 0


def test_the_mask_closes_reviews_without_a_draft_and_agents_that_were_cut() -> None:
    ledger = opened()
    rules.cut(ledger, ROW, at(PLANNER))
    found = rules.action_mask(
        limits(ledger)[None], np.array([False]), ledger.cut, rules.movable(ledger, ROW, 1.0)
    )
    assert found[0].tolist() == [
        *[False] * 3, *[True] * 3, *[False] * 3,  # calls
        False, True, True,  # cuts
        False, True, True,  # reallocations
        True,
    ]  # fmt: skip


actions = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5000)), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(budget=st.integers(500, 30_000), script=actions, share=st.sampled_from([0.0, 0.3, 1.0]))
def test_tokens_are_conserved(
    budget: int, script: list[tuple[int, int, int]], share: float
) -> None:
    """Allocations and pool never exceed what agents have not spent, and nothing is negative."""
    ledger = opened(budget)
    for kind, agent, tokens in script:
        before = ledger.left.sum() + ledger.free.sum()
        if kind == 0:
            rules.cut(ledger, ROW, at(agent))
        elif kind == 1:
            rules.reallocate(ledger, ROW, at(agent), share)
        else:
            tokens = min(tokens, int(ledger.left[0, agent] + ledger.free[0]))
            rules.spend(ledger, ROW, at(agent), np.array([tokens]))
            before -= tokens
        assert ledger.left.sum() + ledger.free.sum() == before
        assert (ledger.left >= 0).all()
        assert (ledger.free >= 0).all()
    assert ledger.left.sum() + ledger.free.sum() + ledger.used.sum() == budget


def test_quality_is_the_mean_of_the_proxies_that_there_are() -> None:
    weights = ProxyWeights(self_eval=0.6, flags=0.2, checklist=0.2)
    nan = float("nan")
    found = rules.quality(
        np.array([80.0, 80.0, nan, nan]),
        np.array([nan, 0.5, nan, nan]),
        np.array([nan, 1.0, 0.25, nan]),
        weights,
    )
    assert found.tolist() == pytest.approx([80.0, 78.0, 25.0, 0.0])


def test_a_review_is_worth_its_claim_and_counts_as_a_proxy_at_the_next_revision() -> None:
    weights, progress = SETTINGS.proxy_weights, rules.Progress.empty(1)
    progress.clear(ROW)

    def step(agent: int, rating: float, found: int = 0, resolved: int = 0) -> tuple[float, float]:
        evidence = Evidence(
            np.array([rating]),
            np.array([1.0]),
            np.array([found]),
            np.array([resolved]),
            np.array([4.0 * found]),
        )
        rules.record(progress, ROW, at(agent), np.array([1000]), evidence, weights)
        return float(progress.score[0]), float(progress.last_delta[0, agent])

    assert step(EXECUTOR, 60.0) == pytest.approx((70.0, 70.0))
    assert step(CRITIC, 60.0, found=2) == pytest.approx((70.0, 8.0))
    assert step(EXECUTOR, 60.0, resolved=1) == pytest.approx((66.0, -4.0))
    assert (progress.flags_open[0], progress.flags_resolved[0]) == (1, 1)
    assert progress.last_roi[0].tolist() == pytest.approx([0.0, -0.004, 0.008])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("adaptive: [0.30, 0.40, 0.30]", "adaptive: [0.30, 0.40, 0.20]", "adaptive: the shares"),
        ("preflight: 200", "preflight: 210", "token_unit"),
        ("roi_threshold:", "roi_treshold:", "Did you mean 'roi_threshold'"),
        ("weights: [0.10,", "weights: [0.20,", "sum to 1"),
    ],
)
def test_wrong_constants_are_named(tmp_path, old: str, new: str, said: str) -> None:  # type: ignore[no-untyped-def]
    from inframind_gym.configs import find_config

    text = find_config("teams", "token_budget").read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=said) as error:
        load_settings(path)
    assert str(path) in str(error.value)
