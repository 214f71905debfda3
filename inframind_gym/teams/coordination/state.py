"""State of n questions, the same in application and environment: what is done, and what is open.

A decision has three steps: `decide` says what is carried out, somebody carries it out, and `take`
records its `Outcome`. Where time or iterations are spent, `forced` says so, and the caller carries
FALLBACK out in the same way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.outcomes import Outcome
from inframind_gym.teams.coordination.rules import (
    AGENT_OF,
    ANSWER,
    FALLBACK,
    NOTHING,
    PARALLEL,
    PLAN,
    REGENERATE,
    RETRIEVE,
    REWRITE,
    ROUTE,
    SYNTHESIS,
    SYNTHESIZE,
    TRIM,
    VALIDATE,
    Bools,
    Ints,
)
from inframind_gym.teams.coordination.settings import (
    AGENTS,
    ISSUES,
    STRATEGIES,
    CoordinationSettings,
)

# How an episode ended; their places are the codes of `reason`. Those of the fallback name who
# chose it: the policy, the deadline or the limit of iterations.
REASONS: Final = ("", "answer", "fallback", "deadline", "iterations", "context")
RUNNING, ANSWERED, FELL_BACK, OUT_OF_TIME, OUT_OF_ITERATIONS, OVERFLOWED = range(len(REASONS))


class CoordinationState:
    """n questions; all arrays have a row a question.

    Args:
        settings: constants of the team.
        n: number of questions.
        max_num_seqs: calls that the server decodes together.

    Attributes:
        model: (n,) whether a model decides; its decisions then take tokens and time.
        hint, refers: (n,) complexity by the question's words; whether it names an exchange before.
        routed, strategy, complexity, needs_planning, confidence: (n,) what the router said.
        planned, subtasks, pending: (n,) plan; searches that wait (one for a question unplanned).
        searched: (n, 3) strategies by which the whole question was searched for.
        searches, docs, duplicates, score: (n,) searches that came back, their passages, mean score.
        rewritten, merged, drafted, judged, valid, trimmed: (n,) flags.
        verdict, issues, severity: (n,), (n, 3), (n,) of the last validation.
        regenerations, retries: (n,) numbers so far.
        failed: (n, 5) agents whose last call failed; `failures`: (n, 5) how often one did.
        context, unread: (n,) tokens of the conversation, and those that no supervisor has read.
        elapsed_ms, iteration: (n,).
        setup_ms, agent_ms: (n,) of the last decision: overhead and supervisor; agents and tools.
        overhead_ms, model_ms: (n,) the same of the episode, without waits for retries.
        tokens: (n,) of the last decision; `total_tokens`, `supervisor_tokens`: of the episode, the
            latter as they are billed, with all that a supervisor's prompts repeat.
        widest: (n,) searches of the widest wave.
        over_threshold: (n,) most tokens above the length from which conversations are trimmed.
        trimmed_to: (n,) tokens of the conversation right after its trim; 0 before.
        mask: (n, 15) actions that are open.
        was_open, over, reason: (n,) of the last decision; how the episode ended.
    """

    def __init__(self, settings: CoordinationSettings, n: int, max_num_seqs: int) -> None:
        self.settings, self.max_num_seqs = settings, max_num_seqs
        self.hint, self.strategy, self.complexity, self.subtasks = np.zeros((4, n), np.int64)
        self.pending, self.searches, self.docs, self.duplicates = np.zeros((4, n), np.int64)
        self.severity, self.regenerations, self.retries, self.context = np.zeros((4, n), np.int64)
        self.unread, self.elapsed_ms, self.iteration, self.setup_ms = np.zeros((4, n), np.int64)
        self.agent_ms, self.overhead_ms, self.model_ms, self.tokens = np.zeros((4, n), np.int64)
        self.total_tokens, self.supervisor_tokens, self.widest = np.zeros((3, n), np.int64)
        self.over_threshold, self.trimmed_to, self.reason = np.zeros((3, n), np.int64)
        self.model, self.refers, self.routed, self.needs_planning = np.zeros((4, n), np.bool_)
        self.planned, self.rewritten, self.merged, self.drafted = np.zeros((4, n), np.bool_)
        self.judged, self.valid, self.trimmed, self.was_open, self.over = np.zeros((5, n), np.bool_)
        self.confidence, self.score, self.verdict = np.zeros((3, n))
        self.searched = np.zeros((n, len(STRATEGIES)), np.bool_)
        self.failed = np.zeros((n, len(AGENTS)), np.bool_)
        self.failures = np.zeros((n, len(AGENTS)), np.int64)
        self.issues = np.zeros((n, len(ISSUES)), np.int64)
        self.mask = np.zeros((n, rules.NUM_ACTIONS), np.bool_)

    def begin(self, rows: Ints, hint: Any, refers: Any, history: Any, *, model: Any) -> None:
        """Take new questions (k,).

        Args:
            rows: (k,) places.
            hint: (k,) complexity by the question's words.
            refers: (k,) whether it refers to an exchange before.
            history: (k,) tokens of the exchanges before.
            model: (k,) whether a model decides.
        """
        for part in vars(self).values():
            if isinstance(part, np.ndarray):
                part[rows] = 0
        self.hint[rows], self.refers[rows], self.model[rows] = hint, refers, model
        self.strategy[rows] = self.complexity[rows] = -1
        self.pending[rows] = 1
        tokens = self.settings.tokens
        self.unread[rows] = tokens.query
        self.context[rows] = history + tokens.instructions + tokens.query
        self.mask[rows] = self._open(rows)

    def _open(self, rows: Ints) -> Bools:
        """Return the mask of some questions (k,), (k, 15)."""
        limits, mask = self.settings.limits, np.zeros((len(rows), rules.NUM_ACTIONS), np.bool_)
        pending, planned = self.pending[rows], self.planned[rows]
        grounded = (self.docs[rows] > 0) | self.refers[rows]
        mask[:, ROUTE] = ~self.routed[rows]
        mask[:, PLAN] = ~planned
        again = ~self.searched[rows]
        mask[:, RETRIEVE:PARALLEL] = (planned & (pending > 0))[:, None] | again
        mask[:, PARALLEL:REWRITE] = (pending > 1)[:, None]
        mask[:, REWRITE] = ~self.rewritten[rows]
        mask[:, SYNTHESIZE] = (self.searches[rows] > 1) & ~self.merged[rows]
        mask[:, VALIDATE] = grounded & ~self.judged[rows]
        mask[:, TRIM] = self.context[rows] > self.settings.context.trim_to_tokens
        mask[:, TRIM] &= ~self.trimmed[rows]
        mask[:, ANSWER] = grounded
        few = self.regenerations[rows] < rules.MOST_REGENERATIONS
        mask[:, REGENERATE] = self.drafted[rows] & few
        spent = self.retries[rows] >= limits.max_retries
        broken = self.failed[rows] & spent[:, None]
        mask &= ~np.where(AGENT_OF < 0, False, broken[:, AGENT_OF])
        mask[:, VALIDATE] &= self.drafted[rows] | ~broken[:, SYNTHESIS]
        forward = self.drafted[rows]  # a draft is passed on without a call
        mask[:, ANSWER] |= grounded & forward
        mask[:, FALLBACK] = True
        return mask

    def known_complexity(self, rows: Ints) -> Ints:
        """Return (k,) the complexity that the router named, before it that of the words."""
        return np.where(self.routed[rows], self.complexity[rows], self.hint[rows])

    def decide(self, rows: Ints, actions: Ints) -> Ints:
        """Begin decisions: count them, and charge overhead, supervisor and waits before retries.

        Args:
            rows: (k,) questions.
            actions: (k,) 0-14.

        Returns:
            (k,) what is to be carried out: the action, or NOTHING where it was not open or no time
            is left.
        """
        settings, tokens = self.settings, self.settings.tokens
        legal = self.mask[rows, actions]
        self.was_open[rows] = legal
        self.iteration[rows] += 1
        model = self.model[rows]
        read = np.where(model, self.unread[rows], 0)
        wrote = np.where(model, tokens.supervisor, 0)
        thinking = rules.call_s(read, wrote, settings.server)
        self.unread[rows] -= read
        billed = self.context[rows] + tokens.instructions + tokens.supervisor
        self.supervisor_tokens[rows] += np.where(model, billed, 0)
        overhead = rules.milliseconds(settings.limits.overhead_s + thinking)
        agent = AGENT_OF[actions]
        calls = legal & (agent >= 0) & ~((actions == ANSWER) & self.drafted[rows])
        first = self._first_called(rows, actions)
        again = calls & (self.failed[rows, agent] | self.failed[rows, first])
        self.retries[rows] += again
        wait = np.where(again, rules.milliseconds(rules.backoff_s(self.retries[rows], settings)), 0)
        self.setup_ms[rows] = overhead + wait
        self.overhead_ms[rows] += overhead
        self.tokens[rows] = read + wrote
        late = self.setup_ms[rows] >= rules.left_ms(self.elapsed_ms[rows], settings)
        return np.where(legal & ~late, actions, NOTHING)

    def _first_called(self, rows: Ints, actions: Ints) -> Ints:
        """Return (k,) the agent that actions call first: VALIDATE has a missing draft written."""
        writes = (actions == VALIDATE) & ~self.drafted[rows]
        return np.where(writes, SYNTHESIS, np.where(actions == NOTHING, -1, AGENT_OF[actions]))

    def take(self, rows: Ints, actions: Ints, outcome: Outcome) -> None:
        """Record the outcomes of actions.

        An outcome that comes when the fallback must begin is lost, as is a failed call; late is the
        agent that was called first.

        Args:
            rows: (k,) questions.
            actions: (k,) of `decide`, or FALLBACK where it is forced.
            outcome: of the actions, (k,) each.
        """
        settings = self.settings
        is_fallback = actions == FALLBACK
        left = rules.left_ms(self.elapsed_ms[rows], settings)
        needed = self.setup_ms[rows] + outcome.ms
        lost = ~is_fallback & (needed >= left)
        self.agent_ms[rows] = np.where(lost, np.maximum(left - self.setup_ms[rows], 0), outcome.ms)
        self.elapsed_ms[rows] += np.where(lost, left, needed)
        self.model_ms[rows] += self.agent_ms[rows]
        self.tokens[rows] += outcome.prompt + outcome.completion
        self.total_tokens[rows] += self.tokens[rows]
        self._fail(rows, actions, outcome, lost)
        keep = np.flatnonzero(~lost)
        if len(keep) == len(rows):
            self._record(rows, actions, outcome)
        elif len(keep):
            kept = Outcome._make(part[keep] for part in outcome)
            self._record(rows[keep], actions[keep], kept)
        self.reason[rows[is_fallback & (self.reason[rows] == RUNNING)]] = FELL_BACK
        limits = settings.context
        excess = self.context[rows] - limits.trim_above_tokens
        self.over_threshold[rows] = np.maximum(self.over_threshold[rows], excess)
        self.reason[rows[self.context[rows] > limits.max_tokens]] = OVERFLOWED
        self.over[rows] = self.reason[rows] != RUNNING
        self.mask[rows] = self._open(rows)

    def forced(self, rows: Ints) -> Ints:
        """Return those of `rows` (k,) that must fall back now, and note why.

        Their next action is FALLBACK, which is no further decision.
        """
        waits = ~self.over[rows]
        spent = rules.left_ms(self.elapsed_ms[rows], self.settings) <= 0
        must = waits & rules.must_fall_back(
            self.elapsed_ms[rows], self.iteration[rows], self.settings
        )
        found = rows[must]
        self.reason[found] = np.where(spent[must], OUT_OF_TIME, OUT_OF_ITERATIONS)
        self.setup_ms[found] = self.tokens[found] = 0
        return found

    def _fail(self, rows: Ints, actions: Ints, outcome: Outcome, lost: Bools) -> None:
        first = self._first_called(rows, actions)
        failed = np.where(outcome.failed >= 0, outcome.failed, np.where(lost, first, -1))
        fine = (failed < 0) & (first >= 0)
        self.failed[rows[fine], AGENT_OF[actions[fine]]] = False
        self.failed[rows[outcome.drafted & ~lost], SYNTHESIS] = False
        bad = failed >= 0
        self.failed[rows[bad], failed[bad]] = True
        self.failures[rows[bad], failed[bad]] += 1

    def _record(self, rows: Ints, actions: Ints, outcome: Outcome) -> None:
        self.context[rows] += outcome.context
        self.unread[rows] += np.maximum(outcome.context, 0)
        named = outcome.strategy >= 0
        for part, values in (
            (self.strategy, outcome.strategy),
            (self.complexity, outcome.complexity),
            (self.needs_planning, outcome.needs_planning),
            (self.confidence, outcome.confidence),
        ):
            part[rows[named]] = values[named]
        self.routed[rows[named]] = True
        planned = outcome.subtasks > 0
        at = rows[planned]
        self.planned[at] = True
        self.subtasks[at] = self.pending[at] = outcome.subtasks[planned]
        self._search(rows, actions, outcome)
        ends = actions == REWRITE
        self.rewritten[rows[ends]] = True
        self.searched[rows[ends]] = False
        merged = rows[(actions == SYNTHESIZE) & (outcome.failed < 0)]
        self.merged[merged] = True
        self.docs[merged] -= self.duplicates[merged]
        self.duplicates[merged] = 0
        ends = actions == TRIM
        self.trimmed[rows[ends]] = True
        self.trimmed_to[rows[ends]] = self.context[rows[ends]]
        # A supervisor that is a model reads again what follows the place of the cut.
        newest = (1.0 - self.settings.context.oldest_share) * self.context[rows[ends]]
        self.unread[rows[ends]] = newest.astype(np.int64)
        written = outcome.drafted
        again = rows[written & (actions == REGENERATE)]
        self.regenerations[again] += 1
        self.drafted[rows[written]] = True
        self.judged[rows[written]] = False
        judged = outcome.judged
        at = rows[judged]
        self.judged[at] = True
        self.valid[at], self.verdict[at] = outcome.valid[judged], outcome.verdict[judged]
        self.issues[at], self.severity[at] = outcome.issues[judged], outcome.severity[judged]
        answered = (actions == ANSWER) & (self.drafted[rows]) & (outcome.failed < 0)
        self.reason[rows[answered]] = ANSWERED

    def _search(self, rows: Ints, actions: Ints, outcome: Outcome) -> None:
        came = outcome.answered > 0
        at, answered, acts = rows[came], outcome.answered[came], actions[came]
        whole = ~self.planned[at] | (self.pending[at] == 0)
        self.searched[at[whole], rules.strategy_of(acts[whole])] = True
        self.pending[at] = np.maximum(self.pending[at] - answered, 0)
        before = self.searches[at]
        self.searches[at] += answered
        score = self.score[at] * before + outcome.score[came] * answered
        self.score[at] = score / self.searches[at]
        room = self.settings.passages.most
        self.docs[at] = np.minimum(self.docs[at] + outcome.docs[came], room)
        self.duplicates[at] += outcome.duplicates[came]
        self.duplicates[at] = np.minimum(self.duplicates[at], self.docs[at] - 1)
        self.widest[at] = np.maximum(self.widest[at], np.where(acts >= PARALLEL, answered, 1))
        self.merged[at] = self.drafted[at] = self.judged[at] = False
        self.issues[at] = 0
        self.severity[at] = 0
