"""Assignment policies: what each does, rows that do not depend on company, and the optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.policies import resolve_policy
from inframind_gym.teams.assignment import optimum, rules, simulate
from inframind_gym.teams.assignment.agents import LoadTracker, QLearningCoordinator
from tests.policies.rollout import play_assignment as play


def rewards(name: str, seeds: range, **arguments: Any) -> np.ndarray:
    """(rows,) mean reward of a task."""
    total = np.zeros(len(seeds))
    for done in play(resolve_policy(name, family="assignment"), seeds, **arguments):
        np.add.at(total, done.row, done.reward)
    return total / arguments.get("num_tasks", 50)


def test_q_seed_is_the_source_s_loop() -> None:
    """The vectorised learner against the tracker and coordinator of the routing policies."""
    policy: Any = resolve_policy("q_seed", family="assignment")
    tracker = LoadTracker(rules.AGENTS)
    coordinator = QLearningCoordinator()
    for done in play(policy, [7], arrivals="bursty"):
        task_type = rules.TASK_TYPES[done.task_type[0]]
        state = tracker.get_load_state()
        assert rules.LOAD_STATES[done.load_state[0]] == state
        row, ordinal = np.zeros(1, np.int64), done.ordinal
        draws = [float(policy.draw(row, ordinal, use)[0]) for use in range(3)]
        action, _ = coordinator.select_action(task_type, state, draws=(draws[0], draws[1]))
        assert action == done.action[0]
        agent = rules.AGENTS[rules.agent_of(action)]
        reward = max(0.0, float(done.raw_reward[0]) - tracker.get_load_penalty(agent))
        tracker.record(agent)
        next_type = rules.TASK_TYPES[int(draws[2] * 4)]
        coordinator.update(task_type, state, action, reward, next_type, tracker.get_load_state())
        coordinator.decay_epsilon()
    table = np.stack(
        [coordinator.q_table[t, s] for t in rules.TASK_TYPES for s in rules.LOAD_STATES]
    )
    assert np.array_equal(policy.table[0], table)
    assert policy.epsilon[0] == coordinator.epsilon == pytest.approx(0.98**50)
    assert 15 <= (table > 0).sum() <= 50  # of 160 cells


@pytest.mark.parametrize("arrivals", ["uniform", "skewed", "bursty"])
def test_the_optimum_earns_its_value_and_nobody_more(arrivals: str) -> None:
    seeds = range(400)
    own = rewards("optimum", seeds, arrivals=arrivals)
    promised = optimum.solve("assignment", arrivals, 50).value / 50
    assert own.mean() == pytest.approx(promised, abs=4.0 * own.std() / 20 + 0.001)
    for name in ("myopic", "static_expert"):
        difference = own - rewards(name, seeds, arrivals=arrivals)
        assert difference.mean() > -3.0 * difference.std() / 20


def test_the_optimum_of_two_tasks_is_that_of_all_plans() -> None:
    """Backward induction against recursion over every action, with no window arithmetic."""
    team, expected = simulate.team(), optimum.expected_rewards("assignment")
    after, start = optimum.next_task_chances(team, "bursty")
    assert after.sum(axis=1) == pytest.approx(np.ones(4)) and start.sum() == pytest.approx(1.0)

    def value(past: tuple[int, ...], task: int, left: int) -> float:
        best = 0.0
        counts = rules.window_counts(np.array([*past, -1])[:-1])
        for action in range(8):
            agent = int(rules.agent_of(action))
            level = int(np.abs(expected.levels - rules.load_penalty(counts, agent)).argmin())
            found = float(expected.reward[task, action, level])
            if left > 1:
                chances = after[team.task_type[task]]
                found += sum(
                    float(chance) * value((*past, agent), other, left - 1)
                    for other, chance in enumerate(chances)
                )
            best = max(best, found)
        return best

    assert optimum.solve("assignment", "bursty", 2).value == pytest.approx(
        sum(float(chance) * value((), task, 2) for task, chance in enumerate(start))
    )
