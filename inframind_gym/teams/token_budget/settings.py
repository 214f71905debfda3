"""Constants of the token-budget team, read from `envs_configs/teams/token_budget.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
)

AgentName = Literal["planner", "executor", "critic"]
Complexity = Literal["simple", "moderate", "complex"]
Strategy = Literal["frontload", "critique_heavy", "adaptive"]
DEFAULT: Final = "token_budget"
AGENTS: Final[tuple[AgentName, ...]] = get_args(AgentName)
SIZES: Final = ("S", "M", "L")
COMPLEXITIES: Final[tuple[Complexity, ...]] = get_args(Complexity)
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)

Shares3 = tuple[Fraction, Fraction, Fraction]
Factors = tuple[Positive, Positive, Positive]
Lengths = tuple[PositiveInt, PositiveInt, PositiveInt]
Points3 = tuple[NonNegative, NonNegative, NonNegative]
PerComplexity = Annotated[dict[Complexity, NonNegative], Field(min_length=3)]


class _Overhead(StrictModel):  # tokens of the calls that are no agent's
    preflight: NonNegativeInt
    self_eval: NonNegativeInt


class ProxyWeights(StrictModel):
    """Weights of the proxies of quality."""

    self_eval: Positive
    flags: NonNegative
    checklist: NonNegative


class _Quality(StrictModel):  # points of true quality
    plan: Points3
    sections: tuple[NonNegative, NonNegative, NonNegative, NonNegative, NonNegative]
    per_defect: NonNegative


class _PromptTokens(StrictModel):  # tokens of the parts of a prompt
    task: NonNegativeInt
    plan: NonNegativeInt
    draft: NonNegativeInt
    per_flag: NonNegativeInt


class _AnswerLengths(StrictModel):  # tokens that an agent would write, without a limit
    planner: Lengths
    executor: Lengths
    revision: Lengths
    critic: Lengths
    factors: tuple[Positive, ...] = Field(min_length=1, max_length=16)
    weights: tuple[Positive, ...]  # of the factors; they sum to 1


class Chance(StrictModel):
    """A chance as a product of factors; what is left out does not matter to it."""

    by_size: Factors = (1.0, 1.0, 1.0)
    by_complexity: Factors = (1.0, 1.0, 1.0)
    by_plan: Factors = (1.0, 1.0, 1.0)
    cut: Fraction = 1.0


class _SelfEval(StrictModel):  # noise of self-evaluations, in points
    bias: NonNegative  # of all
    plan_bias: NonNegative  # instead of `bias`, while there is only a plan
    run_sd: NonNegative  # common to a run
    step_sd: NonNegative  # of one evaluation


class _Seconds(StrictModel):  # virtual time of a call
    first_token: NonNegative
    per_token: NonNegative


class _Simulation(StrictModel):  # the simulated task and team
    complexity_share: PerComplexity
    preflight_right: Fraction
    quality: _Quality
    prompt_tokens: _PromptTokens
    lengths: _AnswerLengths
    planner: Chance
    section: Chance
    defect: Chance
    fill: Chance
    resolve: Chance
    find_alone: Fraction
    new_defect: Fraction
    flag: Chance
    self_eval: _SelfEval
    claimed_points_per_flag: NonNegative
    checklist_of_plan: Shares3
    seconds: _Seconds


class TeamSettings(StrictModel):
    """`token_budget.yaml`; the file says where its numbers come from."""

    name: str
    description: str
    token_unit: PositiveInt
    strategies: Annotated[dict[Strategy, Shares3], Field(min_length=3)]  # of each agent
    roi_threshold: NonNegative
    minimum_budget: PerComplexity
    min_completion_tokens: PositiveInt
    prompt_estimate: Fraction
    reallocation_share: Fraction
    overhead: _Overhead
    max_tokens: Annotated[dict[AgentName, Lengths], Field(min_length=3)]  # by size
    proxy_weights: ProxyWeights
    simulation: _Simulation

    @model_validator(mode="after")
    def _whole(self) -> Self:
        shares = {f"strategies.{name}": each for name, each in self.strategies.items()}
        lengths = self.simulation.lengths
        if len(lengths.weights) != len(lengths.factors):
            raise ValueError("lengths: give as many weights as factors")
        for name, each in (shares | {"lengths.weights": lengths.weights}).items():
            if abs(sum(each) - 1.0) > 1e-9:
                raise ValueError(f"{name}: they sum to {sum(each):g}, not to 1")
        numbers = [
            self.min_completion_tokens,
            *vars(self.overhead).values(),
            *(size for sizes in self.max_tokens.values() for size in sizes),
            *vars(self.simulation.prompt_tokens).values(),
        ]
        if wrong := [number for number in numbers if number % self.token_unit]:
            raise ValueError(
                f"{wrong[0]} tokens: overhead, max_tokens, prompt_tokens and min_completion_tokens "
                f"must be multiples of token_unit ({self.token_unit})"
            )
        return self


def load_settings(name_or_path: str | Path = DEFAULT) -> TeamSettings:
    """Read the constants of a team by name or path."""
    return load_yaml_model(find_config("teams", name_or_path), TeamSettings)
