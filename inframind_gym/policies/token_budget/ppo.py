"""`sb3_maskable_ppo`: a network that sb3-contrib has trained, played with NumPy alone."""

from __future__ import annotations

from typing import Final

from inframind_gym.envs.token_budget.observation import OBSERVATION_SIZE
from inframind_gym.policies import checkpoint
from inframind_gym.policies.masked import MaskedPerceptron
from inframind_gym.policies.token_budget.protocol import BaseTokenBudgetPolicy
from inframind_gym.teams.token_budget.rules import NUM_ACTIONS

KIND: Final = "token_budget_perceptron"


class MaskablePpoPolicy(MaskedPerceptron, BaseTokenBudgetPolicy):  # type: ignore[misc]
    """The best open action of an exported network."""

    kind = KIND
    shipped = checkpoint.SHIPPED / "token_budget_maskable_ppo"
    sizes = OBSERVATION_SIZE, NUM_ACTIONS
