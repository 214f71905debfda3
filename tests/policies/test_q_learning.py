"""Load-aware Q-learning as a router, worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inframind_gym.policies import resolve_policy
from tests.policies.synthetic import make_completed, make_contexts, make_spec, observe

MATH, CODE = 0, 1
DEEPSEEK_HOT = 1  # load state; 0 is balanced


def learner(**settings: float) -> Any:
    """Greedy unless told otherwise. Untaught, it always takes action 0 (deepseek-32b, Flash)."""
    settings = {"epsilon": 0.0, "epsilon_min": 0.0, **settings}
    policy = resolve_policy("q_learning_load_tracker", **settings)
    policy.reset(make_spec(), [3])
    return policy


def decide(policy: Any, query: int, domain: int = MATH, time_s: float = 0.0) -> int:
    contexts = make_contexts(query=query, domain=domain, time_s=time_s)
    return int(policy.act(observe(make_spec())[0], contexts[0]))


def value(policy: Any, domain: int, load_state: int) -> float:
    return float(policy.table[0, domain * 6 + load_state, 0])


def test_raw_reward_is_quality_less_latency() -> None:
    completed = make_completed(
        range(4), solved=[1, 1, 0, 1], latency_s=[0.0, 50.0, 50.0, 900.0], budget_s=100.0
    )
    np.testing.assert_allclose(learner().rewards(completed), [1.0, 0.975, 0.0, 0.95])


def test_penalty_is_read_before_the_assignment_is_recorded() -> None:
    """The second call finds all of the window at one model, five fair shares: capped at 0.2."""
    policy = learner()
    assert [decide(policy, query) for query in range(4)] == [0] * 4
    for query, penalty, state in ((0, 0.0, 0), (1, 0.2, 0), (2, 0.2, 0), (3, 0.2, DEEPSEEK_HOT)):
        before = value(policy, MATH, state)
        ahead = 0.95 * policy.table[0, MATH * 6 + (DEEPSEEK_HOT if query >= 2 else 0)].max()
        policy.observe(make_completed([query], solved=1, latency_s=0.0), 0)
        target = 1.0 - penalty + (0.0 if query == 3 else ahead)  # nothing has followed the last
        expected = before + 0.15 * (target - before)
        assert value(policy, MATH, state) == pytest.approx(expected)


def test_learning_from_finished_queries() -> None:
    policy = learner()
    decide(policy, 0, CODE)
    decide(policy, 0, CODE)
    decide(policy, 1, MATH)
    policy.observe(make_completed([0], solved=1, latency_s=50.0), 0)
    # Raw reward 0.975. First: no penalty; its next state is (Code, balanced) itself, still 0.
    # Second: penalty 0.2; its next state (Math, balanced) is 0.
    first = 0.15 * 0.975
    assert value(policy, CODE, 0) == pytest.approx(first + 0.15 * (0.775 - first))
    policy.observe(make_completed([1, 99], solved=0), 0)  # 99 was routed by somebody else
    assert value(policy, MATH, 0) == 0.0


def test_an_episode_that_was_cut_short_leaves_nothing_open() -> None:
    policy = learner()
    decide(policy, 0, time_s=40.0)
    decide(policy, 3, time_s=2.0)
    policy.observe(make_completed([0], solved=1), 0)
    assert not policy.table.any()
    policy.observe(make_completed([3], solved=1), 0)
    assert policy.table.any()


def test_it_learns_to_leave_a_model_that_never_solves() -> None:
    policy = learner(epsilon=1.0, epsilon_min=0.05)
    models = []
    for query in range(600):
        models.append(decide(policy, query, time_s=float(query)) // 3)
        policy.observe(make_completed([query], solved=int(models[-1] == 3)), 0)
    late = np.bincount(models[-200:], minlength=5) / 200
    assert late[3] > max(0.4, 2 * np.delete(late, 3).max()), late
