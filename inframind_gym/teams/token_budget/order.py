"""The order that a run of the token-budget team is started with."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from inframind_gym.configs import NonNegativeInt, StrictModel, within
from inframind_gym.envs.token_budget.config import LEAST_BUDGET, MOST_BUDGET
from inframind_gym.errors import unknown
from inframind_gym.policies.token_budget import registry
from inframind_gym.policies.token_budget.protocol import TokenBudgetPolicy
from inframind_gym.teams.token_budget.settings import SIMULATED, load_settings

TEAM: Final = "token-budget"
# The three modes and the policies that play them; other strategies are policies by their names.
MODES: Final = {
    "frontload": "frontload",
    "critique_heavy": "critique_heavy",
    "adaptive": "adaptive_roi",
}
MOST_TASK_CHARS: Final = 100_000


def _known(strategy: str) -> str:
    # Orders come from the network: no module is imported and no folder read at their word.
    if strategy in MODES:
        return strategy
    name, *arguments = strategy.split(":")
    entries = registry.POLICIES.entries()
    takes = {entry.name: entry.args for entry in entries if entry.name in registry.names()}
    if name not in takes:
        raise ValueError(unknown("strategy", strategy, dict.fromkeys((*MODES, *takes))))
    if arguments and "folder" in takes[name]:
        raise ValueError(f"{name} takes no folder in an order; write {name}, the shipped network")
    return strategy


def _scripted(profile: str) -> str:
    load_settings().script(profile)
    return profile


class Order(StrictModel):
    """A task with its budget and strategy; also the body of ``POST /run``.

    Attributes:
        task: what is wanted.
        budget: hard ceiling, in tokens.
        strategy: a mode, or a policy of `inframind_gym.policies.token_budget` by name.
        scope_down: narrow the task where the budget is below its minimum.
        profile: of the simulated provider: "simulated", or a script.
        seed: of the simulated provider, and of the policy.
    """

    task: Annotated[str, Field(min_length=1, max_length=MOST_TASK_CHARS)]
    budget: Annotated[int, within(LEAST_BUDGET, MOST_BUDGET)] = 20_000
    strategy: Annotated[str, AfterValidator(_known)] = "adaptive"
    scope_down: bool = False
    profile: Annotated[str, AfterValidator(_scripted)] = SIMULATED
    seed: NonNegativeInt = 0

    def policy(self) -> TokenBudgetPolicy:
        """Make the policy of the strategy.

        Raises:
            ConfigError: its arguments are wrong.
        """
        return registry.resolve(MODES.get(self.strategy, self.strategy))
