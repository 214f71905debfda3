"""Constants of the coordination team, read from `envs_configs/teams/coordination.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Final, Self, get_args

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
from inframind_gym.teams.coordination.context import ContextLimits
from inframind_gym.teams.coordination.contracts import Complexity, IssueType, Severity, Strategy

DEFAULT: Final = "coordination"
AGENTS: Final = ("router", "planner", "retrieval", "synthesis", "validation")
STRATEGIES: Final[tuple[str, ...]] = get_args(Strategy)
COMPLEXITIES: Final[tuple[str, ...]] = get_args(Complexity)
ISSUES: Final[tuple[str, ...]] = get_args(IssueType)
SEVERITIES: Final[tuple[str, ...]] = get_args(Severity)

Two = tuple[Fraction, Fraction]
Three = tuple[Fraction, Fraction, Fraction]
_Facets = Annotated[int, Field(ge=1, le=3)]


class Limits(StrictModel):
    """Deadlines and limits of an episode."""

    simple_s: Positive
    target_s: Positive
    hard_s: Positive
    max_iterations: PositiveInt
    max_retries: NonNegativeInt
    backoff_s: NonNegative
    backoff_factor: Positive
    call_timeout_s: Positive
    parallel_calls: Annotated[int, Field(ge=1, le=3)]
    decision_s: Positive
    overhead_s: NonNegative


class RewardSettings(StrictModel):
    """Weights of the reward's terms."""

    attribution: NonNegative
    not_validated: NonNegative
    per_2_s: NonNegative
    per_4096_tokens: NonNegative


class ServerSettings(StrictModel):
    """Rates of the server that all agents share."""

    decode_tokens_per_s: Positive
    prefill_tokens_per_s: Positive
    max_num_seqs: PositiveInt


class TokenSettings(StrictModel):
    """Tokens of prompts and answers."""

    instructions: NonNegativeInt
    query: PositiveInt
    passage: PositiveInt
    history_excerpt: NonNegativeInt
    handoff: NonNegativeInt
    issues: NonNegativeInt
    router: PositiveInt
    planner: PositiveInt
    retrieval: PositiveInt
    synthesis: PositiveInt
    draft: tuple[PositiveInt, PositiveInt, PositiveInt]
    validation: PositiveInt
    fallback: PositiveInt
    supervisor: PositiveInt
    factors: tuple[Positive, ...] = Field(min_length=1, max_length=16)
    weights: tuple[Positive, ...]

    @model_validator(mode="after")
    def _distribution(self) -> Self:
        if len(self.weights) != len(self.factors) or abs(sum(self.weights) - 1.0) > 1e-9:
            raise ValueError("weights must be as many as factors, and sum to 1")
        return self


class Passages(StrictModel):
    """Passages of a search."""

    whole: PositiveInt
    subtask: PositiveInt
    fallback: PositiveInt
    most: PositiveInt


class SearchSeconds(StrictModel):
    """Seconds of a search by its strategy, and of a rewriting."""

    vector: NonNegative
    hybrid: NonNegative
    graphrag: NonNegative
    rewrite: NonNegative

    @property
    def values(self) -> tuple[float, float, float]:
        """In the order of STRATEGIES."""
        return self.vector, self.hybrid, self.graphrag


class Failures(StrictModel):
    """Chances of the failures of one call."""

    timeout: Fraction
    garbage: Fraction
    slow: Fraction
    slow_factor: Positive


class Questions(StrictModel):
    """Questions that are asked."""

    complexity: Three
    facets: tuple[_Facets, _Facets, _Facets]
    kinds: tuple[str, str, str]
    kind_shares: tuple[Three, Three, Three]
    hint_right: Fraction

    @model_validator(mode="after")
    def _distributions(self) -> Self:
        for shares in (self.complexity, *self.kind_shares):
            if abs(sum(shares) - 1.0) > 1e-9:
                raise ValueError(f"the shares {list(shares)} sum to {sum(shares):g}, not to 1")
        return self


class Router(StrictModel):
    """Chances that the router is right, and its confidence when it is wrong and right."""

    complexity_right: Fraction
    strategy_right: Fraction
    confidence: Two


class Planner(StrictModel):
    """Chance that a plan has all of a question, and the sub-tasks of plans by complexity."""

    covers_all: Fraction
    subtasks: tuple[_Facets, _Facets, _Facets]


class Retrieval(StrictModel):
    """Chances of a search."""

    recall: tuple[Three, Three, Three]
    whole: Three
    rewritten_misses: Three
    duplicate: Fraction
    score: Two
    score_spread: NonNegative


class Draft(StrictModel):
    """Chances of a draft, and what its defects leave of its worth."""

    uses: Two
    hallucinates: Fraction
    per_missing: Fraction
    unsourced: Fraction
    after_issues: Fraction
    hallucination_keeps: Fraction
    unsourced_keeps: Fraction
    crowded: Fraction
    without_history: Fraction


class Finds(StrictModel):
    """Chances that a validation finds an issue that is there."""

    hallucination: Fraction
    missing_source: Fraction
    inaccuracy: Fraction

    @property
    def values(self) -> tuple[float, float, float]:
        """In the order of ISSUES."""
        return self.hallucination, self.missing_source, self.inaccuracy


class Validator(StrictModel):
    """Chances of a validation, and its confidence when it rejects and accepts."""

    finds: Finds
    false_alarm: Fraction
    confidence: Two


class History(StrictModel):
    """Exchanges before the question of a conversation."""

    exchanges: Annotated[int, Field(ge=1, le=16)]
    tokens: tuple[NonNegativeInt, PositiveInt]
    refers: Fraction


class CoordinationSettings(StrictModel):
    """`coordination.yaml`; the file says where its numbers come from."""

    name: str
    description: str
    context: ContextLimits
    limits: Limits
    reward: RewardSettings
    server: ServerSettings
    tokens: TokenSettings
    passages: Passages
    search_s: SearchSeconds
    trim_s: NonNegative
    failures: Failures
    questions: Questions
    router: Router
    planner: Planner
    retrieval: Retrieval
    draft: Draft
    validator: Validator
    history: History

    @property
    def fallback_s(self) -> float:
        """Seconds of the basic retrieval and its answer, which are always the same."""
        tokens, server = self.tokens, self.server
        prompt = tokens.query + self.passages.fallback * tokens.passage
        read = prompt / server.prefill_tokens_per_s
        return self.search_s.vector + read + tokens.fallback / server.decode_tokens_per_s


def load_settings(name_or_path: str | Path = DEFAULT) -> CoordinationSettings:
    """Read the constants of a team by name or path.

    Raises:
        ConfigError: the file is missing or wrong; says where.
    """
    return _load(find_config("teams", name_or_path))


@cache
def _load(path: Path) -> CoordinationSettings:
    return load_yaml_model(path, CoordinationSettings)
