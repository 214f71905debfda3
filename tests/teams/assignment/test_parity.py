"""Application and environment are the same team: decisions, rewards, tokens, costs, log rows."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import inframind_gym  # noqa: F401 (registers the environments)
from inframind_gym.teams.assignment import rules
from inframind_gym.teams.assignment.coordinator import QLearningCoordinator
from inframind_gym.teams.assignment.draws import STREAM_NEXT_TYPE, Draws
from inframind_gym.teams.assignment.model import TaskAssignment
from inframind_gym.teams.assignment.names import ARRIVALS, Arrivals
from inframind_gym.teams.assignment.training import Options, make_run
from tests.teams.assignment.scripted import learner
from tests.teams.assignment.test_training import Notes

TASKS = 60


def rows_of_the_environment(
    coordinator: QLearningCoordinator[TaskAssignment], arrivals: Arrivals, seed: int
) -> list[dict[str, Any]]:
    """Play a learner through the environment; a row a task, as the application logs it."""
    env = gym.make(
        "InfraMind-Assignment-v0", arrivals=arrivals, observation="tabular", num_tasks=TASKS
    )
    draws, rows, over = Draws(seed), [], False
    state, info = env.reset(seed=seed)
    while not over:
        task_type = rules.TASK_TYPES[int(state) // len(rules.LOAD_STATES)]
        load_state = rules.LOAD_STATES[int(state) % len(rules.LOAD_STATES)]
        action, assignment = coordinator.select_action(task_type, load_state)
        state, reward, _, over, info = env.step(action)
        now = rules.LOAD_STATES[info["load_state"]]
        place = draws.one_of(len(rules.TASK_TYPES), STREAM_NEXT_TYPE, len(rows))
        coordinator.update(
            task_type, load_state, action, float(reward), rules.TASK_TYPES[place], now
        )
        coordinator.decay_epsilon()
        rows.append(
            {
                "iteration": len(rows),
                "action_idx": action,
                "agent_id": assignment.agent_id,
                "provider": str(assignment.provider),
                "task_type": task_type,
                "load_state": load_state,
                "next_load_state": now,
                "adjusted_reward": float(reward),
                "raw_reward": info["raw_reward"],
                "load_penalty": info["load_penalty"],
                "cost_usd": info["cost"],
                "latency_s": info["latency_s"],
                "total_tokens": int(info["tokens"]),
                "utilization": dict(zip(rules.AGENTS, info["utilization"].tolist(), strict=True)),
                "imbalance": info["imbalance"],
                "scores": info["scores"].tolist(),
                "epsilon": coordinator.epsilon,
            }
        )
    env.close()
    return rows


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_the_application_is_the_environment(arrivals: Arrivals) -> None:
    notes = Notes()
    run = make_run(Options(iterations=TASKS, seed=7, arrivals=arrivals), log=notes)
    run.train()
    again = learner(seed=7)
    rows = rows_of_the_environment(again, arrivals, seed=7)
    written = notes.of("iteration")
    assert len(written) == len(rows) == TASKS
    for told, row in zip(written, rows, strict=True):
        scores = [told["scores"][criterion] for criterion in rules.CRITERIA]
        assert {key: told[key] for key in row} | {"scores": scores} == row
    router = run.router
    assert isinstance(router, QLearningCoordinator)
    for state, values in router.q_table.items():
        np.testing.assert_array_equal(values, again.q_table[state])
    spent_usd = sum(row["cost_usd"] for row in rows)
    by_agent = run.service.get_cost_summary()["by_agent"]
    agents_usd = sum(by_agent[name]["cost_usd"] for name in by_agent if name != "judge")
    assert agents_usd == pytest.approx(spent_usd)
