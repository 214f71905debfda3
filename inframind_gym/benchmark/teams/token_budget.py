"""Plays cells of the token-budget team in lock-step."""

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
from inframind_gym.envs.token_budget.config import TokenBudgetConfig
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.policies.token_budget.protocol import TokenBudgetPolicy

_ACTIONS = Discrete(16)


def begin(
    policy: TokenBudgetPolicy, cells: Sequence[TeamCell], config: TokenBudgetConfig
) -> tuple[TokenBudgetSimulation, NDArray[np.float32]]:
    """Make the teams of cells, in the policy's own mode, and reset the policy for them."""
    strategy = getattr(policy, "strategy", config.strategy)
    simulation = TokenBudgetSimulation(config.model_copy(update={"strategy": strategy}), len(cells))
    observations = simulation.observations()
    generators = [seeding.np_random(cell.episode_seed)[0] for cell in cells]
    simulation.start(np.arange(len(cells)), generators, observations)
    with blame(cells[0].policy):
        policy.reset(simulation.spec(), [cell.policy_seed for cell in cells])
    return simulation, observations


def play(
    policy: TokenBudgetPolicy,
    cells: Sequence[TeamCell],
    config: TokenBudgetConfig,
    stop: Callable[[], bool],
    progress: Callable[[int], None],
) -> tuple[list[Columns], list[float]]:
    """Play cells of one policy and scenario.

    Returns:
        The record of each cell, and the milliseconds that each decision of a row took.

    Raises:
        StoppedError: `stop` returned true.
        PolicyFailedError: the policy raised an error or gave no valid action.
    """
    simulation, observations = begin(policy, cells, config)
    name, took_ms, total = cells[0].policy, [], np.zeros(len(cells))
    actions, sees_truth = np.zeros(len(cells), np.int64), getattr(policy, "sees_truth", False)
    while len(rows := np.flatnonzero(~simulation.over())):
        if stop():
            raise StoppedError
        context = simulation.contexts(rows, truth=sees_truth)
        with blame(name):
            began = time.thread_time()
            chosen: Any = policy.act_batch(observations[rows], context, rows)
            took_ms.append(1e3 * (time.thread_time() - began) / len(rows))
        actions[rows] = checked(name, chosen, _ACTIONS, len(rows))[:, 0]
        simulation.step_rows(rows, actions, observations)
        total[rows] += simulation.terms[rows].sum(axis=1)
    progress(len(cells))
    found = {**simulation.summaries(np.arange(len(cells))), "return": total}
    return [
        {field: values[row : row + 1] for field, values in found.items()}
        for row in range(len(cells))
    ], took_ms
