"""The agents of simulated questions: what their calls take, and what comes of them.

A search finds a piece of evidence (`question`) if its luck is below the chance of the strategy for
this kind of question; searches for the whole of a complex question find less, so that a plan pays.
A draft uses some of what was found, fewer pieces where several searches were not merged; it may
claim what no source says, the more the more is missing, and may leave sources out. A validation
finds such defects or does not; a draft that was told of them has fewer. All draws are functions of
the question's key and of their place in it: the agent and the number of its call.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from inframind_gym.simulator.rng import uniform_array
from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.calls import (
    CALLS,
    DRAWS,
    STREAM_CALL,
    WRITER,
    CallingQuestion,
    Calls,
)
from inframind_gym.teams.coordination.outcomes import Outcome
from inframind_gym.teams.coordination.question import FACETS
from inframind_gym.teams.coordination.rules import (
    ANSWER,
    FALLBACK,
    PARALLEL,
    PLAN,
    PLANNER,
    REGENERATE,
    RETRIEVAL,
    REWRITE,
    ROUTE,
    ROUTER,
    SYNTHESIS,
    SYNTHESIZE,
    TRIM,
    VALIDATE,
    VALIDATION,
    Bools,
    Ints,
)
from inframind_gym.teams.coordination.settings import COMPLEXITIES
from inframind_gym.teams.coordination.state import CoordinationState

_PLACES: Final = np.arange(FACETS)
_SUBTASK: Final = len(COMPLEXITIES)  # place of a sub-task among the chances of a search
_SEVERITY: Final = np.array([3, 1, 2])  # of the issues


class SimulatedQuestion(CallingQuestion):
    """n questions and their agents; arguments and attributes are those of `Question`."""

    def act(self, rows: Ints, actions: Ints, state: CoordinationState) -> Outcome:
        """Carry out actions (k,) of `CoordinationState.decide`; questions are all different."""
        outcome = Outcome.empty(len(rows))
        for these, carry_out in (
            (actions == ROUTE, self._route),
            (actions == PLAN, self._plan),
            (rules.is_retrieval(actions), self._search),
            (actions == REWRITE, self._rewrite),
            (actions == SYNTHESIZE, self._merge),
            (np.isin(actions, (VALIDATE, ANSWER, REGENERATE)), self._answer),
            (actions == TRIM, self._trim),
            (actions == FALLBACK, self._fall_back),
        ):
            at = np.flatnonzero(these)
            if len(at):
                carry_out(rows[at], actions[at], at, state, outcome)
        return outcome

    def _record(self, rows: Ints, at: Ints, agent: int, calls: Calls, outcome: Outcome) -> Bools:
        """Add one call in each row to the outcomes; returns (k,) whether it can be used."""
        failed = calls.failure > 0
        self.stale[rows[~failed]] = 0
        outcome.ms[at] += rules.milliseconds(calls.seconds)
        outcome.prompt[at] += calls.prompt
        outcome.completion[at] += calls.completion
        outcome.context[at] += calls.completion + self.settings.tokens.handoff
        outcome.failed[at] = np.where(failed, agent, outcome.failed[at])
        outcome.failure[at] = np.where(failed, calls.failure, outcome.failure[at])
        return ~failed

    def _route(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        tokens = self.settings.tokens
        calls = self._call(rows, ROUTER, tokens.router, tokens.query)
        fine = self._record(rows, at, ROUTER, calls, outcome)
        outcome.strategy[at] = np.where(fine, self.said_strategy[rows], -1)
        outcome.complexity[at] = np.where(fine, self.said_complexity[rows], -1)
        outcome.needs_planning[at] = fine & (self.said_complexity[rows] == 2)
        outcome.confidence[at] = np.where(fine, self.confidence[rows], 0.0)

    def _plan(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        tokens = self.settings.tokens
        calls = self._call(rows, PLANNER, tokens.planner, tokens.query)
        fine = self._record(rows, at, PLANNER, calls, outcome)
        subtasks = self._subtasks[self.complexity[rows]]
        outcome.subtasks[at] = np.where(fine, subtasks, 0)
        self.open[rows] = fine[:, None] & (subtasks[:, None] > _PLACES)

    def _search(self, rows: Ints, actions: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        """Search for the first sub-tasks that wait, or for the whole question if none does."""
        settings, strategy = self.settings, rules.strategy_of(actions)
        passages, tokens = settings.passages, settings.tokens
        kind, complexity = self.kind[rows], self.complexity[rows]
        rewritten = state.rewritten[rows].astype(np.int64)
        waits = state.planned[rows] & (state.pending[rows] > 0)
        width = np.where(actions >= PARALLEL, state.pending[rows], 1)
        width = np.minimum(width, settings.limits.parallel_calls)
        used = width[:, None] > _PLACES  # calls
        outcome.prompt[at] = width * tokens.query + self.stale[rows]
        seconds, completion, failure, luck = self._wave(rows, used, state.max_num_seqs)
        variants = 1 + 2 * rewritten  # a rewriting brings two more queries
        outcome.ms[at] = rules.milliseconds(seconds + variants * self._search_s[strategy])
        outcome.completion[at] = completion
        failed = failure.any(axis=1)
        outcome.failed[at] = np.where(failed, RETRIEVAL, -1)
        outcome.failure[at] = failure.max(axis=1)
        # Call j of a wave answers the j-th sub-task that is open.
        fine, order = used & (failure == 0), np.cumsum(self.open[rows], axis=1) - 1
        came = np.take_along_axis(fine, np.maximum(order, 0), axis=1)
        answers = self.open[rows] & waits[:, None] & (order < width[:, None]) & came
        self.open[rows] &= ~answers
        whole = ~waits & fine[:, 0]
        planned = answers & (self.gap[rows, None] != _PLACES)
        asked = np.where(waits[:, None], planned, whole[:, None])
        asked &= self.facets[rows, None] > _PLACES
        asked[:, 0] &= self.refers_to[rows] < 0  # else in the conversation, and nowhere else
        level = np.where(waits, _SUBTASK, complexity)
        chance = self.chances[rewritten, level, kind, strategy]
        hits = asked & (self.luck[rows] < chance[:, None])
        self.found[rows] |= hits
        chance = self.chances[0, level, kind, strategy]
        self.plain[rows] |= asked & (self.luck[rows] < chance[:, None])
        count = np.where(waits, answers.sum(axis=1), whole)
        docs = count * np.where(waits, passages.subtask, passages.whole)
        again = fine & (luck[:, :, 0] < settings.retrieval.duplicate) & self.noise
        again[:, 0] &= state.searches[rows] > 0
        repeated = np.where(state.searches[rows] > 0, docs // 2, 0)
        outcome.answered[at], outcome.docs[at] = count, docs
        outcome.duplicates[at] = np.where(waits, again.sum(axis=1), repeated)
        low, high = settings.retrieval.score
        wanted = np.where(waits, count, self.facets[rows])
        share = hits.sum(axis=1) / np.maximum(wanted, 1)
        noise = settings.retrieval.score_spread * (luck[:, 0, 1] - 0.5)
        outcome.score[at] = np.where(count > 0, low + (high - low) * share + noise, 0.0)
        outcome.context[at] = completion + width * tokens.handoff + docs * tokens.passage
        self.unread[rows] = np.minimum(
            self.unread[rows] + docs * tokens.passage, passages.most * tokens.passage
        )

    def _rewrite(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        outcome.ms[at] = rules.milliseconds(self.settings.search_s.rewrite)

    def _merge(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        tokens = self.settings.tokens
        fresh = np.maximum(self.unread[rows] - state.duplicates[rows] * tokens.passage, 0)
        calls = self._call(rows, SYNTHESIS, tokens.synthesis, tokens.query + fresh)
        fine = self._record(rows, at, SYNTHESIS, calls, outcome)
        self.unread[rows[fine]] = 0

    def _answer(self, rows: Ints, actions: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        """Write a draft where there is none or another is asked for; validate it where asked."""
        writes = (actions == REGENERATE) | ~state.drafted[rows]
        fine = np.ones(len(rows), np.bool_)
        if writes.any():
            fine[writes] = self._write(
                rows[writes], actions[writes] == REGENERATE, at[writes], state, outcome
            )
            outcome.drafted[at] = writes & fine
        judges = fine & (actions == VALIDATE)
        if judges.any():
            self._judge(rows[judges], at[judges], outcome)

    def _write(self, rows: Ints, again: Bools, at: Ints, state: Any, outcome: Outcome) -> Bools:
        settings, tokens = self.settings, self.settings.tokens
        refers = self.refers_to[rows] >= 0
        warned = again & state.judged[rows] & (state.issues[rows].sum(axis=1) > 0)
        prompt = tokens.query + self.unread[rows] + tokens.issues * warned
        prompt = prompt + tokens.history_excerpt * (refers & ~again)
        calls = self._call(rows, WRITER, self._draft_length[self.complexity[rows]], prompt)
        fine = self._record(rows, at, SYNTHESIS, calls, outcome)
        several = (state.searches[rows] > 1) & ~state.merged[rows]
        has = self.evidence(rows)
        uses = np.where(several, settings.draft.uses[1], settings.draft.uses[0])
        kept = warned[:, None] & self.covered[rows]
        chance = np.repeat(uses[:, None], FACETS, axis=1)
        crowded = refers & (state.context[rows] > settings.context.trim_above_tokens)
        chance[:, 0] *= np.where(crowded, settings.draft.crowded, 1.0)
        covered = has & (kept | (calls.luck[:, :3] < chance))
        self.set_draft(rows[fine], fine, has, covered, calls.luck, warned)
        self.lied[rows[fine]] += self.hallucinated[rows[fine]]
        self.unread[rows[fine]] = 0
        return fine

    def _judge(self, rows: Ints, at: Ints, outcome: Outcome) -> None:
        """Validate the drafts of some rows."""
        validator, tokens = self.settings.validator, self.settings.tokens
        prompt = tokens.query + self._draft_length[self.complexity[rows]]
        calls = self._call(rows, VALIDATION, tokens.validation, prompt)
        fine = self._record(rows, at, VALIDATION, calls, outcome)
        short = self.covered[rows].sum(axis=1) < self.facets[rows]
        there = np.stack([self.hallucinated[rows], self.unsourced[rows], short], axis=1)
        chance = np.where(there, validator.finds.values, validator.false_alarm)
        issues = (calls.luck[:, :3] < chance) & fine[:, None]
        valid = ~issues.any(axis=1)
        low, high = validator.confidence
        outcome.judged[at], outcome.valid[at] = fine, valid & fine
        said = np.where(valid, high, low) + 0.2 * (calls.luck[:, 3] - 0.5)
        outcome.verdict[at] = np.where(fine, said, 0.0)
        outcome.issues[at] = issues
        outcome.severity[at] = (issues * _SEVERITY).max(axis=1)
        self.caught[rows] += there[:, 0] & issues[:, 0]

    def _trim(self, rows: Ints, _: Ints, at: Ints, state: Any, outcome: Outcome) -> None:
        limits, sizes = self.settings.context, np.where(self.kept[rows], self.history[rows], 0)
        before = sizes.sum(axis=1)
        room = np.maximum(limits.trim_to_tokens - (state.context[rows] - before), 0)
        if self.newest_only:
            kept = rules.kept_exchanges(sizes, room, 0.0)
        else:
            kept = rules.kept_exchanges(sizes, room, limits.oldest_share)
        self.kept[rows] &= kept
        # A model that decides is the first to read what follows the cut; the state knows.
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
        place = np.full((len(rows), 1), (WRITER + 1) * CALLS)
        luck = uniform_array(self.keys[rows, None], STREAM_CALL, place, DRAWS)[:, 3:]
        chance = self.chances[0, self.complexity[rows], self.kind[rows], 0]
        refers = self.refers_to[rows] >= 0
        chance = np.repeat(chance[:, None], FACETS, axis=1)
        chance[:, 0] = np.where(refers, settings.draft.without_history, chance[:, 0])
        has = (self.luck[rows] < chance) & (self.facets[rows, None] > _PLACES)
        covered = has & (luck[:, :3] < settings.draft.uses[0])
        every = np.ones(len(rows), np.bool_)
        self.set_draft(rows, every, has, covered, luck, ~every)
