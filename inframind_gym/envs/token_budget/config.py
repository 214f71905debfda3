"""Checks of the arguments of `InfraMind-TokenBudget-v0`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator

from inframind_gym.configs import StrictModel, validate, within
from inframind_gym.teams.token_budget.settings import DEFAULT, SIMULATED

LEAST_BUDGET: Final = 500
MOST_BUDGET: Final = 200_000

_Tokens = Annotated[int, within(LEAST_BUDGET, MOST_BUDGET)]


def _ordered(ends: tuple[int, int]) -> tuple[int, int]:
    if ends[0] > ends[1]:
        raise ValueError(f"a range of budgets goes up, got {list(ends)}")
    return ends


_Range = Annotated[tuple[_Tokens, _Tokens], AfterValidator(_ordered)]


class TokenBudgetConfig(StrictModel):
    """Arguments of `TokenBudgetEnv`, described there, with the values that they may have."""

    team: str = DEFAULT
    profile: str = SIMULATED
    budget: _Tokens | _Range = 20_000
    strategy: Literal["frontload", "critique_heavy", "adaptive"] = "adaptive"
    price: Annotated[float, within(0.0, 1.0)] = 0.001
    overhead: bool = True
    scope_down: bool = False
    max_steps: Annotated[int, within(1, 1000)] = 20
    action: Literal["discrete", "continuous"] = "discrete"

    @property
    def budget_range(self) -> tuple[int, int]:
        """Least and largest budget."""
        if isinstance(self.budget, tuple):
            return self.budget
        return self.budget, self.budget


def token_budget_config(arguments: Mapping[str, Any]) -> TokenBudgetConfig:
    """Check the environment's arguments.

    Raises:
        ConfigError: an argument is unknown or has an impossible value; says what is possible.
    """
    return validate(dict(arguments), TokenBudgetConfig, source="environment")
