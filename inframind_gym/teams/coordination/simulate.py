"""Simulated questions: the evidence they need, results of agents, tokens and seconds of calls.

A question is of some complexity and kind, and needs one to three pieces of evidence. In a
conversation a piece may be in an exchange before, and is lost when that exchange is trimmed. A
search finds a piece if its luck (a uniform draw) is below the chance of the strategy for this kind
of question. A draft uses some of what was found; it may hallucinate, and may leave sources out. A
validation may find such defects; the next draft then has fewer.

All draws are functions of the question's key and of their place in it, the agent and the number of
its call, so that every policy meets the same question. The numbers are in
`envs_configs/teams/coordination.yaml`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.rules import CoordinationState, Outcome
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    COMPLEXITIES,
    ISSUES,
    STRATEGIES,
    CoordinationSettings,
)
from inframind_gym.teams.state import Bools, Floats, Ints, Keys, Rows

_STREAM_QUESTION: Final = 60  # of random numbers, apart from those of `simulator.rng`
_STREAM_CALL: Final = 61
FACETS: Final = 3  # pieces of evidence at most
WRITER: Final = len(AGENTS)  # the synthesis agent when it writes; a row of calls of its own
SUBTASK: Final = len(COMPLEXITIES)  # place of a sub-task among the chances of a search
CALLS: Final = 64  # places of draws of an agent
_DRAWS: Final = np.arange(9, dtype=np.int64)  # of a call: failure, slow, length, 6 outcomes
_OF_QUESTION: Final = np.arange(14, dtype=np.int64)
_OF_HISTORY: Final = np.arange(14, 34, dtype=np.int64)  # 4, and one for each exchange, up to 16
_PLACES: Final = np.arange(FACETS)
_SEVERITY: Final = np.array([3, 1, 2])  # of the issues
_TIMEOUT, _GARBAGE = 1, 2  # places in FAILURES


class Pinned(NamedTuple):
    """Facts of questions that are given and not drawn; None: drawn."""

    complexity: int | None = None
    kind: int | None = None
    history: int | None = None  # tokens of the exchanges before; 0: no conversation
    refers_to: int | None = None  # exchange to which it refers, 0 the oldest; -1: to none
    timing_out: int = -1  # agent whose calls all time out; -1: none
    model: bool = False  # a model decides


# Questions of the eight acceptance scenarios.
SCENARIOS: Final = {
    "S1": Pinned(complexity=0),
    "S2": Pinned(complexity=2),
    "S3": Pinned(complexity=2, timing_out=rules.PLANNER),
    "S4": Pinned(complexity=0, history=6_000, refers_to=3),
    "S5": Pinned(complexity=1, kind=1),
    "S6": Pinned(complexity=0),
    "S7": Pinned(complexity=1, history=126_000, refers_to=0),
    "S8": Pinned(complexity=2, model=True),
}


class SimulatedQuestion(Rows):
    """n questions with their agents, evidence and drafts.

    A share of them has exchanges before (`conversation`). With `noise` lengths vary, calls fail and
    sub-tasks bring passages again.
    """

    complexity: Ints  # (n,) a place in COMPLEXITIES
    kind: Ints  # (n,) a place in `questions.kinds`
    facets: Ints  # (n,) pieces of evidence that an answer needs
    luck: Annotated[Floats, FACETS]  # of each piece: below its chance a search finds it
    hint: Ints  # (n,) complexity by the question's words
    said_complexity: Ints  # (n,) by the router
    said_strategy: Ints  # (n,) the same
    confidence: Floats  # (n,) the same
    gap: Ints  # (n,) piece that a plan leaves out; -1: none
    refers_to: Ints  # (n,) exchange, 0 the oldest; -1: to none
    timing_out: Ints  # (n,) agent whose calls all time out; -1: none
    calls: Annotated[Ints, len(AGENTS) + 1]  # so far
    open: Annotated[Bools, FACETS]  # sub-tasks that wait for a search
    found: Annotated[Bools, FACETS]  # pieces
    plain: Annotated[Bools, FACETS]  # pieces that would be found without a rewriting
    covered: Annotated[Bools, FACETS]  # pieces that the draft uses
    hallucinated: Bools  # (n,) the draft says what no source does
    unsourced: Bools  # (n,) the draft leaves sources out
    lied: Ints  # (n,) drafts that hallucinated
    caught: Ints  # (n,) of them, where a validation found it
    unread: Ints  # (n,) tokens of passages that nobody who writes has read
    stale: Ints  # (n,) tokens behind the cut of a trim, which the next call reads again

    def __init__(
        self,
        settings: CoordinationSettings,
        n: int,
        *,
        conversation: float = 0.0,
        noise: bool = True,
    ) -> None:
        super().__init__(n)
        self.settings, self._conversation, self.noise = settings, conversation, noise
        self.keys = np.zeros(n, np.uint64)
        self.history = np.zeros((n, settings.history.exchanges), np.int64)  # tokens, oldest first
        self.kept = np.ones((n, settings.history.exchanges), np.bool_)  # after trims
        questions, retrieval, tokens = settings.questions, settings.retrieval, settings.tokens
        self._shares = np.cumsum(questions.complexity)
        self._kinds = np.cumsum(questions.kind_shares, axis=1)
        self._facets = np.array(questions.facets)
        self._subtasks = np.array(settings.planner.subtasks)
        recall = np.array(retrieval.recall)  # kinds x strategies
        self._best_strategy = recall.argmax(axis=1)
        plain = np.concatenate([np.array(retrieval.whole)[:, None, None] * recall, recall[None]])
        self._chances = np.stack(
            [plain, 1.0 - np.array(retrieval.rewritten_misses) * (1.0 - plain)]
        )
        self._search_s = np.array([settings.search_s[name] for name in STRATEGIES])
        self._finds = np.array([settings.validator.finds[issue] for issue in ISSUES])
        self._draft_length = np.array(tokens.draft)
        self._factors = np.array(tokens.factors if noise else (1.0,))
        self._weights = np.cumsum(tokens.weights if noise else (1.0,))
        self._weights[-1] = 1.0

    # Questions

    def start(self, rows: Ints, keys: Keys, pinned: Pinned | None = None) -> None:
        """Begin new questions, drawn from their keys (k,)."""
        pinned, settings, router = pinned or Pinned(), self.settings, self.settings.router
        at = np.zeros((len(rows), 1), np.int64)
        u = uniform_array(keys[:, None], _STREAM_QUESTION, at, _OF_QUESTION)
        self.clear(rows)
        self.keys[rows], self.history[rows], self.kept[rows] = keys, 0, True
        self.timing_out[rows] = pinned.timing_out
        complexity = np.minimum((u[:, :1] > self._shares).sum(axis=1), 2)
        if pinned.complexity is not None:
            complexity[:] = pinned.complexity
        kind = np.minimum((u[:, 1:2] > self._kinds[complexity]).sum(axis=1), 2)
        if pinned.kind is not None:
            kind[:] = pinned.kind
        self.complexity[rows], self.kind[rows] = complexity, kind
        self.facets[rows], self.luck[rows] = self._facets[complexity], u[:, 2:5]
        self.hint[rows] = _seen_as(complexity, u[:, 5] < settings.questions.hint_right, u[:, 6])
        right, knows = u[:, 7] < router.complexity_right, u[:, 8] < router.strategy_right
        self.said_complexity[rows] = _seen_as(complexity, right, u[:, 9])
        best = self._best_strategy[kind]
        other = (best + 1 + (u[:, 10] < 0.5)) % len(STRATEGIES)
        self.said_strategy[rows] = np.where(knows, best, other)
        low, high = router.confidence
        self.confidence[rows] = np.where(right & knows, high, low) + 0.2 * (u[:, 11] - 0.5)
        gap = np.floor(u[:, 13] * self._facets[complexity]).astype(np.int64)
        self.gap[rows] = np.where(u[:, 12] < settings.planner.covers_all, -1, gap)
        self.refers_to[rows] = -1
        if pinned.history is None and not self._conversation:
            return
        history = settings.history
        u = uniform_array(keys[:, None], _STREAM_QUESTION, at, _OF_HISTORY)
        talks = (u[:, -1] < self._conversation) | (pinned.history is not None)
        least, most = history.tokens
        total = np.floor(most - (most - least) * u[:, 0] ** 2)
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
        kept = self.kept[rows, np.maximum(exchange, 0)]
        guessed = self.luck[rows, 0] < self.settings.draft.without_history
        has[:, 0] = np.where(exchange >= 0, kept | guessed, has[:, 0])
        return has

    def scores(self, rows: Ints) -> tuple[Floats, Floats]:
        """Return the score of the drafts and their attribution, (k,) each, 0-1."""
        draft = self.settings.draft
        share = self.covered[rows].sum(axis=1) / self.facets[rows]
        score = share * np.where(self.hallucinated[rows], draft.hallucination_keeps, 1.0)
        return score, np.where(self.unsourced[rows], draft.unsourced_keeps, 1.0)

    def _hits(self, rows: Ints, form: Any, level: Ints, strategy: Any) -> Bools:
        """Return the evidence that searches find, (k, 3): the luck is below their chance."""
        chance = self._chances[form, level, self.kind[rows], strategy]
        return np.asarray(self.luck[rows] < chance[:, None])

    # Calls

    def _draw_luck(self, rows: Ints, places: Any) -> Floats:
        """Return the draws of calls (k,) by their places, (k, 9)."""
        keys, places = self.keys[rows, None], np.broadcast_to(places, len(rows))[:, None]
        return np.asarray(uniform_array(keys, _STREAM_CALL, places, _DRAWS))

    def _draw(
        self, rows: Ints, agent: int, number: Ints, lengths: Any, prompt: Ints
    ) -> tuple[Floats, Ints, Ints, Floats]:
        """Draw calls of an agent, or of WRITER: seconds, tokens, failures, draws (k, 6)."""
        failures, limit = self.settings.failures, self.settings.limits.call_timeout_s
        u = self._draw_luck(rows, agent * CALLS + number)
        factor = self._factors[(u[:, 2:3] > self._weights).sum(axis=1)]
        completion = np.maximum(np.rint(lengths * factor), 1.0).astype(np.int64)
        seconds = rules.call_s(prompt, completion, self.settings.server)
        failure = np.zeros(len(rows), np.int64)
        if self.noise:
            seconds = np.where(u[:, 1] < failures.slow, failures.slow_factor * seconds, seconds)
            failure[u[:, 0] < failures.timeout + failures.garbage] = _GARBAGE
            failure[u[:, 0] < failures.timeout] = _TIMEOUT
        who = rules.SYNTHESIS if agent == WRITER else agent
        failure[(seconds > limit) | (who == self.timing_out[rows])] = _TIMEOUT
        late = failure == _TIMEOUT
        seconds, completion = np.where(late, limit, seconds), np.where(late, 0, completion)
        return seconds, completion, failure, u[:, 3:]

    def _call(
        self, rows: Ints, at: Ints, agent: int, lengths: Any, prompt: Any, outcome: Outcome
    ) -> tuple[Bools, Floats]:
        """Add the next call of an agent to the outcomes; returns which are usable, draws (k, 6)."""
        number, prompt = self.calls[rows, agent], prompt + self.stale[rows]
        self.calls[rows, agent] += 1
        seconds, completion, failure, luck = self._draw(rows, agent, number, lengths, prompt)
        failed, who = failure > 0, rules.SYNTHESIS if agent == WRITER else agent
        self.stale[rows[~failed]] = 0
        outcome.ms[at] += rules.milliseconds(seconds)
        outcome.prompt[at] += prompt
        outcome.completion[at] += completion
        outcome.context[at] += completion + self.settings.tokens.handoff
        outcome.failed[at] = np.where(failed, who, outcome.failed[at])
        outcome.failure[at] = np.where(failed, failure, outcome.failure[at])
        return ~failed, luck

    def _wave(self, rows: Ints, used: Bools) -> tuple[Floats, Ints, Ints, Floats]:
        """Draw up to three calls of the retrieval agent, which read a stale prefix once.

        Returns (k,) seconds and tokens of the waves, (k, 3) failures, (k, 3, 6) draws.
        """
        tokens, shape, stale = self.settings.tokens, used.shape, self.stale[rows]
        row, slot = np.nonzero(used)
        number = self.calls[rows, rules.RETRIEVAL][row] + slot
        self.calls[rows, rules.RETRIEVAL] += used.sum(axis=1)
        prompt = tokens.query + stale[row]
        calls = self._draw(rows[row], rules.RETRIEVAL, number, tokens.retrieval, prompt)
        completion, failure = np.zeros((2, *shape), np.int64)
        alone, luck = np.zeros(shape), np.zeros((*shape, 6))
        for part, drawn in zip((alone, completion, failure, luck), calls, strict=True):
            part[row, slot] = drawn
        prompts = np.where(used, tokens.query, 0)
        prompts[:, 0] += stale
        self.stale[rows[failure[:, 0] == 0]] = 0
        together = rules.wave_s(prompts, completion, self.settings.server)
        return np.maximum(together, alone.max(axis=1)), completion.sum(axis=1), failure, luck

    # Actions

    def act(self, rows: Ints, actions: Ints, state: CoordinationState) -> Outcome:
        """Carry out actions (k,) of `CoordinationState.decide`; questions are all different."""
        outcome = Outcome.empty(len(rows))
        writing = (rules.VALIDATE, rules.ANSWER, rules.REGENERATE)
        for these, carry_out in (
            (actions == rules.ROUTE, self._route),
            (actions == rules.PLAN, self._plan),
            (rules.is_retrieval(actions), self._search),
            (actions == rules.SYNTHESIZE, self._merge),
            (np.isin(actions, writing), self._answer),
            (actions == rules.TRIM, self._trim),
            (actions == rules.FALLBACK, self._fall_back),
        ):
            at = np.flatnonzero(these)
            if len(at):
                carry_out(rows[at], actions[at], at, state, outcome)
        outcome.ms[actions == rules.REWRITE] = rules.milliseconds(self.settings.search_s["rewrite"])
        return outcome

    def _route(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        tokens = self.settings.tokens
        fine, _luck = self._call(rows, at, rules.ROUTER, tokens.router, tokens.query, outcome)
        outcome.strategy[at] = np.where(fine, self.said_strategy[rows], -1)
        outcome.complexity[at] = np.where(fine, self.said_complexity[rows], -1)
        outcome.needs_planning[at] = fine & (self.said_complexity[rows] == 2)
        outcome.confidence[at] = np.where(fine, self.confidence[rows], 0.0)

    def _plan(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        tokens = self.settings.tokens
        fine, _luck = self._call(rows, at, rules.PLANNER, tokens.planner, tokens.query, outcome)
        subtasks = self._subtasks[self.complexity[rows]]
        outcome.subtasks[at] = np.where(fine, subtasks, 0)
        self.open[rows] = fine[:, None] & (subtasks[:, None] > _PLACES)

    def _search(self, rows: Ints, actions: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        """Search for the first sub-tasks that wait, or for the whole question if none does."""
        settings, strategy = self.settings, rules.strategy_of(actions)
        passages, tokens = settings.passages, settings.tokens
        rewritten, again = state.rewritten[rows].astype(np.int64), state.searches[rows] > 0
        waits = state.planned[rows] & (state.pending[rows] > 0)
        width = np.where(actions >= rules.PARALLEL, state.pending[rows], 1)
        width = np.minimum(width, settings.limits.parallel_calls)
        used = width[:, None] > _PLACES  # calls
        outcome.prompt[at] = width * tokens.query + self.stale[rows]
        seconds, completion, failure, luck = self._wave(rows, used)
        variants = 1 + 2 * rewritten  # a rewriting brings two more queries
        outcome.ms[at] = rules.milliseconds(seconds + variants * self._search_s[strategy])
        outcome.completion[at] = completion
        outcome.failed[at] = np.where(failure.any(axis=1), rules.RETRIEVAL, -1)
        outcome.failure[at] = failure.max(axis=1)
        # Call j of a wave answers the j-th sub-task that is open.
        fine, order = used & (failure == 0), np.cumsum(self.open[rows], axis=1) - 1
        has_result = np.take_along_axis(fine, np.maximum(order, 0), axis=1)
        answers = self.open[rows] & waits[:, None] & (order < width[:, None]) & has_result
        self.open[rows] &= ~answers
        whole = ~waits & fine[:, 0]
        planned = answers & (self.gap[rows, None] != _PLACES)
        searched = np.where(waits[:, None], planned, whole[:, None])  # pieces
        searched &= self.facets[rows, None] > _PLACES
        searched[:, 0] &= self.refers_to[rows] < 0  # else it is in the conversation only
        level = np.where(waits, SUBTASK, self.complexity[rows])
        hits = searched & self._hits(rows, rewritten, level, strategy)
        self.found[rows] |= hits
        self.plain[rows] |= searched & self._hits(rows, 0, level, strategy)
        count = np.where(waits, answers.sum(axis=1), whole)
        docs = count * np.where(waits, passages.subtask, passages.whole)
        copies = fine & (luck[:, :, 0] < settings.retrieval.duplicate) & self.noise
        copies[:, 0] &= again
        repeated = np.where(again, docs // 2, 0)
        outcome.answered[at], outcome.docs[at] = count, docs
        outcome.duplicates[at] = np.where(waits, copies.sum(axis=1), repeated)
        low, high = settings.retrieval.score
        share = hits.sum(axis=1) / np.maximum(np.where(waits, count, self.facets[rows]), 1)
        noise = settings.retrieval.score_spread * (luck[:, 0, 1] - 0.5)
        outcome.score[at] = np.where(count > 0, low + (high - low) * share + noise, 0.0)
        outcome.context[at] = completion + width * tokens.handoff + docs * tokens.passage
        unread = self.unread[rows] + docs * tokens.passage
        self.unread[rows] = np.minimum(unread, passages.most * tokens.passage)

    def _merge(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        tokens = self.settings.tokens
        fresh = np.maximum(self.unread[rows] - state.duplicates[rows] * tokens.passage, 0)
        prompt = tokens.query + fresh
        fine, _luck = self._call(rows, at, rules.SYNTHESIS, tokens.synthesis, prompt, outcome)
        self.unread[rows[fine]] = 0

    def _answer(self, rows: Ints, actions: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        """Write a draft where there is none or another is asked for; validate it where asked."""
        again = actions == rules.REGENERATE
        writes, fine = again | ~state.drafted[rows], np.ones(len(rows), np.bool_)
        if writes.any():
            fine[writes] = self._write(rows[writes], again[writes], at[writes], state, outcome)
            outcome.drafted[at] = writes & fine
        judges = fine & (actions == rules.VALIDATE)
        if judges.any():
            self._judge(rows[judges], at[judges], outcome)

    def _write(self, rows: Ints, again: Bools, at: Ints, state: Any, outcome: Outcome) -> Bools:
        tokens, draft, limits = self.settings.tokens, self.settings.draft, self.settings.context
        refers = self.refers_to[rows] >= 0
        # The writer of a new draft is told of the issues of the last one, and keeps what it had.
        warned = again & state.judged[rows] & (state.issues[rows].sum(axis=1) > 0)
        prompt = tokens.query + self.unread[rows] + tokens.issues * warned
        prompt = prompt + tokens.history_excerpt * (refers & ~again)
        length = self._draft_length[self.complexity[rows]]
        fine, luck = self._call(rows, at, WRITER, length, prompt, outcome)
        several = (state.searches[rows] > 1) & ~state.merged[rows]
        uses = np.repeat(np.where(several, draft.uses[1], draft.uses[0])[:, None], FACETS, axis=1)
        crowded = refers & (state.context[rows] > limits.trim_above_tokens)
        uses[:, 0] *= np.where(crowded, draft.crowded, 1.0)
        has = self.evidence(rows)
        kept = has & warned[:, None] & self.covered[rows]
        lies, bare = self._draft_chances(rows, has, warned)
        done = rows[fine]
        self.covered[done] = (has & (kept | (luck[:, :3] < uses)))[fine]
        self.hallucinated[done] = (luck[:, 3] < lies)[fine]
        self.unsourced[done] = (luck[:, 4] < bare)[fine]
        self.lied[done] += self.hallucinated[done]
        self.unread[done] = 0
        return fine

    def _draft_chances(self, rows: Ints, has: Bools, warned: Any) -> tuple[Floats, Floats]:
        """Return the chances (k,) that drafts hallucinate, and that they leave sources out."""
        draft = self.settings.draft
        missing = 1.0 - has.sum(axis=1) / self.facets[rows]
        less = np.where(warned, draft.after_issues, 1.0)
        return less * (draft.hallucinates + draft.per_missing * missing), less * draft.unsourced

    def _judge(self, rows: Ints, at: Ints, outcome: Outcome) -> None:
        """Validate the drafts of some rows."""
        tokens, (low, high) = self.settings.tokens, self.settings.validator.confidence
        prompt = tokens.query + self._draft_length[self.complexity[rows]]
        fine, luck = self._call(rows, at, rules.VALIDATION, tokens.validation, prompt, outcome)
        short = self.covered[rows].sum(axis=1) < self.facets[rows]
        defects = np.stack([self.hallucinated[rows], self.unsourced[rows], short], axis=1)
        chance = np.where(defects, self._finds, self.settings.validator.false_alarm)
        issues = (luck[:, :3] < chance) & fine[:, None]
        valid = ~issues.any(axis=1)
        outcome.judged[at], outcome.valid[at] = fine, valid & fine
        confidence = np.where(valid, high, low) + 0.2 * (luck[:, 3] - 0.5)
        outcome.verdict[at] = np.where(fine, confidence, 0.0)
        outcome.issues[at] = issues
        outcome.severity[at] = (issues * _SEVERITY).max(axis=1)
        self.caught[rows] += defects[:, 0] & issues[:, 0]

    def _trim(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        limits, sizes = self.settings.context, np.where(self.kept[rows], self.history[rows], 0)
        before = sizes.sum(axis=1)
        room = np.maximum(limits.trim_to_tokens - (state.context[rows] - before), 0)
        kept = rules.kept_exchanges(sizes, room, limits.oldest_share)
        self.kept[rows] &= kept
        # Where a model decides, it reads what follows the cut first (`CoordinationState.unread`).
        behind = np.logical_or.accumulate((sizes > 0) & ~kept, axis=1) & kept
        self.stale[rows] = np.where(state.model[rows], 0, np.where(behind, sizes, 0).sum(axis=1))
        outcome.context[at] = np.where(kept, sizes, 0).sum(axis=1) - before
        outcome.ms[at] = rules.milliseconds(self.settings.trim_s)

    def _fall_back(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        """Answer by one search and one short call, which read nothing of the conversation."""
        settings, tokens = self.settings, self.settings.tokens
        docs = settings.passages.fallback * tokens.passage
        outcome.ms[at] = rules.milliseconds(settings.fallback_s)
        outcome.prompt[at], outcome.completion[at] = tokens.query + docs, tokens.fallback
        outcome.context[at] = docs + tokens.fallback
        luck = self._draw_luck(rows, (WRITER + 1) * CALLS)[:, 3:]
        has = self._hits(rows, 0, self.complexity[rows], 0)
        guessed = self.luck[rows, 0] < settings.draft.without_history
        has[:, 0] = np.where(self.refers_to[rows] >= 0, guessed, has[:, 0])
        has &= self.facets[rows, None] > _PLACES
        lies, bare = self._draft_chances(rows, has, False)
        self.covered[rows] = has & (luck[:, :3] < settings.draft.uses[0])
        self.hallucinated[rows], self.unsourced[rows] = luck[:, 3] < lies, luck[:, 4] < bare


def _seen_as(complexity: Ints, right: Bools, side: Floats) -> Ints:
    """Return the complexities (k,) where `right`, else one a step off, on a `side` (0-1)."""
    beside = np.where(complexity == 1, np.where(side < 0.5, 0, 2), 1)
    return np.where(right, complexity, beside)
