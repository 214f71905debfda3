"""Many teams in one batch: `gym.make_vec("InfraMind-TokenBudget-v0", num_envs=64)`."""

from __future__ import annotations

from inframind_gym.envs.batch import signature_in_a_batch
from inframind_gym.envs.teams import TeamVectorEnv
from inframind_gym.envs.token_budget.env import TokenBudgetEnv
from inframind_gym.envs.token_budget.simulation import TokenBudgetSimulation


class TokenBudgetVectorEnv(TeamVectorEnv):
    """`InfraMind-TokenBudget-v0` in a batch (`BatchEnv`); arguments as of `TokenBudgetEnv`.

    In place of events, which are texts, the infos have arrays: "action" (what was carried out),
    "tokens" and "reason" (a place in `teams.token_budget.state.REASONS`).
    """

    __signature__ = signature_in_a_batch(TokenBudgetEnv)
    simulates = TokenBudgetSimulation
