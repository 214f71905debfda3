"""Episodes of a policy in a batch of simulated teams, one a seed.

An episode is that of the environment with this seed, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.envs.assignment import AssignmentEnv, Completed
from inframind_gym.envs.coordination import CoordinationEnv
from inframind_gym.envs.token_budget import TokenBudgetEnv
from inframind_gym.policies.base import Policy


def play_assignment(
    policy: Policy[Any, Any], seeds: Sequence[int], **arguments: Any
) -> Iterator[Completed]:
    """Play one run a seed; yields the tasks that ended, step by step.

    Args:
        policy: what decides.
        seeds: of the runs, and of the policy's rows.
        **arguments: of the environment.
    """
    simulation = AssignmentEnv.simulation_of(arguments, len(seeds))
    rows, observations = np.arange(len(seeds)), started(simulation, policy, seeds)
    for _ in range(simulation.config.num_tasks):
        actions = policy.act_batch(observations.copy(), simulation.contexts(rows), rows)
        simulation.step(rows, actions, observations)
        if hasattr(policy, "observe"):
            policy.observe(simulation.last_completed, simulation.last_completed.row)
        yield simulation.last_completed


def play_token_budget(
    policy: Policy[Any, Any], seeds: Sequence[int], **arguments: Any
) -> dict[str, NDArray[Any]]:
    """Play one episode a seed; allocations start in the policy's own mode.

    The arguments are those of `play_assignment`.

    Returns:
        (n,) arrays: those of `TokenBudgetSimulation.summaries`, and "return", the sum of rewards.
    """
    own = {"strategy": getattr(policy, "strategy", "adaptive"), **arguments}
    return _play(TokenBudgetEnv.simulation_of(own, len(seeds)), policy, seeds)


def play_coordination(
    policy: Policy[Any, Any], seeds: Sequence[int], scenario: str | None = None, **arguments: Any
) -> dict[str, NDArray[Any]]:
    """Play one episode a seed; further arguments are those of `play_assignment`.

    Args:
        scenario: "S1" to "S8"; None: questions are drawn.

    Returns:
        (n,) arrays: those of `CoordinationSimulation.summaries`, and "return", the sum of rewards.
    """
    simulation = CoordinationEnv.simulation_of(arguments, len(seeds))
    simulation.set_options(None if scenario is None else {"scenario": scenario})
    return _play(simulation, policy, seeds)


def started(simulation: Any, policy: Any, seeds: Sequence[int]) -> NDArray[np.float32]:
    """Begin the episodes and reset the policy; returns the first observations."""
    observations: NDArray[np.float32] = simulation.observations()
    generators = [seeding.np_random(int(seed))[0] for seed in seeds]
    simulation.reset(np.arange(len(seeds)), generators, observations)
    policy.reset(simulation.policy_spec(), seeds)
    return observations


def _play(simulation: Any, policy: Any, seeds: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Play episodes to their ends; returns what they have come to."""
    observations = started(simulation, policy, seeds)
    actions, total = np.zeros(len(seeds), np.int64), np.zeros(len(seeds))
    sees_truth = getattr(policy, "sees_truth", False)
    while len(rows := np.flatnonzero(~simulation.over())):
        seen = simulation.contexts(rows, truth=sees_truth)
        actions[rows] = policy.act_batch(observations[rows], seen, rows)
        simulation.step(rows, actions, observations)
        total += simulation.rewards
    return {**simulation.summaries(np.arange(len(seeds)), total, total), "return": total}
