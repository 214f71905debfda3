"""Rules of the coordination team: what may be done next, time, deadlines, fallback, reward.

Plain functions on arrays with a row a question: no clock, no I/O and no random numbers. Application
and environment call the same ones, the application with one row. Times are whole milliseconds.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.coordination.settings import (
    STRATEGIES,
    CoordinationSettings,
    RewardSettings,
    ServerSettings,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
    "rewrite",
    "synthesize",
    "validate",
    "trim",
    "answer",
    "regenerate",
    "fallback",
)
# The agent that an action calls, -1 for none. ANSWER, REGENERATE: the synthesis agent writes.
AGENT_OF: Final = np.array(
    [ROUTER, PLANNER, *[RETRIEVAL] * 6, -1, SYNTHESIS, VALIDATION, -1, SYNTHESIS, SYNTHESIS, -1]
)
MOST_REGENERATIONS: Final = 2
TERMS: Final = ("answer", "attribution", "validation", "time", "tokens")


def strategy_of(actions: Any) -> Any:
    """Return the strategy of retrievals, a place in STRATEGIES."""
    return (np.asarray(actions) - RETRIEVE) % len(STRATEGIES)


def is_retrieval(actions: Any) -> Any:
    """Return whether actions search, one by one or in parallel."""
    return (np.asarray(actions) >= RETRIEVE) & (np.asarray(actions) < REWRITE)


def milliseconds(seconds: Any) -> Ints:
    """Return whole milliseconds."""
    return np.rint(1000.0 * np.asarray(seconds, np.float64)).astype(np.int64)


# Time


def call_s(prompt: Any, completion: Any, server: ServerSettings) -> Any:
    """Return seconds of calls, which read what is not cached of a prompt, then decode."""
    read = np.asarray(prompt) / server.prefill_tokens_per_s
    return read + np.asarray(completion) / server.decode_tokens_per_s


def wave_s(
    prompt: Ints, completion: Ints, used: Bools, server: ServerSettings, max_num_seqs: int
) -> Floats:
    """Return seconds of calls that begin together, (k,).

    Reading is bound by arithmetic: calls share its rate. Decoding is bound by memory: up to
    `max_num_seqs` calls decode at the rate of one, the longest first; further ones come after them.

    Args:
        prompt, completion: (k, w) tokens of each call.
        used: (k, w) which of them there are.
        server: rates.
        max_num_seqs: calls that decode together.
    """
    read = np.where(used, prompt, 0).sum(axis=1) / server.prefill_tokens_per_s
    longest_first = -np.sort(-np.where(used, completion, 0), axis=1)
    decoded = longest_first[:, ::max_num_seqs].sum(axis=1)
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


def must_fall_back(elapsed_ms: Ints, iteration: Ints, settings: CoordinationSettings) -> Bools:
    """Return (k,) whether neither time nor iterations are left for another decision."""
    spent = left_ms(elapsed_ms, settings) <= 0
    return np.asarray(spent | (iteration >= settings.limits.max_iterations))


# Context


def kept_exchanges(sizes: Ints, room: Ints, oldest_share: float) -> Bools:
    """Return which exchanges of a history stay when it is trimmed, (k, x).

    The oldest stay while they fit their share, then the newest while they fit the rest, then the
    oldest of the others. One that is larger than all the room is passed over.

    Args:
        sizes: (k, x) tokens, oldest first.
        room: (k,) tokens that may stay.
        oldest_share: part of the room for the oldest exchanges; with 0 the newest alone stay.
    """
    kept, fits = np.zeros(sizes.shape, np.bool_), sizes <= room[:, None]
    oldest_first, share = range(sizes.shape[1]), np.floor(oldest_share * room)
    turns = ((oldest_first, share), (oldest_first[::-1], room), (oldest_first, room))
    for order, most in turns if oldest_share else turns[1:2]:
        going = np.ones(len(sizes), np.bool_)
        left = most - np.where(kept, sizes, 0).sum(axis=1)
        for i in order:
            asks = fits[:, i] & ~kept[:, i]
            going &= ~asks | (sizes[:, i] <= left)
            kept[:, i] |= asks & going
            left = left - np.where(asks & going, sizes[:, i], 0)
    return kept


# Reward and cost


def reward_terms(
    ms: Ints, tokens: Ints, answer: Any, attribution: Any, unvalidated: Any, weights: RewardSettings
) -> Floats:
    """Return the terms of k decisions, (k, 5), in the order of TERMS.

    Args:
        ms: (k,) milliseconds of the decision.
        tokens: (k,) read or written in it.
        answer: (k,) score of an answer that it gave, 0-1; 0 where it gave none.
        attribution: (k,) share of its claims with a source; 0 where it gave none.
        unvalidated: (k,) whether it answered, and nobody had validated the answer.
        weights: of the terms.
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
