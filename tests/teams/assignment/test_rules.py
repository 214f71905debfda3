"""Worked numbers of the rules, and agreement with the tracker of the routing policies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.coordinator import QLearningCoordinator
from inframind_gym.teams.assignment.model import all_actions
from inframind_gym.teams.assignment.tracker import LoadTracker

LETTERS = {"A": 0, "C": 1, "R": 2, "V": 3}


def counts(window: str) -> np.ndarray:
    return rules.window_counts([LETTERS[letter] for letter in window])


def state(window: str) -> str:
    return rules.LOAD_STATES[int(rules.load_state(counts(window)))]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("RACVRACV", "balanced"),
        ("CCCACRAV", "coder_hot"),  # coder 50 %
        ("AAAACRVA", "analyst_hot"),  # analyst 62.5 %
        ("RC", "balanced"),
        ("CC", "balanced"),  # below three assignments nobody is hot
        ("CCA", "coder_hot"),
        ("CCCAARRV", "balanced"),  # 37.5 % is not above 37.5 %
        ("AAAACCCC", "analyst_hot"),  # of equals the first
        ("", "balanced"),
    ],
)
def test_load_state(window: str, expected: str) -> None:
    assert state(window) == expected


def test_the_timeline_of_ten_assignments() -> None:
    timeline = "RCCACCVCAR"
    at_8, at_10 = timeline[:8], timeline[2:10]
    assert rules.utilization(counts(at_8)).tolist() == [0.125, 0.625, 0.125, 0.125]
    assert state(at_8) == "coder_hot"
    assert rules.utilization(counts(at_10))[1] == 0.5
    assert state(at_10) == "coder_hot"
    assert state((timeline + "A")[-8:]) == "balanced"  # one assignment to another is enough
    assert rules.utilization(counts((timeline + "ARVA")[-8:]))[1] == 0.125


@pytest.mark.parametrize(
    ("own", "length", "penalty"),
    [(0, 8, 0), (2, 8, 0), (3, 8, 0.075), (4, 8, 0.15), (5, 8, 0.2), (6, 8, 0.2), (8, 8, 0.2)],
)
def test_load_penalty(own: int, length: int, penalty: float) -> None:
    window = np.array([own, length - own, 0, 0])
    assert rules.load_penalty(window, 0) == pytest.approx(penalty, abs=1e-15)


def test_the_cap_is_reached_at_seven_twelfths() -> None:
    just_below, at = np.array([58, 42, 0, 0]), np.array([7, 5, 0, 0])
    assert rules.load_penalty(just_below, 0) == pytest.approx(0.198)
    assert rules.load_penalty(at, 0) == pytest.approx(0.2)


def test_imbalance() -> None:
    example = np.array([2, 4, 1, 1])  # [.25, .5, .125, .125]
    assert rules.imbalance(example) == pytest.approx(0.6123724)
    assert rules.imbalance(example, ddof=1) == pytest.approx(0.7071068)
    assert rules.imbalance(np.array([8, 0, 0, 0])) == pytest.approx(math.sqrt(3.0))
    assert rules.imbalance(np.full(4, 2)) == 0.0
    assert rules.imbalance(np.zeros(4, int)) == 0.0


def test_rewards() -> None:
    scores = [0.9, 0.8, 0.7, 0.8]
    assert rules.raw_reward(scores, 0.0, 0.0) == pytest.approx(0.8)
    assert rules.raw_reward(scores, 0.001, 2.5) == pytest.approx(0.8 - 0.05 - 0.025)
    assert rules.raw_reward(scores, 0.5, 60.0) == pytest.approx(0.8 - 0.10 - 0.05)  # both capped
    assert rules.raw_reward([0.1, 0.0, 0.0, 0.0], 0.002, 5.0) == 0.0
    assert rules.adjusted_reward(0.7, 0.15) == pytest.approx(0.55)
    assert rules.adjusted_reward(0.1, 0.2) == 0.0


def test_q_learning() -> None:
    assert rules.q_update(0.0, rules.td_target(0.8, 0.0)) == pytest.approx(0.12)
    assert rules.q_update(0.5, rules.td_target(0.8, 1.0)) == pytest.approx(0.5 + 0.15 * 1.25)
    epsilon = 1.0
    for _ in range(50):
        epsilon = rules.decayed(epsilon, 0.05)
    assert epsilon == pytest.approx(0.364, abs=5e-4)
    assert rules.decayed(0.05, 0.05) == 0.05
    assert rules.decayed(1.0, 0.05) == 0.98


def test_actions_and_states_are_numbered_agent_by_agent() -> None:
    actions = np.arange(rules.NUM_ACTIONS)
    assert rules.NUM_ACTIONS == 8 and rules.NUM_STATES == 20
    assert rules.AGENTS[rules.agent_of(3)] == "coder"
    assert rules.PROVIDERS[rules.provider_of(3)] == "anthropic"
    again = rules.action_index(rules.agent_of(actions), rules.provider_of(actions))
    assert again.tolist() == actions.tolist()
    assert rules.state_index(3, 4) == 19


def test_one_team_and_many_and_the_tracker_agree() -> None:
    windows = np.random.default_rng(0).integers(-1, 4, (300, 8))
    many = rules.window_counts(windows)
    for i, window in enumerate(windows):
        tracker = LoadTracker(rules.AGENTS)
        for agent in window[window >= 0]:
            tracker.record(rules.AGENTS[agent])
        agent = i % 4
        name = rules.AGENTS[agent]
        assert rules.LOAD_STATES[rules.load_state(many)[i]] == tracker.get_load_state()
        assert rules.load_penalty(many, np.full(300, agent))[i] == tracker.get_load_penalty(name)
        assert rules.imbalance(many)[i] == pytest.approx(tracker.get_imbalance_score(), abs=1e-15)
        assert rules.load_penalty(many[i], agent) == tracker.get_load_penalty(name)


def test_the_coordinator_updates_by_the_same_rule() -> None:
    coordinator = QLearningCoordinator(rules.TASK_TYPES, rules.LOAD_STATES, all_actions())
    coordinator.q_table["coding", "coder_hot"][2] = 0.7
    coordinator.update("analysis", "balanced", 1, 0.6, "coding", "coder_hot")
    expected = rules.q_update(0.0, rules.td_target(0.6, 0.7))
    assert coordinator.q_table["analysis", "balanced"][1] == expected
