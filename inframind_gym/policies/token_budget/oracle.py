"""A bound: the exact optimum, which knows the latent state of the simulated task."""

from __future__ import annotations

import numpy as np

from inframind_gym.envs.token_budget.context import TokenBudgetContext
from inframind_gym.errors import ConfigError
from inframind_gym.policies.token_budget.protocol import BaseTokenBudgetPolicy, request
from inframind_gym.teams.token_budget.optimum import solve
from inframind_gym.teams.token_budget.rules import CUT, STOP, Ints
from inframind_gym.teams.token_budget.settings import SIZES


class OptimalPolicy(BaseTokenBudgetPolicy):
    """The best action by dynamic programming (`inframind_gym.teams.token_budget.optimum`).

    Raises:
        ConfigError: the run is a script, or of an application: there is no latent state to know.
    """

    name = "optimum"
    bound = True
    sees_truth = True

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return the optimal calls, after a reallocation where an allocation is in their way."""
        truth = context.truth
        if truth is None:
            raise ConfigError(
                "policy 'optimum' knows the latent state of simulated tasks and can play those "
                'alone: profile="simulated" of InfraMind-TokenBudget-v0'
            )
        spec = self.spec
        best = np.full(len(rows), STOP)
        pairs = np.stack([truth.complexity, truth.value], axis=1)
        for complexity, value in np.unique(pairs, axis=0):
            these = np.flatnonzero((pairs == [complexity, value]).all(axis=1))
            solved = solve(
                spec.settings,
                int(complexity),
                spec.max_budget,
                spec.price,
                float(value),
                spec.self_eval,
            )
            at = context.remaining[these], truth.state[these]
            best[these] = solved.look_up(solved.action, *at)
        action = np.full(len(rows), STOP)
        for call in range(CUT):
            wanted = request(context, call // len(SIZES), call % len(SIZES))
            action = np.where(best == call, wanted, action)
        return action
