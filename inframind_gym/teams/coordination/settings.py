"""Constants of the coordination team, settings of a query, and what agents hand to one another.

The constants are read from `envs_configs/teams/coordination.yaml`, which explains each of them and
says where it comes from; the settings of a query come from its caller.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, StringConstraints, model_validator

from inframind_gym.configs import (
    Fraction,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
    whole,
    within,
)

Strategy = Literal["vector", "hybrid", "graphrag"]
Complexity = Literal["simple", "medium", "complex"]
IssueType = Literal["hallucination", "missing_source", "inaccuracy"]
Severity = Literal["low", "medium", "high"]

DEFAULT: Final = "coordination"
MODEL: Final = "Qwen/Qwen3-4B-Instruct-2507-FP8"
MOST_QUERY_CHARS: Final = 4096
MOST_CONTEXT: Final = 131_072  # tokens
AGENTS: Final = ("router", "planner", "retrieval", "synthesis", "validation")
TASKS: Final = ("router", "planner", "retrieval", "synthesis", "draft", "validation", "fallback")
FAULTS: Final = ("timeout", "garbage", "error")
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
COMPLEXITIES: Final[tuple[Complexity, ...]] = get_args(Complexity)
ISSUES: Final[tuple[IssueType, ...]] = get_args(IssueType)
SEVERITIES: Final[tuple[str, ...]] = get_args(Severity)

Two = tuple[Fraction, Fraction]
Three = tuple[Fraction, Fraction, Fraction]
Facets = Annotated[int, Field(ge=1, le=3)]  # pieces of evidence, or sub-tasks


# Constants of the team: a class for each section of the file


class ContextLimits(StrictModel):
    """Limits of a conversation in tokens."""

    max_tokens: PositiveInt = MOST_CONTEXT  # of the model
    trim_above_tokens: PositiveInt = 120_000  # longer conversations are trimmed
    trim_to_tokens: PositiveInt = 108_800  # 85 % of 128,000
    oldest_share: Fraction = 0.3  # part of the kept history that is the oldest


class _Limits(StrictModel):  # deadlines and limits of an episode
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


class _Token(StrictModel):  # tokens of prompts and answers
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
    weights: tuple[Positive, ...]  # of the factors; they sum to 1

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len(self.weights) != len(self.factors) or abs(sum(self.weights) - 1.0) > 1e-9:
            raise ValueError("give as many weights as factors, and let them sum to 1")
        return self


class _Passages(StrictModel):  # passages of a search
    whole: PositiveInt
    subtask: PositiveInt
    fallback: PositiveInt
    most: PositiveInt


class _Failures(StrictModel):  # chances of the failures of one call
    timeout: Fraction
    garbage: Fraction
    slow: Fraction
    slow_factor: Positive


class _Questions(StrictModel):  # questions that are asked
    complexity: Three
    facets: tuple[Facets, Facets, Facets]
    kinds: tuple[str, str, str]
    kind_shares: tuple[Three, Three, Three]
    hint_right: Fraction


class _Router(StrictModel):  # its confidence when it is wrong, and right
    complexity_right: Fraction
    strategy_right: Fraction
    confidence: Two


class _Planner(StrictModel):  # sub-tasks of plans by complexity
    covers_all: Fraction
    subtasks: tuple[Facets, Facets, Facets]


class _Retrieval(StrictModel):  # chances of a search
    recall: tuple[Three, Three, Three]
    whole: Three
    rewritten_misses: Three
    duplicate: Fraction
    score: Two
    score_spread: NonNegative


class _Draft(StrictModel):  # chances of a draft, and what its defects leave of its worth
    uses: Two
    hallucinates: Fraction
    per_missing: Fraction
    unsourced: Fraction
    after_issues: Fraction
    hallucination_keeps: Fraction
    unsourced_keeps: Fraction
    crowded: Fraction
    without_history: Fraction


class _Validator(StrictModel):  # its confidence when it rejects, and accepts
    finds: Annotated[dict[IssueType, Fraction], Field(min_length=3)]  # an issue that is there
    false_alarm: Fraction
    confidence: Two


class _History(StrictModel):  # exchanges before the question of a conversation
    exchanges: Annotated[int, Field(ge=1, le=16)]
    tokens: tuple[NonNegativeInt, PositiveInt]
    refers: Fraction


class CoordinationSettings(StrictModel):
    """`coordination.yaml`."""

    name: str
    description: str
    context: ContextLimits
    limits: _Limits
    reward: RewardSettings
    server: ServerSettings
    tokens: _Token
    passages: _Passages
    search_s: Annotated[dict[Strategy | Literal["rewrite"], NonNegative], Field(min_length=4)]
    trim_s: NonNegative
    failures: _Failures
    questions: _Questions
    router: _Router
    planner: _Planner
    retrieval: _Retrieval
    draft: _Draft
    validator: _Validator
    history: _History

    @property
    def fallback_s(self) -> float:
        """Seconds of the basic retrieval and its answer, which are always the same."""
        tokens, server = self.tokens, self.server
        prompt = tokens.query + self.passages.fallback * tokens.passage
        read = prompt / server.prefill_tokens_per_s
        return self.search_s["vector"] + read + tokens.fallback / server.decode_tokens_per_s

    def within_context(self, length: int) -> CoordinationSettings:
        """Return the constants for another length of the context; a trim's lengths follow."""
        limits, share = self.context, min(length / 128_000, 1.0)
        shorter = {
            "max_tokens": min(limits.max_tokens, length) if share < 1.0 else limits.max_tokens,
            "trim_above_tokens": int(limits.trim_above_tokens * share),
            "trim_to_tokens": int(limits.trim_to_tokens * share),
        }
        return self.model_copy(update={"context": limits.model_copy(update=shorter)})

    def of_query(self, options: QuerySettings, *, slow: bool) -> CoordinationSettings:
        """Return the constants with the limits of a query.

        A later deadline is for a slower server: the time that is kept for the fallback grows with
        it, unless the rates are those of the simulation (`slow` is False).
        """
        limits, server = self.limits, self.server
        times = (options.deadline_s or limits.hard_s) / limits.hard_s
        seconds = ("simple_s", "target_s", "hard_s", "call_timeout_s")
        narrowed = {
            **{name: getattr(limits, name) * times for name in seconds},
            "max_iterations": min(limits.max_iterations, options.max_iterations),
            "max_retries": min(limits.max_retries, options.retry.max_retries),
            "backoff_factor": options.retry.backoff_factor,
            "parallel_calls": min(limits.parallel_calls, options.max_parallel_calls),
        }
        rates = ("decode_tokens_per_s", "prefill_tokens_per_s")
        slower = {name: getattr(server, name) / (times if slow else 1.0) for name in rates}
        limits, server = limits.model_copy(update=narrowed), server.model_copy(update=slower)
        return self.model_copy(update={"limits": limits, "server": server})


@cache
def load_settings(name_or_path: str | Path = DEFAULT) -> CoordinationSettings:
    """Read the constants of a team by name or path."""
    return load_yaml_model(find_config("teams", name_or_path), CoordinationSettings)


# Settings of a query


_FAULT: Final = whole(
    f"(?:{'|'.join(TASKS)}):(?:{'|'.join(FAULTS)})",
    f"is no fault: give one of {', '.join(TASKS)}, then : and one of {', '.join(FAULTS)}",
)


class Query(StrictModel):
    """Question of a user."""

    query: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MOST_QUERY_CHARS)
    ]


class Retry(StrictModel):
    """Attempts of a call after the first, all within the deadline of the query."""

    max_retries: Annotated[int, within(0, 10)] = 3
    backoff_factor: Annotated[float, within(1.0, 10.0)] = 1.5
    timeout_seconds: Positive = 30.0


class QuerySettings(StrictModel):
    """Settings of one query, by the names of the supervisor's configuration."""

    policy: str = "seed_supervisor"  # who decides: a coordination policy, or "module:Class"
    enable_multi_agent: bool = True  # else basic retrieval answers
    fallback_to_basic_rag: bool = True  # else a query fails where basic retrieval would answer it
    parallel_tool_calls: bool = True  # else retrievals of one decision follow one another
    max_parallel_calls: Annotated[int, within(1, 3)] = 3  # retrievals of one decision
    # "structured" adds the structured answer to the metadata, "full_history" the handoffs.
    output_mode: Literal["structured", "full_history", "last_message"] = "structured"
    create_forward_message_tool: bool = True  # else the supervisor writes the answer once more
    add_handoff_back_messages: bool = True  # keep a message for each return to the supervisor
    interrupt_before: tuple[Literal["human", "validator"], ...] = ()  # where a person is asked
    interrupt_after: tuple[Literal["router", "planner"], ...] = ()
    max_iterations: Annotated[int, within(1, 10)] = 10  # decisions of the supervisor
    agent_decision_timeout_ms: Positive = 200.0  # of a decision, less calls; more is an event
    deadline_s: Positive | None = None  # the other deadlines scale with it; None: the team's
    rewrite: Literal["lexical", "model"] = "lexical"  # who rewrites queries for retrieval
    retry: Retry = Field(default_factory=Retry)
    fault: Annotated[str, _FAULT] | None = None  # calls that go wrong on purpose: "planner:timeout"


# What agents hand to one another


class Document(StrictModel):
    """A passage that was retrieved."""

    doc_id: str  # its name in the corpus
    text: str
    source: str  # file and heading, for readers
    score: float  # the higher the better; scales of strategies differ


class Issue(StrictModel):
    """Something that is wrong with an answer: no source says so, a source is missing or differs."""

    type: IssueType
    severity: Severity
    description: str = Field(min_length=1)  # the claim, and what is wrong with it


class Route(StrictModel):
    """Decision of the router: strategy, complexity, need of a plan, and its confidence."""

    strategy: Strategy
    complexity: Complexity
    needs_planning: bool
    confidence: Fraction


class Plan(StrictModel):
    """Sub-tasks of a query; "sequential" ones are searched for one a decision."""

    original_query: str
    sub_tasks: tuple[Annotated[str, Field(min_length=1, max_length=400)], ...] = Field(
        min_length=1, max_length=5
    )
    execution_order: Literal["parallel", "sequential"]
    estimated_complexity: Literal["low", "medium", "high"]


class Retrieved(StrictModel):
    """Passages that retrieval found for one sub-task."""

    sub_task: str
    strategy: Strategy
    queries: tuple[str, ...]  # the question, or its rewritten forms
    documents: tuple[Document, ...] = Field(max_length=10)  # best first, without duplicates
    mean_score: Fraction = 0.0  # of the documents; 1 is the best that the strategy can give
    withheld: tuple[tuple[str, str], ...] = ()  # kept back by the screen, with the reason


class Synthesis(StrictModel):
    """Documents of several searches, each once, the most useful first, and figures of the merge."""

    documents: tuple[Document, ...]
    synthesis_metadata: dict[str, Any]


class Validation(StrictModel):
    """Verdict on an answer; the suggested action is advice for people, which no policy reads."""

    valid: bool
    confidence: Fraction
    issues: tuple[Issue, ...] = Field(max_length=20)
    suggested_action: Literal["accept", "regenerate", "refine"]


class AgentResponse(StrictModel):
    """Answer to a query."""

    content: str  # with the numbers of its sources in brackets
    sources: tuple[Document, ...] = ()  # in the order of their numbers
    metadata: dict[str, Any]  # decisions, agents' outputs, handoffs, tokens, context, failures
    validation_score: Fraction = 0.0  # confidence that the answer is valid; 0 if not validated
    processing_time: NonNegative = 0.0  # seconds; virtual with simulated answers
    # Earlier messages that the query kept; not serialised.
    history: tuple[dict[str, Any], ...] = Field(default=(), exclude=True, repr=False)

    def summary(self) -> tuple[Literal["complete", "failed"], dict[str, Any]]:
        """Return the status of a run of this one query, and its summary: answer and figures."""
        figures = {k: v for k, v in self.metadata.items() if isinstance(v, str | int | float)}
        failed = figures["ended_by"] in ("failed", "context")
        return "failed" if failed else "complete", {**figures, "content": self.content}
