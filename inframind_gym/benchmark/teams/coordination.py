"""Plays cells of the coordination team."""

from __future__ import annotations

from typing import Any

from inframind_gym.benchmark.teams import batch
from inframind_gym.envs.coordination.simulation import CoordinationSimulation
from inframind_gym.teams.coordination.rules import NUM_ACTIONS


class Batch(batch.Batch):
    """Questions."""

    num_actions = NUM_ACTIONS

    def make(self, policy: Any, config: Any, num_envs: int) -> CoordinationSimulation:
        """Make the simulation."""
        return CoordinationSimulation(config, num_envs)
