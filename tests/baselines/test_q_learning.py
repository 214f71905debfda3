"""LoadTracker and load-aware Q-learning against the numbers of their document."""

from __future__ import annotations

import numpy as np
import pytest

import baselines
from inframind_gym.policies.learners import ModelStrategy, raw_reward
from inframind_gym.teams.assignment.coordinator import LoadTracker, QLearningCoordinator
from tests.policies.synthetic import make_completed, make_contexts, make_spec, observe

AGENTS = ["analyst", "coder", "researcher", "validator"]
LETTERS = {agent[0].upper(): agent for agent in AGENTS}


def tracker_of(window: str) -> LoadTracker:
    """A tracker that has recorded the agents of these letters."""
    tracker = LoadTracker(AGENTS)
    for letter in window:
        tracker.record(LETTERS[letter])
    return tracker


@pytest.mark.parametrize(
    ("count", "penalty"),  # of 8 assignments
    [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.075), (4, 0.15), (5, 0.2), (6, 0.2), (8, 0.2)],
)
def test_penalty_table(count, penalty) -> None:
    tracker = tracker_of("C" * count + "ARV"[: 8 - count] + "A" * max(0, 5 - count))
    assert len(tracker.recent) == 8
    assert tracker.get_utilization()["coder"] == count / 8
    assert tracker.get_load_penalty("coder") == pytest.approx(penalty, abs=1e-12)


@pytest.mark.parametrize(
    ("window", "state"),
    [
        ("RACVRACV", "balanced"),
        ("CCCACRAV", "coder_hot"),
        ("AAAACRVA", "analyst_hot"),
        ("RC", "balanced"),
        ("CC", "balanced"),  # early return below three
        ("CCC", "coder_hot"),
        ("RCCACCVC", "coder_hot"),  # iteration 8 of the timeline: 5/8
        ("RCCACCVCAR", "coder_hot"),  # iteration 10: 4/8
        ("CARVARVA", "balanced"),  # analyst at 3/8 is at the threshold, not above it
        ("CARV" + "VRVR", "balanced"),
        ("RCCACCVCARVARA", "balanced"),  # four assignments to others cool the coder down
        ("CCCCAAAA", "analyst_hot"),  # a tie goes to the first agent
    ],
)
def test_load_states(window, state) -> None:
    assert tracker_of(window).get_load_state() == state


def test_window_of_the_timeline() -> None:
    tracker = tracker_of("RCCACCVCAR")
    assert "".join(agent[0].upper() for agent in tracker.recent) == "CACCVCAR"
    assert tracker.get_utilization() == {
        "analyst": 0.25,
        "coder": 0.5,
        "researcher": 0.125,
        "validator": 0.125,
    }
    assert tracker.lifetime_counts == {"analyst": 2, "coder": 5, "researcher": 2, "validator": 1}


def test_imbalance_with_the_population_standard_deviation() -> None:
    assert tracker_of("CACCVCAR").get_imbalance_score() == pytest.approx(0.612, abs=5e-4)
    assert tracker_of("RACVRACV").get_imbalance_score() == 0.0
    assert tracker_of("").get_imbalance_score() == 0.0
    assert tracker_of("CCCC").get_imbalance_score() == pytest.approx(np.sqrt(3.0))


def document_coordinator(**kwargs) -> QLearningCoordinator[ModelStrategy]:
    actions = [ModelStrategy(agent, how) for agent in AGENTS for how in ("openai", "anthropic")]
    types = ["analysis", "coding", "research", "validation"]
    return QLearningCoordinator(types, LoadTracker(AGENTS).load_states, actions, **kwargs)


def test_update_rule() -> None:
    coordinator = document_coordinator()
    coordinator.q_table["research", "coder_hot"][:] = [0, 0, 2, 0, 0, 1, 0, 0]
    coordinator.update("coding", "balanced", 3, 0.6, "research", "coder_hot")
    # 0 + 0.15 * (0.6 + 0.95 * 2 - 0)
    assert coordinator.q_table["coding", "balanced"][3] == pytest.approx(0.375)
    coordinator.update("coding", "balanced", 3, 0.6, None, "coder_hot")
    # 0.375 + 0.15 * (0.6 - 0.375): no next task, no bootstrap
    assert coordinator.q_table["coding", "balanced"][3] == pytest.approx(0.40875)
    assert len(coordinator.history) == 2
    assert coordinator.history[1]["old_q"] == pytest.approx(0.375)
    assert coordinator.history[0]["action_idx"] == 3


def test_selection() -> None:
    coordinator = document_coordinator(epsilon=0.5)
    coordinator.q_table["coding", "balanced"][:] = [0, 1, 0, 3, 3, 0, 2, 0]
    assert coordinator.select_action("coding", "balanced", draws=(0.5, 0.0))[0] == 3
    assert coordinator.select_action("coding", "balanced", draws=(0.49, 0.999))[0] == 7
    allowed = np.array([True, True, False, False, False, False, True, True])
    assert coordinator.select_action("coding", "balanced", allowed=allowed, draws=(0.9, 0.0)) == (
        6,
        ModelStrategy("validator", "openai"),
    )
    explored = {
        coordinator.select_action("coding", "balanced", allowed=allowed, draws=(0.0, u))[0]
        for u in np.linspace(0.01, 0.99, 50)
    }
    assert explored == {0, 1, 6, 7}
    own = [document_coordinator(seed=4).select_action("coding", "balanced") for _ in range(2)]
    assert own[0] == own[1]


def test_epsilon_decays_to_its_least() -> None:
    coordinator = document_coordinator()
    for _ in range(50):
        coordinator.decay_epsilon()
    assert coordinator.epsilon == pytest.approx(0.98**50)
    for _ in range(200):
        coordinator.decay_epsilon()
    assert coordinator.epsilon == coordinator.epsilon_min


def test_raw_reward_is_quality_less_latency() -> None:
    completed = make_completed(
        range(4), solved=[1, 1, 0, 1], latency_s=[0.0, 50.0, 50.0, 900.0], budget_s=100.0
    )
    np.testing.assert_allclose(raw_reward(completed), [1.0, 0.975, 0.0, 0.95])


def greedy_policy(**kwargs):
    policy = baselines.resolve_policy(
        "q_learning_load_tracker", epsilon=0.0, epsilon_min=0.0, **kwargs
    )
    policy.reset(make_spec(), [0])
    return policy


def decide(policy, query, domain=0, time_s=0.0) -> int:
    contexts = make_contexts(query=query, domain=domain, time_s=time_s)
    return policy.act(observe(make_spec())[0], contexts[0])


def test_penalty_is_read_before_the_assignment_is_recorded() -> None:
    """Greedy and untaught, it always takes action 0 (deepseek-32b, Flash)."""
    policy = greedy_policy()
    assert [decide(policy, query) for query in range(4)] == [0] * 4
    learner = policy.learners[0]
    first, second, third, fourth = (learner.open[query][0] for query in range(4))
    assert first.load_penalty == 0.0  # the window was empty
    assert second.load_penalty == pytest.approx(0.2)  # all of it, five fair shares: capped
    assert (first.load_state, first.next_load_state) == ("balanced", "balanced")
    assert (third.load_state, third.next_load_state) == ("balanced", "deepseek-32b_hot")
    assert fourth.load_state == "deepseek-32b_hot"
    assert first.next_task_type == "Math"
    assert fourth.next_task_type is None


def test_learning_from_finished_queries() -> None:
    policy = greedy_policy()
    decide(policy, 0, domain=1)
    decide(policy, 0, domain=1)
    decide(policy, 1, domain=0)
    policy.observe(make_completed([0], solved=1, latency_s=50.0), 0)
    table = policy.learners[0].coordinator.q_table
    # Raw reward 0.975. First: no penalty, next state is of value 0 -> 0.15 * 0.975 = 0.14625.
    # Second: 0.14625 + 0.15 * (0.775 - 0.14625): penalty 0.2, next state (Math, balanced) is 0.
    first = 0.15 * 0.975
    # The first assignment's next state is (Code, balanced) itself, still 0 when it is updated.
    assert table["Code", "balanced"][0] == pytest.approx(first + 0.15 * (0.775 - first))
    assert 0 not in policy.learners[0].open
    assert 1 in policy.learners[0].open
    policy.observe(make_completed([1, 99], solved=0), 0)  # 99 was routed by somebody else
    assert table["Math", "balanced"][0] == 0.0
    assert not policy.learners[0].open


def test_epsilon_decays_once_a_finished_query() -> None:
    policy = baselines.resolve_policy("q_learning_load_tracker")
    policy.reset(make_spec(), [0])
    for _ in range(5):
        decide(policy, 0)
    policy.observe(make_completed([0, 7]), 0)
    assert policy.learners[0].coordinator.epsilon == 0.98


def test_an_episode_that_was_cut_short_leaves_nothing_open() -> None:
    policy = greedy_policy()
    decide(policy, 0, time_s=40.0)
    decide(policy, 3, time_s=2.0)
    assert set(policy.learners[0].open) == {3}


def test_it_learns_to_leave_a_model_that_never_solves() -> None:
    policy = baselines.resolve_policy("q_learning_load_tracker")
    spec = make_spec()
    policy.reset(spec, [3])
    chosen = []
    for query in range(600):
        action = decide(policy, query, time_s=float(query))
        chosen.append(action // 3)
        policy.observe(make_completed([query], solved=int(action // 3 == 3)), 0)
    late = np.bincount(chosen[-200:], minlength=5) / 200
    assert late[3] > 0.4, late
    assert late[3] > 2 * np.delete(late, 3).max()
