"""Data that agents of the coordination team hand to one another."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from inframind_gym.configs import Fraction, NonNegative, StrictModel

Strategy = Literal["vector", "hybrid", "graphrag"]
Complexity = Literal["simple", "medium", "complex"]
Action = Literal["accept", "regenerate", "refine"]
IssueType = Literal["hallucination", "missing_source", "inaccuracy"]
Severity = Literal["low", "medium", "high"]


class Document(StrictModel):
    """A passage that was retrieved.

    Attributes:
        doc_id: Name of the passage in its corpus.
        text: Its text.
        source: Where it comes from: a file and a heading.
        score: Of the strategy that found it, the higher the better; scales of strategies differ.
    """

    doc_id: str
    text: str
    source: str
    score: float


class Issue(StrictModel):
    """Something that is wrong with an answer.

    Attributes:
        type: "hallucination" (no source says so), "missing_source" (a claim without the source
            that it needs), or "inaccuracy" (a source says otherwise).
        severity: "low", "medium" or "high".
        description: The claim, and what is wrong with it.
    """

    type: IssueType
    severity: Severity
    description: str = Field(min_length=1)


class Route(StrictModel):
    """Decision of the router.

    Attributes:
        strategy: How to retrieve.
        complexity: Of the query.
        needs_planning: The query is better split into sub-tasks.
        confidence: Of the decision.
    """

    strategy: Strategy
    complexity: Complexity
    needs_planning: bool
    confidence: Fraction


class Plan(StrictModel):
    """Sub-tasks of a query.

    Attributes:
        original_query: The query.
        sub_tasks: Questions that can be answered one by one.
        execution_order: "parallel" unless one needs the answer of another; "sequential" sub-tasks
            are searched for one a decision, with what was found before.
        estimated_complexity: By the planner.
    """

    original_query: str
    sub_tasks: tuple[Annotated[str, Field(min_length=1, max_length=400)], ...] = Field(
        min_length=1, max_length=5
    )
    execution_order: Literal["parallel", "sequential"]
    estimated_complexity: Literal["low", "medium", "high"]


class Retrieved(StrictModel):
    """What retrieval found for one sub-task.

    Attributes:
        sub_task: Question that was asked.
        strategy: How.
        queries: What was searched for: the question, or its rewritten forms.
        documents: Best first, at most ten, without duplicates.
        mean_score: Of the documents, from 0 to 1 (the best that the strategy can give).
        withheld: Documents that the screen kept back, with the reason.
    """

    sub_task: str
    strategy: Strategy
    queries: tuple[str, ...]
    documents: tuple[Document, ...] = Field(max_length=10)
    mean_score: Fraction = 0.0
    withheld: tuple[tuple[str, str], ...] = ()


class Synthesis(StrictModel):
    """The results of several searches as one.

    Attributes:
        documents: Of all sub-tasks, each once, the most useful first.
        synthesis_metadata: Documents before and after merging, sub-tasks without documents.
    """

    documents: tuple[Document, ...]
    synthesis_metadata: dict[str, Any]


class Validation(StrictModel):
    """Verdict on an answer.

    Attributes:
        valid: The answer may be given.
        confidence: Of the verdict.
        issues: What is wrong with the answer.
        suggested_action: What to do about it: advice for people, which no policy reads.
    """

    valid: bool
    confidence: Fraction
    issues: tuple[Issue, ...] = Field(max_length=20)
    suggested_action: Action


class AgentResponse(StrictModel):
    """Answer to a query.

    Attributes:
        content: Text with the numbers of its sources in brackets.
        sources: Documents that the text cites, in the order of their numbers.
        metadata: Decisions, agents' outputs, handoffs, tokens, context, failures.
        validation_score: Confidence that the answer is valid, from 0 to 1; 0 where nobody checked.
        processing_time: Seconds from query to answer; virtual with simulated answers.
        history: Earlier messages that the query kept; no part of what is written out.
    """

    content: str
    sources: tuple[Document, ...]
    metadata: dict[str, Any]
    validation_score: Fraction
    processing_time: NonNegative
    history: tuple[dict[str, Any], ...] = Field(default=(), exclude=True, repr=False)
