"""Outcomes of actions, for the state: the same from agents and from a simulation."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from inframind_gym.teams.coordination.rules import Bools, Floats, Ints
from inframind_gym.teams.coordination.settings import ISSUES

FAILURES: Final = ("", "timeout", "garbage", "error")


class Outcome(NamedTuple):
    """Results of k actions, as far as an application sees them; zeros where there is nothing.

    Attributes:
        ms: (k,) of agents and tools, from the beginning of the first to the end of the last.
        prompt, completion: (k,) tokens that the agents read, without cached ones, and wrote.
        context: (k,) tokens by which the conversation grew; negative for a trim.
        failed: (k,) agent whose call failed; -1 for none.
        failure: (k,) a place in FAILURES.
        strategy, complexity: (k,) that the router named; -1 where it named none.
        needs_planning, confidence: (k,) that it said.
        subtasks: (k,) of a plan.
        answered: (k,) sub-tasks, or whole questions, whose search came back.
        docs, duplicates: (k,) passages that it brought, and how many of them were there before.
        score: (k,) mean score of the passages.
        drafted: (k,) whether an answer was written.
        judged, valid: (k,) whether an answer was validated, and found valid.
        verdict: (k,) confidence of the validation.
        issues: (k, 3) number of issues by type.
        severity: (k,) the worst, 1 + its place in SEVERITIES; 0 without issues.
    """

    ms: Ints
    prompt: Ints
    completion: Ints
    context: Ints
    failed: Ints
    failure: Ints
    strategy: Ints
    complexity: Ints
    needs_planning: Bools
    confidence: Floats
    subtasks: Ints
    answered: Ints
    docs: Ints
    duplicates: Ints
    score: Floats
    drafted: Bools
    judged: Bools
    valid: Bools
    verdict: Floats
    issues: Ints
    severity: Ints

    @classmethod
    def empty(cls, k: int) -> Outcome:
        """Return outcomes of k actions that did nothing."""
        fields: dict[str, Any] = {name: np.zeros(k, np.int64) for name in cls._fields}
        fields |= {name: np.zeros(k) for name in ("confidence", "score", "verdict")}
        flags = ("needs_planning", "drafted", "judged", "valid")
        fields |= {name: np.zeros(k, np.bool_) for name in flags}
        fields |= {name: np.full(k, -1) for name in ("failed", "strategy", "complexity")}
        return cls(**fields | {"issues": np.zeros((k, len(ISSUES)), np.int64)})
