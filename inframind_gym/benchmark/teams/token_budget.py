"""Plays cells of the token-budget team."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.teams import batch
from inframind_gym.benchmark.teams.batch import Ints
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.teams.token_budget.rules import NUM_ACTIONS


class Batch(batch.Batch):
    """Tasks, a record each, in the policy's own mode of allocations."""

    num_actions = NUM_ACTIONS

    def make(self, policy: Any, config: Any, num_envs: int) -> TokenBudgetSimulation:
        """Make the simulation."""
        self._actions, self._return = np.zeros(num_envs, np.int64), np.zeros(num_envs)
        strategy = getattr(policy, "strategy", config.strategy)
        return TokenBudgetSimulation(config.model_copy(update={"strategy": strategy}), num_envs)

    def step(self, rows: Ints, actions: Ints) -> int:
        """Carry out a decision in some rows."""
        self._actions[rows] = actions
        self.simulation.step_rows(rows, self._actions, self.observations)
        self._return[rows] += self.simulation.terms[rows].sum(axis=1)
        return int(self.simulation.over()[rows].sum())

    def records(self) -> dict[str, NDArray[Any]]:
        """Return what each task has come to, (E,)."""
        return {**self.simulation.summaries(self.rows), "return": self._return}
