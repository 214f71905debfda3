"""A question without noise: its facts, and where it stands."""

from __future__ import annotations

from typing import Final, NamedTuple

from inframind_gym.teams.coordination.question import Question
from inframind_gym.teams.coordination.settings import STRATEGIES

_SUBTASK: Final = 3  # level of a search for a sub-task
UNJUDGED, VALID, FLAWED = range(3)


class Position(NamedTuple):
    """State of a question without noise.

    Attributes:
        elapsed: milliseconds.
        iteration: decisions so far.
        rewritten, merged: flags.
        waiting: sub-tasks that wait; -1 without a plan.
        searched: bits of the strategies by which the whole question was searched for.
        found: bits of the pieces of evidence.
        searches: that came back, 2 for more.
        docs, duplicates, unread: passages, those brought again, and tokens that nobody has read.
        draft: pieces that it covers, whether it hallucinates, whether it leaves sources out; None
            without one.
        judged: UNJUDGED, VALID or FLAWED.
        regenerations: so far.
    """

    elapsed: int = 0
    iteration: int = 0
    rewritten: bool = False
    merged: bool = False
    waiting: int = -1
    searched: int = 0
    found: int = 0
    searches: int = 0
    docs: int = 0
    duplicates: int = 0
    unread: int = 0
    draft: tuple[int, bool, bool] | None = None
    judged: int = UNJUDGED
    regenerations: int = 0


class Facts(NamedTuple):
    """A question.

    Attributes:
        complexity: of the question.
        hits: bits of the evidence that a search finds, by plain or rewritten, level (whole or
            sub-task) and strategy.
        gap: piece that a plan leaves out, -1 for none.
        has_fallback: pieces that the fallback finds.
    """

    complexity: int
    hits: tuple[tuple[tuple[int, ...], ...], ...]
    gap: int
    has_fallback: int


def facts_of(question: Question, row: int) -> Facts:
    """Return the facts of a simulated question."""
    complexity, kind = int(question.complexity[row]), int(question.kind[row])
    pieces, luck = int(question.facets[row]), question.luck[row].tolist()

    def bits(rewritten: int, level: int, strategy: int) -> int:
        chance = question.chances[rewritten, level, kind, strategy]
        return sum(int(luck[i] < chance) << i for i in range(pieces))

    hits = tuple(
        tuple(
            tuple(bits(rewritten, level, strategy) for strategy in range(len(STRATEGIES)))
            for level in (complexity, _SUBTASK)
        )
        for rewritten in range(2)
    )
    return Facts(complexity, hits, int(question.gap[row]), hits[0][0][0].bit_count())
