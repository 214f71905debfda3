"""Episodes of a policy, in a batch of teams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from inframind_gym.envs.assignment.config import assignment_config
from inframind_gym.envs.assignment.context import Completed
from inframind_gym.envs.assignment.simulation import AssignmentSimulation
from inframind_gym.policies.assignment.protocol import AssignmentPolicy


def play(policy: AssignmentPolicy, seeds: Sequence[int], **arguments: Any) -> Iterator[Completed]:
    """Play one run a seed; yields the tasks that ended, step by step.

    Args:
        policy: what decides.
        seeds: of the runs, and of the policy's rows.
        **arguments: of the environment.
    """
    simulation = AssignmentSimulation(assignment_config(arguments), len(seeds))
    rows = np.arange(len(seeds))
    observations = simulation.observations()
    simulation.start(rows, [seeding.np_random(int(s))[0] for s in seeds], observations)
    policy.reset(simulation.spec(), seeds)
    for _ in range(simulation.config.num_tasks):
        actions = policy.act_batch(observations.copy(), simulation.context(rows), rows)
        simulation.step(actions, rows, observations)
        if hasattr(policy, "observe"):
            policy.observe(simulation.completed)
        yield simulation.completed
