"""Cells and suites of the teams: policies x scenarios."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field

from inframind_gym.benchmark.cells import Axis, BaseCell
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.configs import Name
from inframind_gym.errors import InfraMindError


@dataclass(frozen=True, slots=True)
class TeamCell(BaseCell):
    """One policy in one episode of a team.

    Attributes:
        scenario: Name of a scenario of the suite.
    """

    axes: ClassVar[tuple[Axis, ...]] = (Axis("scenario", "scenarios", "scenario", "by_scenario"),)
    fixed_axes: ClassVar[int] = 1

    policy: str
    scenario: str
    seed: int


class TeamSuite(BaseSuite):
    """A suite of a team's environment.

    Attributes:
        scenarios: Arguments of the environment, by the scenario's name.
        fixed: Arguments of every scenario.
    """

    cell: ClassVar = TeamCell
    fixed: ClassVar[dict[str, Any]] = {}

    kind: str
    scenarios: dict[Name, dict[str, Any]] = Field(min_length=1)

    def resolve(self) -> Self:
        """Check the arguments of every scenario.

        Raises:
            BenchmarkError: An argument is unknown or has an impossible value.
        """
        for name in self.scenarios:
            try:
                self.config(name)
            except InfraMindError as error:
                raise BenchmarkError(f"scenario {name!r}: {error}") from None
        return super().resolve()

    def settings(self) -> dict[str, Any]:
        """Return the arguments of every scenario, defaults included, and the teams' constants."""
        configs = {name: self.config(name) for name in self.scenarios}
        return {
            **super().settings(),
            "scenarios": {name: one.model_dump(mode="json") for name, one in configs.items()},
            "constants": {name: self.constants(one) for name, one in configs.items()},
        }

    def config(self, scenario: str) -> Any:
        """Return the checked arguments of a scenario.

        Raises:
            ConfigError: An argument is unknown or has an impossible value.
        """
        module = import_module(f"inframind_gym.envs.{self.kind}.config")
        return getattr(module, f"{self.kind}_config")({**self.scenarios[scenario], **self.fixed})

    def length(self, cell: TeamCell) -> int:
        """Return 1: the record of an episode is what it has come to."""
        return 1

    @abstractmethod
    def constants(self, config: Any) -> dict[str, Any]:
        """Return what else episodes with these arguments depend on, as JSON."""


class AssignmentSuite(TeamSuite):
    """A suite of `InfraMind-Assignment-v0`."""

    fixed: ClassVar[dict[str, Any]] = {"observation": "flat"}

    kind: Literal["assignment"] = "assignment"

    def constants(self, config: Any) -> dict[str, Any]:
        """Return the constants of the team, and with queues its servers."""
        from inframind_gym.configs import find_config
        from inframind_gym.simulator.server.pool import load_pool
        from inframind_gym.teams.assignment.settings import load_team

        models: list[BaseModel] = [load_team(config.team)]
        if config.queues:
            models.append(load_pool(find_config("teams/pools", config.pool)))
        return {type(model).__name__: model.model_dump(mode="json") for model in models}

    def length(self, cell: TeamCell) -> int:
        """Return the tasks of a run."""
        return int(self.config(cell.scenario).num_tasks)


class CoordinationSuite(TeamSuite):
    """A suite of `InfraMind-Coordination-v0`."""

    kind: Literal["coordination"] = "coordination"

    def constants(self, config: Any) -> dict[str, Any]:
        """Return the constants of the team."""
        return {"team": config.settings().model_dump(mode="json")}


class TokenBudgetSuite(TeamSuite):
    """A suite of `InfraMind-TokenBudget-v0`."""

    kind: Literal["token_budget"] = "token_budget"

    def constants(self, config: Any) -> dict[str, Any]:
        """Return the constants of the team."""
        from inframind_gym.teams.token_budget.settings import load_settings

        return {"team": load_settings(config.team).model_dump(mode="json")}
