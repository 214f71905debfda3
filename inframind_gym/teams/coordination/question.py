"""The truth of simulated questions: what they need, what was found, what the draft is worth.

A question is of some complexity and kind, and needs one to three pieces of evidence. In a
conversation a piece may be in an exchange before, and is gone when that exchange is trimmed. All
draws are functions of the question's key, so that every policy meets the same question. The numbers
are in `envs_configs/teams/coordination.yaml`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.coordination.rules import Bools, Floats, Ints
from inframind_gym.teams.coordination.settings import AGENTS, STRATEGIES, CoordinationSettings

STREAM_QUESTION: Final = 60  # of random numbers, apart from those of `simulator.rng`
FACETS: Final = 3  # pieces of evidence at most
_OF_QUESTION: Final = np.arange(14, dtype=np.int64)
_OF_HISTORY: Final = np.arange(14, 34, dtype=np.int64)  # 4, and one for each exchange, up to 16


class Pinned(NamedTuple):
    """Facts of questions that are given and not drawn; None: drawn.

    Attributes:
        complexity, kind: of the question.
        history: tokens of the exchanges before; 0: no conversation.
        refers_to: exchange to which the question refers, 0 the oldest; -1: to none.
        timing_out: agent whose calls all time out; -1: none.
    """

    complexity: int | None = None
    kind: int | None = None
    history: int | None = None
    refers_to: int | None = None
    timing_out: int = -1


class Question:
    """n questions with the state of their evidence and drafts; all arrays have a row a question.

    Args:
        settings: constants of the team.
        n: number of questions.
        conversation: share of the questions with exchanges before.
        noise: whether lengths vary, calls fail and sub-tasks bring passages again.
        newest_only: whether a trim keeps the newest exchanges alone.

    Attributes:
        complexity, kind, facets: (n,) true ones, and the pieces of evidence that are needed.
        hint: (n,) complexity by the question's words.
        refers_to: (n,) exchange that holds the first piece, -1 for none.
        found: (n, 3) evidence that was found; `plain`: what would be without a rewriting.
        covered, hallucinated, unsourced: (n, 3), (n,), (n,) of the draft.
        lied, caught: (n,) drafts that hallucinated, and those of them that were found.
        history, kept: (n, x) tokens of the exchanges before, and which are still there.
        unread: (n,) tokens of passages that no agent has read.
        stale: (n,) tokens of the conversation behind the cut of a trim, which no cache holds.
    """

    def __init__(
        self,
        settings: CoordinationSettings,
        n: int,
        *,
        conversation: float = 0.0,
        noise: bool = True,
        newest_only: bool = False,
    ) -> None:
        self.settings, self._conversation, self.noise = settings, conversation, noise
        self.newest_only = newest_only
        self._tables()
        self.keys = np.zeros(n, np.uint64)
        (
            self.complexity,
            self.kind,
            self.facets,
            self.hint,
            self.refers_to,
            self.timing_out,
            self.said_complexity,
            self.said_strategy,
            self.gap,
            self.unread,
            self.stale,
            self.lied,
            self.caught,
        ) = np.zeros((13, n), np.int64)
        self.confidence, self.luck = np.zeros(n), np.zeros((n, FACETS))
        self.found, self.plain, self.open, self.covered = np.zeros((4, n, FACETS), np.bool_)
        self.hallucinated, self.unsourced = np.zeros((2, n), np.bool_)
        self.calls = np.zeros((n, len(AGENTS) + 1), np.int64)
        exchanges = settings.history.exchanges
        self.history = np.zeros((n, exchanges), np.int64)
        self.kept = np.ones((n, exchanges), np.bool_)

    def _tables(self) -> None:
        settings = self.settings
        questions, retrieval, tokens = settings.questions, settings.retrieval, settings.tokens
        self._shares = np.cumsum(questions.complexity)
        self._kinds = np.cumsum(questions.kind_shares, axis=1)
        self._facets = np.array(questions.facets)
        self._subtasks = np.array(settings.planner.subtasks)
        recall = np.array(retrieval.recall)  # kinds x strategies
        self.best_strategy = recall.argmax(axis=1)
        # Chances of a search: plain or rewritten; complexity of a whole question, or a sub-task;
        # kind; strategy.
        plain = np.concatenate([np.array(retrieval.whole)[:, None, None] * recall, recall[None]])
        misses = np.array(retrieval.rewritten_misses) * (1.0 - plain)
        self.chances = np.stack([plain, 1.0 - misses])
        self._search_s = np.array(settings.search_s.values)
        self._draft_length = np.array(tokens.draft)
        self._factors = np.array(tokens.factors if self.noise else (1.0,))
        self._weights = np.cumsum(tokens.weights if self.noise else (1.0,))
        self._weights[-1] = 1.0

    def start(self, rows: Ints, keys: NDArray[np.uint64], pinned: Pinned | None = None) -> None:
        """Begin new questions, drawn from their keys (k,)."""
        pinned = Pinned() if pinned is None else pinned
        settings, router = self.settings, self.settings.router
        at = np.zeros((len(rows), 1), np.int64)
        u = uniform_array(keys[:, None], STREAM_QUESTION, at, _OF_QUESTION)
        for flags in (self.found, self.plain, self.open, self.covered, self.hallucinated):
            flags[rows] = False
        for part in (self.calls, self.history, self.unread, self.stale, self.lied, self.caught):
            part[rows] = 0
        self.unsourced[rows] = False
        self.keys[rows], self.kept[rows], self.timing_out[rows] = keys, True, pinned.timing_out
        complexity = np.minimum((u[:, :1] > self._shares).sum(axis=1), 2)
        if pinned.complexity is not None:
            complexity[:] = pinned.complexity
        kind = np.minimum((u[:, 1:2] > self._kinds[complexity]).sum(axis=1), 2)
        if pinned.kind is not None:
            kind[:] = pinned.kind
        self.complexity[rows], self.kind[rows] = complexity, kind
        self.facets[rows], self.luck[rows] = self._facets[complexity], u[:, 2:5]
        self.hint[rows] = seen_as(complexity, u[:, 5] < settings.questions.hint_right, u[:, 6])
        right, knows = u[:, 7] < router.complexity_right, u[:, 8] < router.strategy_right
        self.said_complexity[rows] = seen_as(complexity, right, u[:, 9])
        best = self.best_strategy[kind]
        other = (best + 1 + (u[:, 10] < 0.5)) % len(STRATEGIES)
        self.said_strategy[rows] = np.where(knows, best, other)
        low, high = router.confidence
        self.confidence[rows] = np.where(right & knows, high, low) + 0.2 * (u[:, 11] - 0.5)
        gap = np.floor(u[:, 13] * self._facets[complexity]).astype(np.int64)
        self.gap[rows] = np.where(u[:, 12] < settings.planner.covers_all, -1, gap)
        self._start_history(rows, pinned)

    def _start_history(self, rows: Ints, pinned: Pinned) -> None:
        history = self.settings.history
        self.refers_to[rows] = -1
        if pinned.history is None and not self._conversation:
            return
        at = np.zeros((len(rows), 1), np.int64)
        u = uniform_array(self.keys[rows, None], STREAM_QUESTION, at, _OF_HISTORY)
        talks = (u[:, -1] < self._conversation) | (pinned.history is not None)
        low, high = history.tokens
        total = np.floor(high - (high - low) * u[:, 0] ** 2)
        if pinned.history is not None:
            total[:] = pinned.history
        shares = 0.5 + u[:, 3 : 3 + history.exchanges]
        sizes = np.floor(total[:, None] * shares / shares.sum(axis=1, keepdims=True))
        self.history[rows] = np.where(talks[:, None], sizes, 0).astype(np.int64)
        exchange = np.floor(u[:, 1] * history.exchanges).astype(np.int64)
        refers = np.where(talks & (u[:, 2] < history.refers), exchange, -1)
        self.refers_to[rows] = refers if pinned.refers_to is None else pinned.refers_to

    def evidence(self, rows: Ints) -> Bools:
        """Return (k, 3) pieces of evidence at hand: found, or still in the conversation."""
        has, exchange = self.found[rows].copy(), self.refers_to[rows]
        refers = exchange >= 0
        kept = self.kept[rows, np.maximum(exchange, 0)]
        guessed = self.luck[rows, 0] < self.settings.draft.without_history
        has[:, 0] = np.where(refers, kept | guessed, has[:, 0])
        return has

    def set_draft(
        self, rows: Ints, fine: Bools, has: Bools, covered: Bools, luck: Floats, warned: Any
    ) -> None:
        """Replace the drafts of rows (m,), the `fine` ones of k; the other arrays are (k, …)."""
        draft = self.settings.draft
        missing = 1.0 - has.sum(axis=1)[fine] / self.facets[rows]
        less = np.where(warned, draft.after_issues, 1.0)[fine]
        self.covered[rows] = covered[fine]
        chance = less * (draft.hallucinates + draft.per_missing * missing)
        self.hallucinated[rows] = luck[fine, 3] < chance
        self.unsourced[rows] = luck[fine, 4] < less * draft.unsourced

    def scores(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return the score of the drafts and their attribution, (k,) each, 0-1."""
        draft = self.settings.draft
        share = self.covered[rows].sum(axis=1) / self.facets[rows]
        score = share * np.where(self.hallucinated[rows], draft.hallucination_keeps, 1.0)
        return score, np.where(self.unsourced[rows], draft.unsourced_keeps, 1.0)


def seen_as(complexity: Ints, right: Bools, side: Floats) -> Ints:
    """Return complexities (k,) as somebody sees them who is right or a step off."""
    beside = np.where(complexity == 1, np.where(side < 0.5, 0, 2), 1)
    return np.where(right, complexity, beside)
