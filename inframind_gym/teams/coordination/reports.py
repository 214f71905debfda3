"""Reports of agents, and the outcome of an action that they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.context import Trimmed
from inframind_gym.teams.coordination.contracts import Document, Plan, Retrieved, Route, Validation
from inframind_gym.teams.coordination.outcomes import FAILURES, Outcome
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    COMPLEXITIES,
    ISSUES,
    SEVERITIES,
    STRATEGIES,
)
from inframind_gym.teams.llm.types import estimate_tokens

AGENT_OF: Final = {"draft": "synthesis"}  # who does a task, where its name is another


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a worker.

    Attributes:
        agent: Who.
        slot: Place among those that were sent out together.
        failure: "" or one of timeout, garbage, error.
        message: What went wrong.
        value: Result; None after a failure.
        input_tokens, output_tokens: Of its calls that were answered.
        latency_s: Of its calls; virtual where they are simulated.
        began_s, ended_s: By the clock of this process.
    """

    agent: str
    slot: int
    failure: str
    message: str
    value: Any
    input_tokens: int
    output_tokens: int
    latency_s: float
    began_s: float
    ended_s: float


def outcome_of(
    action: int, reports: Sequence[Report], known: set[str], handoff_tokens: int
) -> Outcome:
    """Return what the reports of an action amount to; its time is left at 0.

    Args:
        action: 0-14, or NOTHING.
        reports: Of the agents, in the order of their slots.
        known: Documents that were found before.
        handoff_tokens: Of the message that each agent returns with.
    """
    outcome = Outcome.empty(1)
    outcome.prompt[0] = sum(report.input_tokens for report in reports)
    outcome.completion[0] = sum(report.output_tokens for report in reports)
    if action == rules.FALLBACK:
        read = [document for r in reports if not r.failure for document in r.value[1]]
        outcome.context[0] = outcome.completion[0] + _tokens(read)
        return outcome
    calls = [report for report in reports if report.agent != "tools"]
    outcome.context[0] = outcome.completion[0] + handoff_tokens * len(calls)
    for report in calls:
        if report.failure:
            outcome.failed[0] = AGENTS.index(AGENT_OF.get(report.agent, report.agent))
            kind = FAILURES.index(report.failure)
            outcome.failure[0] = max(int(outcome.failure[0]), kind)
    for report in reports:
        outcome.drafted[0] |= report.agent == "draft" and not report.failure
        _put(outcome, report.value)
    found = [r.value for r in reports if r.agent == "retrieval" and not r.failure]
    if found:
        _searched(outcome, found, set(known))
    return outcome


def _searched(outcome: Outcome, found: list[Retrieved], known: set[str]) -> None:
    documents = [document for result in found for document in result.documents]
    for document in documents:
        outcome.duplicates[0] += document.doc_id in known
        known.add(document.doc_id)
    outcome.answered[0], outcome.docs[0] = len(found), len(documents)
    outcome.score[0] = sum(result.mean_score for result in found) / len(found)
    outcome.context[0] += _tokens(documents)


def _tokens(documents: Sequence[Document]) -> int:
    return sum(estimate_tokens(document.text) for document in documents)


def _put(outcome: Outcome, value: Any) -> None:
    """Add what an agent or a tool has returned; None after a failure."""
    match value:
        case Route():
            outcome.strategy[0] = STRATEGIES.index(value.strategy)
            outcome.complexity[0] = COMPLEXITIES.index(value.complexity)
            outcome.needs_planning[0] = value.needs_planning
            outcome.confidence[0] = value.confidence
        case Plan():
            outcome.subtasks[0] = len(value.sub_tasks)
        case Validation():
            outcome.judged[0], outcome.valid[0] = True, value.valid
            outcome.verdict[0] = value.confidence
            for issue in value.issues:
                outcome.issues[0, ISSUES.index(issue.type)] += 1
                grade = 1 + SEVERITIES.index(issue.severity)
                outcome.severity[0] = max(int(outcome.severity[0]), grade)
        case Trimmed():
            outcome.context[0] = value.tokens_after - value.tokens_before
