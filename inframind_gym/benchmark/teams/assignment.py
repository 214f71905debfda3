"""Plays cells of the assignment team in lock-step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import StoppedError, blame, checked
from inframind_gym.benchmark.metrics import Columns
from inframind_gym.benchmark.teams.suite import TeamCell
from inframind_gym.envs.assignment.config import AssignmentConfig
from inframind_gym.envs.assignment.simulation import AssignmentSimulation
from inframind_gym.policies.assignment.protocol import AssignmentPolicy
from inframind_gym.teams.assignment import rules

_ACTIONS = Discrete(rules.NUM_ACTIONS)
_OF_TASKS = ("reward", "quality", "load_penalty", "latency_s")


def begin(
    policy: AssignmentPolicy, cells: Sequence[TeamCell], config: AssignmentConfig
) -> tuple[AssignmentSimulation, NDArray[np.float32]]:
    """Make the teams of cells and reset the policy for them."""
    simulation = AssignmentSimulation(config, len(cells))
    observations = np.empty((len(cells), simulation.observation_size), np.float32)
    generators = [seeding.np_random(cell.episode_seed)[0] for cell in cells]
    simulation.start(np.arange(len(cells)), generators, observations)
    with blame(cells[0].policy):
        policy.reset(simulation.spec(), [cell.policy_seed for cell in cells])
    return simulation, observations


def play(
    policy: AssignmentPolicy,
    cells: Sequence[TeamCell],
    config: AssignmentConfig,
    stop: Callable[[], bool],
    progress: Callable[[int], None],
) -> tuple[list[Columns], list[float]]:
    """Play cells of one policy and scenario.

    Returns:
        Records of each cell, one a task in the order of arrival, and the milliseconds that each
        decision of a row took.

    Raises:
        StoppedError: `stop` returned true.
        PolicyFailedError: the policy raised an error or gave no valid action.
    """
    simulation, observations = begin(policy, cells, config)
    name, rows, took_ms = cells[0].policy, np.arange(len(cells)), []
    names = (*_OF_TASKS, "hot", "imbalance", "usd_per_1000")
    found = {field: np.zeros((len(cells), config.num_tasks)) for field in names}
    for ordinal in range(config.num_tasks):
        if stop():
            raise StoppedError
        context = simulation.context(rows)
        with blame(name):
            began = time.thread_time()
            chosen: Any = policy.act_batch(observations.copy(), context, rows)
            took_ms.append(1e3 * (time.thread_time() - began) / len(cells))
        actions = checked(name, chosen, _ACTIONS, len(cells))[:, 0]
        simulation.step(actions, rows, observations)
        done = simulation.completed
        at = done.row, done.ordinal
        for field in _OF_TASKS:
            found[field][at] = getattr(done, field)
        found["usd_per_1000"][at] = 1000.0 * done.cost_usd
        found["hot"][:, ordinal] = simulation.load_state != rules.BALANCED
        found["imbalance"][:, ordinal] = simulation.imbalance
        if hasattr(policy, "observe"):
            with blame(name):
                policy.observe(done)
        progress(len(cells))
    return [{field: values[row] for field, values in found.items()} for row in rows], took_ms
