"""The families of the teams of agents: assignment, token budget and coordination.

A team brings an environment, a registry of policies, and metrics that are means over records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from inframind_gym.configs import Name
from inframind_gym.envs.core import checked_arguments
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.evaluation.cells import Axis, Cell, Place
from inframind_gym.evaluation.metrics import Metric, by_name
from inframind_gym.evaluation.play import Batch, Fields
from inframind_gym.evaluation.suite import Suite
from inframind_gym.teams.assignment.rules import BALANCED
from inframind_gym.teams.assignment.simulate import agent_pool, team
from inframind_gym.teams.token_budget.settings import load_settings

_MEANS: Final = "Means over {cells} ± half of the 95 % interval."
_TASK_FIELDS: Final = ("reward", "quality", "load_penalty", "latency_s")  # of a completed task


class EpisodeBatch(Batch):
    """Episodes of a team; a record is the summary of an episode."""

    def begin(self) -> None:
        """Start with a return of 0."""
        self._return = np.zeros(len(self.cells))

    def note(self, rows: NDArray[np.int64]) -> int:
        """Add up the reward; return the number of episodes that ended."""
        self._return[rows] += self.simulation.terms[rows].sum(axis=1)
        return int(self.over()[rows].sum())

    def columns(self, row: int) -> Fields:
        """Return the record of a row."""
        rows, total = np.array([row]), self._return[[row]]
        return {**self.simulation.summaries(rows, total, total), "return": total}


class TaskBatch(Batch):
    """Runs of the assignment team, a record a task; the policy observes the tasks that end."""

    def begin(self) -> None:
        """Start with no record."""
        names = (*_TASK_FIELDS, "hot", "imbalance", "usd_per_1000")
        shape = (len(self.cells), self.simulation.config.num_tasks)
        self._records = {name: np.zeros(shape) for name in names}
        self._ordinal = 0

    def note(self, rows: NDArray[np.int64]) -> int:
        """Take the tasks that ended, and show them to a policy that learns from them."""
        simulation, records = self.simulation, self._records
        done = simulation.last_completed
        for name in _TASK_FIELDS:
            records[name][done.row, done.ordinal] = getattr(done, name)
        records["usd_per_1000"][done.row, done.ordinal] = 1000.0 * done.cost_usd
        records["hot"][:, self._ordinal] = simulation.state.load_state != BALANCED
        records["imbalance"][:, self._ordinal] = simulation.imbalance
        if hasattr(self.policy, "observe"):
            with self.calling():
                self.policy.observe(done, done.row)
        self._ordinal += 1
        return len(rows)

    def columns(self, row: int) -> Fields:
        """Return the tasks of a row, in the order of arrival."""
        return {name: values[row] for name, values in self._records.items()}


class TeamSuite(Suite):
    """A suite of a team's environment."""

    fixed: ClassVar[Mapping[str, Any]] = {}  # arguments of every scenario
    axes: ClassVar = (Axis("scenario", "scenarios", "scenario", "Mean {score} by scenario"),)
    unit: ClassVar = "tasks"
    batch: ClassVar[type[Any]] = EpisodeBatch
    shown: ClassVar = ("scenarios",)
    regret: ClassVar = "optimum"

    # Arguments of the environment, by the scenario's name
    scenarios: dict[Name, dict[str, Any]] = Field(min_length=1)

    def config(self, scenario: str) -> Any:
        """Return the checked arguments of a scenario.

        Raises:
            ConfigError: An argument is unknown or has an impossible value.
        """
        try:
            arguments = self.env_kwargs((scenario,), None)
            return checked_arguments(self.environment().arguments, arguments)
        except InfraMindError as error:
            raise ConfigError(f"scenario {scenario!r}: {error}") from None

    def constants(self, config: Any) -> dict[str, Any]:
        """Return what else episodes with these arguments depend on, as JSON."""
        raise NotImplementedError

    def resolve(self) -> Self:
        """Check the arguments of every scenario.

        Raises:
            ConfigError: An argument is unknown or has an impossible value.
        """
        for name in self.scenarios:
            self.config(name)
        return super().resolve()

    def settings(self) -> dict[str, Any]:
        """Return the arguments of every scenario, defaults included, and the teams' constants."""
        configs = {name: self.config(name) for name in self.scenarios}
        return {
            **super().settings(),
            "scenarios": {name: one.model_dump(mode="json") for name, one in configs.items()},
            "constants": {name: self.constants(one) for name, one in configs.items()},
        }

    def env_kwargs(self, place: Place, policy: Any) -> dict[str, Any]:
        """Return the arguments of the environment of a scenario."""
        return {**self.scenarios[place[0]], **self.fixed}


class AssignmentSuite(TeamSuite):
    """A suite of `InfraMind-Assignment-v0`."""

    env_id: ClassVar = "InfraMind-Assignment-v0"
    players: ClassVar = "assignment"
    metrics: ClassVar = by_name(
        Metric("reward", "reward", "", "higher", decimals=3),
        Metric("quality", "quality", "%", "higher"),
        Metric("load_penalty", "load\npenalty", "", "lower", decimals=3),
        Metric("hot", "hot", "%", "lower"),
        Metric("imbalance", "imbalance", "", "lower"),
        Metric("usd_per_1000", "USD\nper 1000", "", "lower"),
        Metric("latency_s", "latency", "s", "lower"),
        Metric("latency_p95_s", "p95", "s", "lower", tail_of="latency_s"),
    )
    score: ClassVar = "reward"
    main: ClassVar = tuple(metrics)[:7]
    compared: ClassVar = ("reward", "quality", "load_penalty", "latency_s")
    caption: ClassVar = (
        f"{_MEANS} Highest mean reward of a task first. quality: the true one, which the judge "
        "sees with noise; hot: decisions after which an agent is; imbalance: coefficient of "
        "variation of the agents' shares; USD of the agents' calls."
    )
    batch: ClassVar = TaskBatch
    fixed: ClassVar = {"observation": "flat"}
    kind: Literal["assignment"] = "assignment"

    def constants(self, config: Any) -> dict[str, Any]:
        """Return the constants of the team, and with queues its servers."""
        models: list[Any] = [team(config.team).settings]
        if config.queues:
            models.append(agent_pool())
        return {type(model).__name__: model.model_dump(mode="json") for model in models}

    def length(self, cell: Cell) -> int:
        """Return the tasks of a run."""
        return int(self.config(cell.place[0]).num_tasks)


class TokenBudgetSuite(TeamSuite):
    """A suite of `InfraMind-TokenBudget-v0`."""

    env_id: ClassVar = "InfraMind-TokenBudget-v0"
    players: ClassVar = "token_budget"
    metrics: ClassVar = by_name(
        Metric("return", "return", "", "higher", decimals=3),
        Metric("quality", "quality", "", "higher", decimals=1),
        Metric("reported_quality", "reported", "", None, decimals=1),
        Metric("tokens", "tokens", "", "lower"),
        Metric("calls", "calls", "", None),
        Metric("unspent_share", "unspent", "%", None),
        Metric("drained", "drained", "%", "lower"),
        Metric("quality_area", "area", "", "higher", decimals=1),
        Metric("tokens_p95", "p95", "", "lower", tail_of="tokens"),
        Metric("overshoot", "overshoot", "", "lower", decimals=1),
    )
    score: ClassVar = "return"
    main: ClassVar = tuple(metrics)[:7]
    compared: ClassVar = ("return", "quality", "tokens", "calls")
    caption: ClassVar = (
        f"{_MEANS} Highest mean return of a task first: quality gained less the price of the "
        "tokens. quality: the true one; reported: by the proxies that a team sees; drained: tasks "
        "that no further call could be paid for."
    )
    kind: Literal["token_budget"] = "token_budget"

    def constants(self, config: Any) -> dict[str, Any]:
        """Return the constants of the team."""
        return {"team": load_settings(config.team).model_dump(mode="json")}

    def env_kwargs(self, place: Place, policy: Any) -> dict[str, Any]:
        """Return the arguments of the environment, in the policy's own mode of allocations."""
        strategy = {"strategy": policy.strategy} if hasattr(policy, "strategy") else {}
        return super().env_kwargs(place, policy) | strategy


class CoordinationSuite(TeamSuite):
    """A suite of `InfraMind-Coordination-v0`."""

    env_id: ClassVar = "InfraMind-Coordination-v0"
    players: ClassVar = "coordination"
    metrics: ClassVar = by_name(
        Metric("return", "return", "", "higher", decimals=3),
        Metric("answer_score", "answer", "%", "higher"),
        Metric("success", "no\nfallback", "%", "higher"),
        Metric("latency_p95_s", "p95", "s", "lower", tail_of="latency_s"),
        Metric("validated", "validated", "%", "higher"),
        Metric("detection", "hallucinations\nfound", "%", "higher", part="caught", whole="lied"),
        Metric("attribution", "attribution", "%", "higher"),
        Metric("context_kept", "context\nkept", "%", "higher"),
        Metric("overhead_ms", "overhead\nms", "", "lower", decimals=0),
        Metric("model_ms", "model\nms", "", "lower", decimals=0),
        Metric("tokens", "tokens", "", "lower"),
        Metric("lateness", "lateness", "%", "lower"),
        Metric("latency_s", "latency", "s", "lower"),
        Metric("forced", "forced", "%", "lower"),
        Metric("evidence", "evidence", "%", "higher"),
        Metric("decisions", "decisions", "", None),
        Metric("supervisor_tokens", "supervisor", "", "lower"),
        Metric("over_context_tokens", "over", "", "lower"),
        Metric("lied", "hallucinated", "", "lower"),
        Metric("caught", "found", "", None),
    )
    score: ClassVar = "return"
    main: ClassVar = tuple(metrics)[:11]
    compared: ClassVar = ("return", "answer_score", "success", "lateness", "tokens")
    caption: ClassVar = (
        f"{_MEANS} Highest mean return of a question first. no fallback: questions that the agents "
        "answered; hallucinations found: of those in drafts; context kept: the exchange that a "
        "question refers to is still there; overhead and model: of a decision."
    )
    unit: ClassVar = "questions"
    kind: Literal["coordination"] = "coordination"

    def constants(self, config: Any) -> dict[str, Any]:
        """Return the constants of the team."""
        return {"team": config.settings().model_dump(mode="json")}
