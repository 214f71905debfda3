"""Episodes of a policy, in a batch of simulated questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.envs.coordination.config import coordination_config
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.policies.coordination.protocol import CoordinationPolicy
from inframind_gym.teams.coordination.scenarios import find_scenario


def play(
    policy: CoordinationPolicy,
    seeds: Sequence[int],
    scenario: str | None = None,
    **arguments: Any,
) -> dict[str, NDArray[Any]]:
    """Play one episode a seed and return its results.

    An episode is that of the environment with this seed, whatever the batch.

    Args:
        policy: what decides.
        seeds: of the episodes, and of the policy's rows.
        scenario: "S1" to "S8"; None: questions are drawn.
        **arguments: of the environment.

    Returns:
        (n,) arrays: those of `CoordinationSimulation.summaries`, and "return", the sum of rewards.
    """
    simulation = CoordinationSimulation(coordination_config(arguments), len(seeds))
    rows, observations = np.arange(len(seeds)), simulation.observations()
    generators = [seeding.np_random(int(seed))[0] for seed in seeds]
    given = None if scenario is None else find_scenario(scenario)
    simulation.start(rows, generators, observations, given)
    policy.reset(simulation.spec(), seeds)
    sees_truth, total = getattr(policy, "sees_truth", False), np.zeros(len(seeds))
    actions = np.zeros(len(seeds), np.int64)
    while len(rows := np.flatnonzero(~simulation.over())):
        seen = simulation.contexts(rows, truth=sees_truth)
        actions[rows] = policy.act_batch(observations[rows], seen, rows)
        simulation.step_rows(rows, actions, observations)
        total[rows] += simulation.terms[rows].sum(axis=1)
    return {**simulation.summaries(np.arange(len(seeds))), "return": total}
