"""Episodes of a policy, in a batch of simulated teams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.envs.token_budget.config import token_budget_config
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.policies.token_budget.protocol import TokenBudgetPolicy


def play(
    policy: TokenBudgetPolicy, seeds: Sequence[int], **arguments: Any
) -> dict[str, NDArray[Any]]:
    """Play one episode a seed and return its results.

    Allocations start in the policy's own mode. An episode is that of the environment with this
    seed, whatever the batch.

    Args:
        policy: what decides.
        seeds: of the episodes, and of the policy's rows.
        **arguments: of the environment.

    Returns:
        (n,) arrays: those of `TokenBudgetSimulation.summaries`, "return" (the sum of rewards) and
        "optimal_return" (expected, of the exact optimum; NaN for a script).
    """
    own = {"strategy": getattr(policy, "strategy", "adaptive"), **arguments}
    simulation = TokenBudgetSimulation(token_budget_config(own), len(seeds))
    rows, observations = np.arange(len(seeds)), simulation.observations()
    simulation.start(rows, [seeding.np_random(int(s))[0] for s in seeds], observations)
    policy.reset(simulation.spec(), seeds)
    sees_truth, total = getattr(policy, "sees_truth", False), np.zeros(len(seeds))
    optimal = simulation.optimal_return(rows)
    actions = np.zeros(len(seeds), np.int64)
    while len(rows := np.flatnonzero(~simulation.over())):
        seen = simulation.contexts(rows, truth=sees_truth)
        actions[rows] = policy.act_batch(observations[rows], seen, rows)
        simulation.step_rows(rows, actions, observations)
        total[rows] += simulation.terms[rows].sum(axis=1)
    every = np.arange(len(seeds))
    return {**simulation.summaries(every), "return": total, "optimal_return": optimal}
