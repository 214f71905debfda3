"""Rules of the coordination team: what may be done next, time, deadlines, fallback, reward.

Arrays with a row a question: no clock, no I/O and no random numbers. Application and environment
call the same ones, the application with one row. Times are whole milliseconds.

A decision has three steps: `CoordinationState.decide` says what is carried out, somebody carries it
out, and `take` records its `Outcome`. Where time or iterations are spent, `forced` says so, and the
caller carries FALLBACK out in the same way.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np

from inframind_gym.teams.coordination.settings import (
    AGENTS,
    ISSUES,
    STRATEGIES,
    CoordinationSettings,
    RewardSettings,
    ServerSettings,
)
from inframind_gym.teams.state import Bools, Floats, Ints, Rows, zeros

ROUTER, PLANNER, RETRIEVAL, SYNTHESIS, VALIDATION = range(5)
# Actions; those of retrieval are followed by one for each further strategy.
ROUTE, PLAN, RETRIEVE = range(3)
PARALLEL: Final = RETRIEVE + len(STRATEGIES)
REWRITE: Final = PARALLEL + len(STRATEGIES)
SYNTHESIZE, VALIDATE, TRIM, ANSWER, REGENERATE, FALLBACK = range(REWRITE + 1, REWRITE + 7)
NUM_ACTIONS: Final = FALLBACK + 1
NOTHING: Final = -1  # in place of an action that was not open
NAMES: Final = (
    "route",
    "plan",
    *(f"retrieve {strategy}" for strategy in STRATEGIES),
    *(f"retrieve in parallel, {strategy}" for strategy in STRATEGIES),
    *("rewrite", "synthesize", "validate", "trim", "answer", "regenerate", "fallback"),
)
# The agent that an action calls, -1 for none. ANSWER, REGENERATE: the synthesis agent writes.
AGENT_OF: Final = np.array(
    [ROUTER, PLANNER, *[RETRIEVAL] * 6, -1, SYNTHESIS, VALIDATION, -1, SYNTHESIS, SYNTHESIS, -1]
)
MOST_REGENERATIONS: Final = 2
TERMS: Final = ("answer", "attribution", "validation", "time", "tokens")
FAILURES: Final = ("", "timeout", "garbage", "error")
# Endings of an episode; their places are the codes of `reason`. Those of the fallback name who
# chose it: the policy, the deadline or the limit of iterations.
REASONS: Final = ("", "answer", "fallback", "deadline", "iterations", "context")
RUNNING, ANSWERED, FELL_BACK, OUT_OF_TIME, OUT_OF_ITERATIONS, OVERFLOWED = range(len(REASONS))


def strategy_of(actions: Any) -> Any:
    """Return the strategy of retrievals, a place in STRATEGIES."""
    return (np.asarray(actions) - RETRIEVE) % len(STRATEGIES)


def is_retrieval(actions: Any) -> Any:
    """Return whether actions search, one by one or in parallel."""
    return (np.asarray(actions) >= RETRIEVE) & (np.asarray(actions) < REWRITE)


# Time


def milliseconds(seconds: Any) -> Ints:
    """Return whole milliseconds."""
    return np.rint(1000.0 * np.asarray(seconds, np.float64)).astype(np.int64)


def call_s(prompt: Any, completion: Any, server: ServerSettings) -> Any:
    """Return seconds of calls: prefill of the prompt's uncached tokens, then decoding."""
    read = np.asarray(prompt) / server.prefill_tokens_per_s
    return read + np.asarray(completion) / server.decode_tokens_per_s


def wave_s(prompt: Ints, completion: Ints, server: ServerSettings) -> Floats:
    """Return seconds of calls that begin together, (k,); tokens are (k, w), 0 without a call.

    Reading is bound by arithmetic: calls share its rate. Decoding is bound by memory: up to
    `max_num_seqs` calls decode at the rate of one, the longest first; further ones come after.
    """
    read = prompt.sum(axis=1) / server.prefill_tokens_per_s
    longest_first = -np.sort(-completion, axis=1)
    decoded = longest_first[:, :: server.max_num_seqs].sum(axis=1)
    return np.asarray(read + decoded / server.decode_tokens_per_s)


def backoff_s(retries: Ints, settings: CoordinationSettings) -> Floats:
    """Return seconds of the wait before retry number `retries` (1 is the first), (k,)."""
    limits = settings.limits
    return np.asarray(limits.backoff_s * limits.backoff_factor ** (retries - 1.0))


def deadline_ms(complexity: Ints, settings: CoordinationSettings) -> Ints:
    """Return the deadlines of questions of these complexities, (k,)."""
    simple, target = milliseconds([settings.limits.simple_s, settings.limits.target_s])
    return np.asarray(np.where(complexity == 0, simple, target))


def left_ms(elapsed_ms: Ints, settings: CoordinationSettings) -> Ints:
    """Return (k,) how long agents may work so that the fallback ends by the hard deadline."""
    hard, fallback = milliseconds([settings.limits.hard_s, settings.fallback_s])
    return np.asarray(np.maximum(hard - fallback - elapsed_ms, 0))


# Context


def kept_exchanges(sizes: Ints, room: Ints, oldest_share: float) -> Bools:
    """Return which exchanges of a history stay when it is trimmed, (k, x).

    The oldest stay while they fit their share, then the newest while they fit the rest, then the
    oldest of the others. One that is larger than the whole room is skipped. `sizes` are (k, x)
    tokens, the oldest first; `room` (k,) tokens may stay.
    """
    kept, fits = np.zeros(sizes.shape, np.bool_), sizes <= room[:, None]
    turns = ((1, np.floor(oldest_share * room)), (-1, room), (1, room))
    for order, most in turns:
        asks = fits & ~kept
        taken = np.cumsum(np.where(asks, sizes, 0)[:, ::order], axis=1)[:, ::order]
        left = most - np.where(kept, sizes, 0).sum(axis=1)
        kept = kept | (asks & (taken <= left[:, None]))
    return kept


# Reward and cost


def reward_terms(
    ms: Ints, tokens: Ints, answer: Any, attribution: Any, unvalidated: Any, weights: RewardSettings
) -> Floats:
    """Return the terms of k decisions, (k, 5), in the order of TERMS.

    Each took `ms` and `tokens` (k,). Where it gave an answer: `answer` is its score, `attribution`
    the share of its claims with a source, `unvalidated` whether it had not been validated.
    """
    terms = np.empty((len(ms), len(TERMS)))
    terms[:, 0] = answer
    terms[:, 1] = weights.attribution * np.asarray(attribution)
    terms[:, 2] = -weights.not_validated * np.asarray(unvalidated)
    terms[:, 3] = -weights.per_2_s / 2000.0 * ms
    terms[:, 4] = -weights.per_4096_tokens / 4096.0 * tokens
    return terms


def lateness(elapsed_ms: Ints, deadline: Ints) -> Floats:
    """Return the cost of an episode: what exceeds its deadline, over the deadline, (k,)."""
    return np.asarray(np.maximum(elapsed_ms - deadline, 0) / deadline)


class Outcome(NamedTuple):
    """Results of k actions, as far as an application sees them; zeros where there is nothing."""

    ms: Ints  # (k,) of agents and tools, from the beginning of the first to the end of the last
    prompt: Ints  # (k,) tokens that the agents read, without cached ones
    completion: Ints  # (k,) tokens that they wrote
    context: Ints  # (k,) tokens by which the conversation grew; negative for a trim
    failed: Ints  # (k,) agent whose call failed; -1 for none
    failure: Ints  # (k,) a place in FAILURES
    strategy: Ints  # (k,) that the router named; -1 where it named none
    complexity: Ints  # (k,) the same
    needs_planning: Bools  # (k,) that it said
    confidence: Floats  # (k,) that it said
    subtasks: Ints  # (k,) of a plan
    answered: Ints  # (k,) sub-tasks, or whole questions, whose search came back
    docs: Ints  # (k,) passages that it brought
    duplicates: Ints  # (k,) those of them that were there before
    score: Floats  # (k,) mean score of the passages
    drafted: Bools  # (k,) whether an answer was written
    judged: Bools  # (k,) whether an answer was validated
    valid: Bools  # (k,) and found valid
    verdict: Floats  # (k,) confidence of the validation
    issues: Annotated[Ints, len(ISSUES)]  # number of issues by type
    severity: Ints  # (k,) the worst, 1 + its place in SEVERITIES; 0 without issues

    @classmethod
    def empty(cls, k: int) -> Outcome:
        """Return outcomes of k actions that did nothing."""
        return cls(
            **zeros(cls, k) | {n: np.full(k, -1) for n in ("failed", "strategy", "complexity")}
        )


class CoordinationState(Rows):
    """State of n questions: what is done, and what is open; all arrays have a row a question.

    Policies get copies of some rows.
    """

    model: Bools  # (n,) a model decides; its decisions then take tokens and time
    hint: Ints  # (n,) complexity by the question's words
    refers: Bools  # (n,) the question names an exchange before
    routed: Bools  # (n,)
    strategy: Ints  # (n,) that the router named; -1 before
    complexity: Ints  # (n,) the same
    needs_planning: Bools  # (n,) by the router
    confidence: Floats  # (n,) of the router
    planned: Bools  # (n,)
    subtasks: Ints  # (n,) of the plan
    pending: Ints  # (n,) searches that wait; one for a question without a plan
    searched: Annotated[Bools, len(STRATEGIES)]  # for the whole question, by strategy
    searches: Ints  # (n,) that came back
    docs: Ints  # (n,) passages of them
    duplicates: Ints  # (n,) of the passages
    score: Floats  # (n,) mean of the passages
    rewritten: Bools  # (n,)
    merged: Bools  # (n,)
    drafted: Bools  # (n,)
    judged: Bools  # (n,) the draft was validated
    valid: Bools  # (n,)
    verdict: Floats  # (n,) confidence of the last validation
    issues: Annotated[Ints, len(ISSUES)]  # of the last validation, by type
    severity: Ints  # (n,) of the worst of them
    regenerations: Ints  # (n,) so far
    retries: Ints  # (n,) so far
    failed: Annotated[Bools, len(AGENTS)]  # agents whose last call failed
    failures: Annotated[Ints, len(AGENTS)]  # calls of each agent that failed
    context: Ints  # (n,) tokens of the conversation
    trimmed: Bools  # (n,)
    trimmed_to: Ints  # (n,) tokens of the conversation right after its trim; 0 before
    over_threshold: Ints  # (n,) most tokens above the length from which conversations are trimmed
    unread: Ints  # (n,) tokens of the conversation that no supervisor has read
    elapsed_ms: Ints  # (n,)
    iteration: Ints  # (n,) decisions so far
    setup_ms: Ints  # (n,) of the last decision: overhead and supervisor
    agent_ms: Ints  # (n,) of the last decision: agents and tools
    overhead_ms: Ints  # (n,) overhead and supervisor of the episode, without waits for retries
    model_ms: Ints  # (n,) agents and tools of the episode
    tokens: Ints  # (n,) of the last decision
    total_tokens: Ints  # (n,) of the episode
    supervisor_tokens: Ints  # (n,) as billed, with all that a supervisor's prompts repeat
    widest: Ints  # (n,) searches of the widest wave
    mask: Annotated[Bools, NUM_ACTIONS]  # actions that are open
    was_open: Bools  # (n,) the last action was
    over: Bools  # (n,)
    reason: Ints  # (n,) a place in REASONS

    def __init__(self, settings: CoordinationSettings, n: int) -> None:
        super().__init__(n)
        self.settings, self.limits = settings, settings.limits

    def begin(self, rows: Ints, hint: Any, refers: Any, history: Any, *, model: Any) -> None:
        """Take new questions at some places (k,), with tokens of the exchanges before, (k,)."""
        self.clear(rows)
        self.hint[rows], self.refers[rows], self.model[rows] = hint, refers, model
        self.strategy[rows] = self.complexity[rows] = -1
        self.pending[rows] = 1
        tokens = self.settings.tokens
        self.unread[rows] = tokens.query
        self.context[rows] = history + tokens.instructions + tokens.query
        self.mask[rows] = self._open(rows)

    def known_complexity(self, rows: Ints) -> Ints:
        """Return (k,) the complexity that the router named, before it that of the words."""
        return np.where(self.routed[rows], self.complexity[rows], self.hint[rows])

    def _open(self, rows: Ints) -> Bools:
        """Return the mask of some questions (k,), (k, 15)."""
        limits, mask = self.settings.limits, np.zeros((len(rows), NUM_ACTIONS), np.bool_)
        pending, planned, drafted = self.pending[rows], self.planned[rows], self.drafted[rows]
        grounded = (self.docs[rows] > 0) | self.refers[rows]
        mask[:, ROUTE] = ~self.routed[rows]
        mask[:, PLAN] = ~planned
        mask[:, RETRIEVE:PARALLEL] = (planned & (pending > 0))[:, None] | ~self.searched[rows]
        mask[:, PARALLEL:REWRITE] = (pending > 1)[:, None]
        mask[:, REWRITE] = ~self.rewritten[rows]
        mask[:, SYNTHESIZE] = (self.searches[rows] > 1) & ~self.merged[rows]
        mask[:, VALIDATE] = grounded & ~self.judged[rows]
        mask[:, TRIM] = self.context[rows] > self.settings.context.trim_to_tokens
        mask[:, TRIM] &= ~self.trimmed[rows]
        mask[:, ANSWER] = grounded
        mask[:, REGENERATE] = drafted & (self.regenerations[rows] < MOST_REGENERATIONS)
        spent = self.retries[rows] >= limits.max_retries
        broken = self.failed[rows] & spent[:, None]
        mask &= ~np.where(AGENT_OF < 0, False, broken[:, AGENT_OF])
        mask[:, VALIDATE] &= drafted | ~broken[:, SYNTHESIS]
        mask[:, ANSWER] |= grounded & drafted  # a draft is passed on without a call
        mask[:, FALLBACK] = True
        return mask

    def decide(self, rows: Ints, actions: Ints) -> Ints:
        """Begin decisions (k,): count them, and charge overhead, supervisor and waits for retries.

        Returns (k,) what is to be carried out: NOTHING where the action was not open or time is up.
        """
        settings, tokens = self.settings, self.settings.tokens
        legal = self.mask[rows, actions]
        self.was_open[rows] = legal
        self.iteration[rows] += 1
        model = self.model[rows]
        read = np.where(model, self.unread[rows], 0)
        wrote = np.where(model, tokens.supervisor, 0)
        thinking = call_s(read, wrote, settings.server)
        self.unread[rows] -= read
        billed = self.context[rows] + tokens.instructions + tokens.supervisor
        self.supervisor_tokens[rows] += np.where(model, billed, 0)
        overhead = milliseconds(settings.limits.overhead_s + thinking)
        agent = AGENT_OF[actions]
        calls = legal & (agent >= 0) & ~((actions == ANSWER) & self.drafted[rows])
        first = self._first_called(rows, actions)
        again = calls & (self.failed[rows, agent] | self.failed[rows, first])
        self.retries[rows] += again
        wait = np.where(again, milliseconds(backoff_s(self.retries[rows], settings)), 0)
        self.setup_ms[rows] = overhead + wait
        self.overhead_ms[rows] += overhead
        self.tokens[rows] = read + wrote
        late = self.setup_ms[rows] >= left_ms(self.elapsed_ms[rows], settings)
        return np.where(legal & ~late, actions, NOTHING)

    def _first_called(self, rows: Ints, actions: Ints) -> Ints:
        """Return (k,) the agent that actions call first: VALIDATE has a missing draft written."""
        writes = (actions == VALIDATE) & ~self.drafted[rows]
        return np.where(writes, SYNTHESIS, np.where(actions == NOTHING, -1, AGENT_OF[actions]))

    def take(self, rows: Ints, actions: Ints, outcome: Outcome) -> None:
        """Record the outcomes of actions (k,) of `decide`, or of FALLBACK where it is forced.

        An outcome that comes when the fallback must begin is lost, as is a failed call; late is the
        agent that was called first.
        """
        is_fallback = actions == FALLBACK
        left = left_ms(self.elapsed_ms[rows], self.settings)
        needed = self.setup_ms[rows] + outcome.ms
        lost = ~is_fallback & (needed >= left)
        self.agent_ms[rows] = np.where(lost, np.maximum(left - self.setup_ms[rows], 0), outcome.ms)
        self.elapsed_ms[rows] += np.where(lost, left, needed)
        self.model_ms[rows] += self.agent_ms[rows]
        self.tokens[rows] += outcome.prompt + outcome.completion
        self.total_tokens[rows] += self.tokens[rows]
        first = self._first_called(rows, actions)
        failed = np.where(outcome.failed >= 0, outcome.failed, np.where(lost, first, -1))
        fine, bad = (failed < 0) & (first >= 0), failed >= 0
        self.failed[rows[fine], AGENT_OF[actions[fine]]] = False
        self.failed[rows[outcome.drafted & ~lost], SYNTHESIS] = False
        self.failed[rows[bad], failed[bad]] = True
        self.failures[rows[bad], failed[bad]] += 1
        keep = np.flatnonzero(~lost)
        kept = outcome if len(keep) == len(rows) else Outcome._make(p[keep] for p in outcome)
        self._record(rows[keep], actions[keep], kept)
        self.reason[rows[is_fallback & (self.reason[rows] == RUNNING)]] = FELL_BACK
        limits = self.settings.context
        excess = self.context[rows] - limits.trim_above_tokens
        self.over_threshold[rows] = np.maximum(self.over_threshold[rows], excess)
        self.reason[rows[self.context[rows] > limits.max_tokens]] = OVERFLOWED
        self.over[rows] = self.reason[rows] != RUNNING
        self.mask[rows] = self._open(rows)

    def forced(self, rows: Ints) -> Ints:
        """Return those of `rows` (k,) that must fall back now, and record the reason.

        Their next action is FALLBACK, which is no further decision.
        """
        spent = left_ms(self.elapsed_ms[rows], self.settings) <= 0
        must = spent | (self.iteration[rows] >= self.settings.limits.max_iterations)
        must &= ~self.over[rows]
        found = rows[must]
        self.reason[found] = np.where(spent[must], OUT_OF_TIME, OUT_OF_ITERATIONS)
        self.setup_ms[found] = self.tokens[found] = 0
        return found

    def _record(self, rows: Ints, actions: Ints, outcome: Outcome) -> None:
        """Put outcomes that were not lost into the state."""
        self.context[rows] += outcome.context
        self.unread[rows] += np.maximum(outcome.context, 0)
        named = outcome.strategy >= 0
        for name in ("strategy", "complexity", "needs_planning", "confidence"):
            getattr(self, name)[rows[named]] = getattr(outcome, name)[named]
        self.routed[rows[named]] = True
        at = rows[planned := outcome.subtasks > 0]
        self.planned[at] = True
        self.subtasks[at] = self.pending[at] = outcome.subtasks[planned]
        if (came := outcome.answered > 0).any():  # drafts on fewer passages are obsolete
            at, answered = rows[came], outcome.answered[came]
            whole = ~self.planned[at] | (self.pending[at] == 0)
            self.searched[at[whole], strategy_of(actions[came][whole])] = True
            self.pending[at] = np.maximum(self.pending[at] - answered, 0)
            before, after = self.searches[at], self.searches[at] + answered
            self.searches[at] = after
            self.score[at] = (self.score[at] * before + outcome.score[came] * answered) / after
            docs = np.minimum(self.docs[at] + outcome.docs[came], self.settings.passages.most)
            self.docs[at] = docs
            duplicates = self.duplicates[at] + outcome.duplicates[came]
            self.duplicates[at] = np.minimum(duplicates, docs - 1)
            width = np.where(actions[came] >= PARALLEL, answered, 1)
            self.widest[at] = np.maximum(self.widest[at], width)
            self.merged[at] = self.drafted[at] = self.judged[at] = False
            self.issues[at], self.severity[at] = 0, 0
        at = rows[actions == REWRITE]
        self.rewritten[at] = True
        self.searched[at] = False
        at = rows[(actions == SYNTHESIZE) & (outcome.failed < 0)]
        self.merged[at] = True
        self.docs[at] -= self.duplicates[at]
        self.duplicates[at] = 0
        at = rows[actions == TRIM]
        self.trimmed[at] = True
        self.trimmed_to[at] = self.context[at]
        # A supervisor that is a model reads again what follows the place of the cut.
        newest = (1.0 - self.settings.context.oldest_share) * self.context[at]
        self.unread[at] = newest.astype(np.int64)
        written = outcome.drafted
        self.regenerations[rows[written & (actions == REGENERATE)]] += 1
        self.drafted[rows[written]] = True
        self.judged[rows[written]] = False
        at = rows[judged := outcome.judged]
        self.judged[at] = True
        for name in ("valid", "verdict", "issues", "severity"):
            getattr(self, name)[at] = getattr(outcome, name)[judged]
        gives = (actions == ANSWER) & self.drafted[rows] & (outcome.failed < 0)
        self.reason[rows[gives]] = ANSWERED
