"""Plays cells of the token-budget team."""

from __future__ import annotations

from typing import Any

from inframind_gym.benchmark.teams import batch
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation
from inframind_gym.teams.token_budget.rules import NUM_ACTIONS


class Batch(batch.Batch):
    """Tasks in the policy's own mode of allocations."""

    num_actions = NUM_ACTIONS

    def make(self, policy: Any, config: Any, num_envs: int) -> TokenBudgetSimulation:
        """Make the simulation."""
        strategy = getattr(policy, "strategy", config.strategy)
        return TokenBudgetSimulation(config.model_copy(update={"strategy": strategy}), num_envs)
