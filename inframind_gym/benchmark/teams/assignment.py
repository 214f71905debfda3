"""Plays cells of the assignment team."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import blame
from inframind_gym.benchmark.teams import batch
from inframind_gym.benchmark.teams.batch import Ints
from inframind_gym.benchmark.teams.suite import TeamCell
from inframind_gym.envs.assignment.simulation import AssignmentSimulation
from inframind_gym.teams.assignment import rules

_OF_TASKS = ("reward", "quality", "load_penalty", "latency_s")


class Batch(batch.Batch):
    """Runs of tasks, a record a task in the order of arrival; the policy sees those that end."""

    num_actions = rules.NUM_ACTIONS

    def __init__(self, policy: Any, cells: Sequence[TeamCell], config: Any) -> None:
        super().__init__(policy, cells, config)
        names = (*_OF_TASKS, "hot", "imbalance", "usd_per_1000")
        self._found = {field: np.zeros((len(cells), config.num_tasks)) for field in names}
        self._ordinal = 0

    def make(self, policy: Any, config: Any, num_envs: int) -> AssignmentSimulation:
        """Make the simulation."""
        return AssignmentSimulation(config, num_envs)

    def step(self, rows: Ints, actions: Ints) -> int:
        """Assign a task in every row."""
        simulation, found = self.simulation, self._found
        simulation.step_rows(rows, actions, self.observations)
        done = simulation.completed
        at = done.row, done.ordinal
        for field in _OF_TASKS:
            found[field][at] = getattr(done, field)
        found["usd_per_1000"][at] = 1000.0 * done.cost_usd
        found["hot"][:, self._ordinal] = simulation.load_state != rules.BALANCED
        found["imbalance"][:, self._ordinal] = simulation.imbalance
        if hasattr(self.policy, "observe"):
            with blame(self.name):
                self.policy.observe(done)
        self._ordinal += 1
        return len(rows)

    def records(self) -> dict[str, NDArray[Any]]:
        """Return the fields of the tasks, (E, num_tasks)."""
        return self._found
