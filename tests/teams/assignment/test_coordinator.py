"""Q-learning over task type and load state, and the routers beside it."""

from __future__ import annotations

from collections import Counter

import pytest

from inframind_gym.policies.assignment import registry
from inframind_gym.policies.rollout import play_assignment as play_policy
from inframind_gym.teams.assignment.coordinator import (
    FIXED_ROUTERS,
    LeastBusy,
    QLearningCoordinator,
    RandomRouter,
)
from inframind_gym.teams.assignment.model import TaskAssignment, all_actions
from inframind_gym.teams.assignment.names import ROUTERS
from inframind_gym.teams.assignment.simulate import key_of
from inframind_gym.teams.assignment.training import Options, make_run
from tests.teams.assignment.scripted import learner


def test_shape_and_defaults() -> None:
    coordinator = learner()
    assert len(coordinator.q_table) == 20
    assert sum(row.size for row in coordinator.q_table.values()) == 160
    assert (coordinator.lr, coordinator.gamma, coordinator.epsilon_decay) == (0.15, 0.95, 0.98)
    keys = [action.key() for action in all_actions()]
    assert keys[:3] == ["analyst:openai", "analyst:anthropic", "coder:openai"]
    assert len(set(keys)) == 8


def test_an_update_by_hand() -> None:
    coordinator = learner()
    coordinator.q_table["research", "coder_hot"][5] = 2.0
    coordinator.update("coding", "balanced", 3, 0.8, "research", "coder_hot")
    assert coordinator.q_table["coding", "balanced"][3] == pytest.approx(0.15 * (0.8 + 0.95 * 2.0))
    coordinator.update("coding", "analyst_hot", 3, 0.8, None, "coder_hot")  # the end: no next value
    assert coordinator.q_table["coding", "analyst_hot"][3] == pytest.approx(0.15 * 0.8)
    assert [entry["action"] for entry in coordinator.history] == ["coder:anthropic"] * 2
    assert coordinator.visits["coding", "balanced"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


def test_exploration_decays_to_its_floor() -> None:
    coordinator = learner(epsilon=1.0, epsilon_min=0.36)
    for _ in range(50):
        coordinator.decay_epsilon()
    assert coordinator.epsilon == pytest.approx(0.98**50)
    coordinator.decay_epsilon()
    assert coordinator.epsilon == 0.36


def chosen(coordinator: QLearningCoordinator[TaskAssignment], times: int = 800) -> Counter[int]:
    return Counter(coordinator.select_action("coding", "balanced")[0] for _ in range(times))


def test_choices() -> None:
    explored = chosen(learner(epsilon=1.0))
    assert len(explored) == 8
    assert min(explored.values()) > 60  # of 100 expected
    assert chosen(learner(epsilon=0.0)) == {0: 800}  # the first of equals
    assert len(chosen(learner(epsilon=0.0, ties="random"))) == 8
    learned = learner(epsilon=0.0, ties="random")
    learned.q_table["coding", "balanced"][6] = 0.1
    assert chosen(learned, 50) == {6: 50}
    first = [learner(seed=s).select_action("coding", "balanced")[0] for s in range(9)]
    assert first == [learner(seed=s).select_action("coding", "balanced")[0] for s in range(9)]
    assert len(set(first)) > 1


def test_a_policy_names_only_what_was_tried() -> None:
    coordinator = learner()
    coordinator.update("coding", "balanced", 3, 0.8, None, "balanced")
    policy = coordinator.policy()
    assert policy["coding"] == all_actions()[3]
    assert policy["analysis"] is None


def play(router: str, arrivals: str = "uniform") -> dict[str, int]:
    run = make_run(Options(router=router, arrivals=arrivals))  # type: ignore[arg-type]
    run.train()
    return run.tracker.lifetime_counts


def test_least_busy_collapses_onto_one_backend_where_calls_come_one_by_one() -> None:
    assert play("least_busy") == {"analyst": 50, "coder": 0, "researcher": 0, "validator": 0}
    assert min(play("q_learning").values()) > 0
    assert sorted(play("round_robin").values()) == [12, 12, 13, 13]


def test_least_busy_spreads_what_is_in_flight_at_once() -> None:
    router = LeastBusy()
    taken = [router.select_action("coding", "balanced")[0] for _ in range(10)]
    assert taken == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
    router.ended(4)
    assert router.select_action("coding", "balanced")[0] == 4


@pytest.mark.parametrize("name", FIXED_ROUTERS)
def test_routers_are_the_policies_of_the_same_name(name: str) -> None:
    router, policy = FIXED_ROUTERS[name](3), registry.resolve(name)
    taken = []
    for _ in range(50):
        taken.append(router.select_action("coding", "balanced")[0])
        router.ended(taken[-1])
    played = play_policy(policy, [int(key_of(3)[0])], num_tasks=50)
    assert taken == [int(done.action[0]) for done in played]


def test_the_random_router_takes_every_action() -> None:
    router = RandomRouter(1)
    assert len({router.select_action("coding", "balanced")[0] for _ in range(200)}) == 8


def test_names_of_the_command_line_are_those_of_the_code() -> None:
    assert ("q_learning", *FIXED_ROUTERS) == ROUTERS
