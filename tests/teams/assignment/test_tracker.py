"""The window of assignments: every worked number of its definition."""

from __future__ import annotations

import math

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.teams.assignment.tracker import LoadTracker

NAMES = {"A": "analyst", "C": "coder", "R": "researcher", "V": "validator"}


def tracked(window: str) -> LoadTracker:
    tracker = LoadTracker()
    for letter in window:
        tracker.record(NAMES[letter])
    return tracker


def test_defaults() -> None:
    tracker = LoadTracker()
    assert tracker.agent_ids == ["analyst", "coder", "researcher", "validator"]
    assert tracker.recent.maxlen == tracker.window_size == 8
    assert (tracker.hot_threshold, tracker.penalty_weight, tracker.max_penalty) == (1.5, 0.15, 0.2)


@pytest.mark.parametrize(
    ("window", "state", "agent", "share"),
    [
        ("RACVRACV", "balanced", "coder", 0.25),
        ("CCCACRAV", "coder_hot", "coder", 0.5),
        ("AAAACRVA", "analyst_hot", "analyst", 0.625),
        ("RC", "balanced", "coder", 0.5),
        ("RCCACCVC", "coder_hot", "coder", 0.625),  # the timeline at assignment 8
        ("RCCACCVCAR", "coder_hot", "coder", 0.5),  # at assignment 10
        ("RCCACCVCARA", "balanced", "coder", 0.375),  # one to another agent is enough
        ("RCCACCVCARARVA", "balanced", "coder", 0.125),  # four to others
        ("CCCARAV", "coder_hot", "coder", 3 / 7),
    ],
)
def test_worked_windows(window: str, state: str, agent: str, share: float) -> None:
    tracker = tracked(window)
    assert tracker.get_load_state() == state
    assert tracker.get_utilization()[agent] == pytest.approx(share)


@pytest.mark.parametrize(
    ("own", "penalty"), [(0, 0.0), (2, 0.0), (3, 0.075), (4, 0.15), (5, 0.2), (6, 0.2), (8, 0.2)]
)
def test_table_of_penalties(own: int, penalty: float) -> None:
    tracker = tracked("C" * own + "ARV"[: 8 - own] + "A" * max(0, 5 - own))
    assert len(tracker.recent) == 8
    assert tracker.get_load_penalty("coder") == pytest.approx(penalty)


def test_imbalance() -> None:
    assert LoadTracker().get_imbalance_score() == 0.0
    assert tracked("RACVRACV").get_imbalance_score() == 0.0
    example = tracked("AACCCCRV")  # 25, 50, 12.5, 12.5 %
    assert example.get_imbalance_score() == pytest.approx(0.612, abs=5e-4)
    assert example.get_imbalance_score(ddof=1) == pytest.approx(0.707, abs=5e-4)
    assert tracked("C" * 8).get_imbalance_score() == pytest.approx(math.sqrt(3.0))


def test_lifetime_counts_go_on_and_change_nothing() -> None:
    tracker = tracked("C" * 30 + "RACVRACV")
    assert tracker.lifetime_counts["coder"] == 32
    assert tracker.get_load_state() == "balanced"
    assert tracker.get_load_penalty("coder") == 0.0


def test_wrong_arguments() -> None:
    for agents, window in ((["a", "a"], 8), ([], 8), (["a"], 0)):
        with pytest.raises(ConfigError):
            LoadTracker(agents, window)
    with pytest.raises(ConfigError, match="Did you mean 'coder'"):
        LoadTracker().record("codr")
    with pytest.raises(ConfigError, match="unknown agent"):
        LoadTracker().get_load_penalty("nobody")
