"""Worked numbers of the rules, of the tracker and of Q-learning; the simulated team."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.agents import ACTIONS, LoadTracker, QLearningCoordinator
from inframind_gym.teams.assignment.rules import AGENTS

NAMES = {agent[0].upper(): agent for agent in AGENTS}


def tracked(window: str) -> LoadTracker:
    tracker = LoadTracker()
    for letter in window:
        tracker.record(NAMES[letter])
    return tracker


@pytest.mark.parametrize(
    ("window", "state", "coder"),
    [
        ("", "balanced", 0.0),
        ("RACVRACV", "balanced", 0.25),
        ("CCCACRAV", "coder_hot", 0.5),
        ("AAAACRVA", "analyst_hot", 0.125),
        ("RC", "balanced", 0.5),
        ("CC", "balanced", 1.0),  # below three assignments no agent is hot
        ("CCA", "coder_hot", 2 / 3),
        ("CCCAARRV", "balanced", 0.375),  # 37.5 % is not above 37.5 %
        ("AAAACCCC", "analyst_hot", 0.5),  # ties go to the first
        ("RCCACCVC", "coder_hot", 0.625),  # the timeline at assignment 8
        ("RCCACCVCAR", "coder_hot", 0.5),  # at assignment 10
        ("RCCACCVCARA", "balanced", 0.375),  # one to another agent is enough
        ("RCCACCVCARARVA", "balanced", 0.125),
    ],
)
def test_load_states(window: str, state: str, coder: float) -> None:
    tracker = tracked(window)
    assert tracker.get_load_state() == state
    assert tracker.get_utilization()["coder"] == pytest.approx(coder)
    assert tracker.lifetime_counts["coder"] == window.count("C")


@pytest.mark.parametrize(
    ("count", "penalty"), [(0, 0.0), (2, 0.0), (3, 0.075), (4, 0.15), (5, 0.2), (6, 0.2), (8, 0.2)]
)
def test_table_of_penalties(count: int, penalty: float) -> None:
    tracker = tracked("C" * count + "ARV"[: 8 - count] + "A" * max(0, 5 - count))
    assert tracker.get_load_penalty("coder") == pytest.approx(penalty)


def test_numbers_by_hand() -> None:
    assert rules.load_penalty(np.array([58, 42, 0, 0]), 0) == pytest.approx(0.198)
    assert rules.load_penalty(np.array([7, 5, 0, 0]), 0) == pytest.approx(0.2)  # the cap
    example = np.array([2, 4, 1, 1])  # [.25, .5, .125, .125]
    assert rules.imbalance(example) == pytest.approx(0.6123724)
    assert rules.imbalance(np.array([8, 0, 0, 0])) == pytest.approx(math.sqrt(3.0))
    assert rules.imbalance(np.full(4, 2)) == rules.imbalance(np.zeros(4, int)) == 0.0
    scores = [0.9, 0.8, 0.7, 0.8]
    assert rules.raw_reward(scores, 0.001, 2.5) == pytest.approx(0.8 - 0.05 - 0.025)
    assert rules.raw_reward(scores, 0.5, 60.0) == pytest.approx(0.8 - 0.10 - 0.05)  # both capped
    assert rules.raw_reward([0.1, 0.0, 0.0, 0.0], 0.002, 5.0) == 0.0
    assert rules.adjusted_reward([0.7, 0.1], [0.15, 0.2]) == pytest.approx([0.55, 0.0])
    assert rules.q_update(0.5, rules.td_target(0.8, 1.0)) == pytest.approx(0.5 + 0.15 * 1.25)
    actions = np.arange(rules.NUM_ACTIONS)
    again = rules.action_index(rules.agent_of(actions), rules.provider_of(actions))
    assert again.tolist() == actions.tolist()
    assert (rules.state_index(3, 4), AGENTS[rules.agent_of(3)]) == (19, "coder")


def test_one_team_and_many_agree_with_the_tracker() -> None:
    windows = np.random.default_rng(0).integers(-1, 4, (300, 8))
    many, agents = rules.window_counts(windows), np.arange(300) % 4
    states, penalties = rules.load_state(many), rules.load_penalty(many, agents)
    for i, window in enumerate(windows):
        tracker = tracked("".join(AGENTS[a][0].upper() for a in window[window >= 0]))
        assert rules.LOAD_STATES[states[i]] == tracker.get_load_state()
        assert penalties[i] == tracker.get_load_penalty(AGENTS[agents[i]])
        assert rules.imbalance(many)[i] == pytest.approx(tracker.get_imbalance_score(), abs=1e-15)


# Q-learning


def test_an_update_by_hand() -> None:
    coordinator = QLearningCoordinator()
    assert sum(row.size for row in coordinator.q_table.values()) == 160
    coordinator.q_table["research", "coder_hot"][5] = 2.0
    coordinator.update("coding", "balanced", 3, 0.8, "research", "coder_hot")
    assert coordinator.q_table["coding", "balanced"][3] == pytest.approx(0.15 * (0.8 + 0.95 * 2.0))
    coordinator.update("coding", "analyst_hot", 3, 0.8, None, "coder_hot")  # the end: no next value
    assert coordinator.q_table["coding", "analyst_hot"][3] == pytest.approx(0.15 * 0.8)
    assert [entry["action_idx"] for entry in coordinator.history] == [3, 3]
    assert coordinator.policy()["coding"] == ACTIONS[3]
    assert coordinator.policy()["analysis"] is None  # never tried


def test_choices() -> None:
    def chosen(times: int = 200, best: int | None = None, **options: Any) -> set[int]:
        coordinator = QLearningCoordinator(**options)
        if best is not None:
            coordinator.q_table["coding", "balanced"][best] = 0.1
        return {coordinator.select_action("coding", "balanced")[0] for _ in range(times)}

    assert chosen(epsilon=1.0) == set(range(8))
    assert chosen(epsilon=0.0) == {0}  # the first of equals
    assert chosen(epsilon=0.0, best=6) == {6}
    assert [chosen(1, seed=s) for s in range(9)] == [chosen(1, seed=s) for s in range(9)]
