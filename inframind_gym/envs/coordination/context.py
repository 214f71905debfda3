"""State of questions as policies see it."""

from __future__ import annotations

from typing import NamedTuple

from inframind_gym.teams.coordination.question import Question
from inframind_gym.teams.coordination.rules import Bools, Floats, Ints
from inframind_gym.teams.coordination.settings import CoordinationSettings
from inframind_gym.teams.coordination.state import CoordinationState


class CoordinationSpec(NamedTuple):
    """Facts of a run that a policy is reset with.

    Attributes:
        settings: constants of the team.
        max_num_seqs: calls that the server decodes together.
        is_exact: whether the questions are of those that the exact optimum solves.
    """

    settings: CoordinationSettings
    max_num_seqs: int
    is_exact: bool = False


class CoordinationContext(NamedTuple):
    """Input of a policy; arrays with a first axis of k questions.

    The attributes are those of `teams.coordination.state.CoordinationState`. `truth` holds the
    simulated questions, and their places in them, for policies with `sees_truth` alone.
    """

    mask: Bools
    hint: Ints
    refers: Bools
    routed: Bools
    strategy: Ints
    complexity: Ints
    needs_planning: Bools
    confidence: Floats
    planned: Bools
    subtasks: Ints
    pending: Ints
    searched: Bools
    searches: Ints
    docs: Ints
    duplicates: Ints
    score: Floats
    rewritten: Bools
    merged: Bools
    drafted: Bools
    judged: Bools
    valid: Bools
    verdict: Floats
    issues: Ints
    severity: Ints
    regenerations: Ints
    retries: Ints
    failed: Bools
    context: Ints
    trimmed: Bools
    elapsed_ms: Ints
    iteration: Ints
    setup_ms: Ints
    agent_ms: Ints
    total_tokens: Ints
    truth: tuple[Question, Ints] | None = None


def contexts(
    state: CoordinationState, rows: Ints, truth: Question | None = None
) -> CoordinationContext:
    """Return the state of `rows` (k,) at the decisions that they wait for."""
    seen = [getattr(state, name)[rows] for name in CoordinationContext._fields[:-1]]
    return CoordinationContext._make((*seen, None if truth is None else (truth, rows)))
