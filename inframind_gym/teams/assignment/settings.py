"""Constants of the simulated assignment team, `envs_configs/teams/assignment.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from inframind_gym.configs import (
    Fraction,
    Name,
    NonNegative,
    NonNegativeInt,
    Number,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
)
from inframind_gym.teams.assignment.rules import AGENTS, PROVIDERS, TASK_TYPES

DEFAULT_TEAM = "assignment"
TaskType = Literal["analysis", "coding", "research", "validation"]
Agent = Literal["analyst", "coder", "researcher", "validator"]
Provider = Literal["openai", "anthropic"]


ByType = Annotated[dict[TaskType, Number], Field(min_length=len(TASK_TYPES))]


class Quality(StrictModel):
    """Variation of the true quality of an answer."""

    complexity_slope: NonNegative
    task_sd: NonNegative
    answer_sd: NonNegative


class SimulatedProvider(StrictModel):
    """Quality and speed of a provider's model; `envs_configs/prices.yaml` has its price."""

    model: str
    gain: ByType
    output_tokens_median: Positive
    overhead_s: NonNegative
    per_token_s: NonNegative


class Calls(StrictModel):
    """Length and latency of the agents' calls."""

    max_tokens: PositiveInt
    system_prompt_tokens: NonNegativeInt
    complexity_length: Fraction
    length_sd: NonNegative
    latency_sd: NonNegative


class Judge(StrictModel):
    """Scores and calls of the judge."""

    provider: Provider
    bias: Number
    noise_sd: NonNegative
    match_expert: Fraction
    match_other: Fraction
    prompt_tokens: NonNegativeInt
    output_tokens_median: Positive


class ArrivalSettings(StrictModel):
    """Order in which tasks arrive."""

    skewed_type: TaskType
    skewed_share: Fraction
    bursty_stay: Fraction
    drift_drop: Fraction
    drift_earliest: Fraction
    drift_latest: Fraction


class BankTask(StrictModel):
    """A task of the bank; `tokens` of its description, system prompt not counted."""

    id: Name
    task_type: TaskType
    complexity: Fraction
    priority: Fraction
    tokens: PositiveInt
    description: Annotated[str, Field(min_length=1)]


class AssignmentSettings(StrictModel):
    """The whole file; `skill` is the mean true quality of each agent's answers by type."""

    name: Name
    description: str = ""
    skill: Annotated[dict[Agent, ByType], Field(min_length=len(AGENTS))]
    quality: Quality
    providers: Annotated[dict[Provider, SimulatedProvider], Field(min_length=len(PROVIDERS))]
    calls: Calls
    judge: Judge
    arrivals: ArrivalSettings
    tasks: tuple[BankTask, ...] = Field(min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _whole(self) -> AssignmentSettings:
        if self.arrivals.drift_earliest > self.arrivals.drift_latest:
            raise ValueError("drift_earliest must not be above drift_latest")
        missing = set(TASK_TYPES) - {task.task_type for task in self.tasks}
        if missing:
            raise ValueError(f"tasks: none is of type {', '.join(sorted(missing))}; add one")
        if len({task.id for task in self.tasks}) < len(self.tasks):
            raise ValueError("tasks: an id is given twice; ids must differ")
        return self


@cache
def load_team(name_or_path: str | Path = DEFAULT_TEAM) -> AssignmentSettings:
    """Read the constants of a simulated team, by shipped name or from a file.

    Raises:
        ConfigError: There is no such file, or it is wrong.
    """
    return load_yaml_model(find_config("teams", name_or_path), AssignmentSettings)
