"""Rules of the token-budget team: the budget, the scores of steps, and what may be done next.

Plain functions on arrays with a row a team: no clock, no I/O and no random numbers. Application
and environment call the same ones, the application with one row.

A budget is a hard ceiling for the team. Each agent has an allocation in it, a soft limit: beyond
its own an agent spends what agents that were cut have returned. An agent call may be answered in
as many tokens as both limits leave after its prompt, so the team exceeds its budget at most by the
error in the estimate of a prompt's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.token_budget.settings import AGENTS, SIZES, ProxyWeights

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PLANNER, EXECUTOR, CRITIC = range(3)
# Actions: 0-8 call an agent at a size (3 agent + size), then three of each kind, then STOP.
CUT: Final = len(AGENTS) * len(SIZES)
REALLOCATE: Final = CUT + len(AGENTS)
STOP: Final = REALLOCATE + len(AGENTS)
NUM_ACTIONS: Final = STOP + 1


@dataclass(slots=True)
class Ledger:
    """Tokens of n teams.

    Attributes:
        budget: (n,) hard ceilings.
        left: (n, 3) what is left of each agent's allocation.
        free: (n,) returned by agents that were cut.
        used: (n, 3) tokens of each agent's calls.
        overhead: (n,) tokens of pre-flight and self-evaluations.
        cut: (n, 3) agents that are not called again.
    """

    budget: Ints
    left: Ints
    free: Ints
    used: Ints
    overhead: Ints
    cut: Bools

    @classmethod
    def empty(cls, n: int) -> Ledger:
        """Return ledgers without a token."""
        one, three = np.zeros((5, n), np.int64), np.zeros((2, n, 3), np.int64)
        return cls(one[0], three[0], one[1], three[1], one[2], np.zeros((n, 3), np.bool_))

    @property
    def spent(self) -> Ints:
        """(n,) tokens of all calls."""
        return np.asarray(self.used.sum(axis=1) + self.overhead)

    @property
    def remaining(self) -> Ints:
        """(n,) tokens below the ceiling; negative after an overshoot."""
        return self.budget - self.spent


@dataclass(slots=True)
class Progress:
    """Scores of n teams, as far as the application sees them.

    Attributes:
        score: (n,) quality by the proxies, 0-100.
        flag_share: (n,) share of the critic's flags that are resolved; NaN before the first.
        checklist: (n,) share of the structural checklist that is there; NaN where there is none.
        flags_open, flags_resolved: (n,) flags of the critic.
        calls: (n, 3) calls of each agent.
        last_tokens: (n, 3) of each agent's last call.
        last_delta: (n, 3) points of quality that it brought.
        last_roi: (n, 3) points per token.
    """

    score: Floats
    flag_share: Floats
    checklist: Floats
    flags_open: Ints
    flags_resolved: Ints
    calls: Ints
    last_tokens: Ints
    last_delta: Floats
    last_roi: Floats

    @classmethod
    def empty(cls, n: int) -> Progress:
        """Return the progress of teams that have done nothing."""
        real, whole = np.zeros((3, n)), np.zeros((2, n), np.int64)
        threes, wholes = np.zeros((2, n, 3)), np.zeros((2, n, 3), np.int64)
        return cls(*real, *whole, *wholes, *threes)

    def clear(self, rows: Ints) -> None:
        """Forget what some teams have done."""
        for name in self.__slots__:
            getattr(self, name)[rows] = 0
        self.flag_share[rows] = np.nan
        self.checklist[rows] = np.nan


class Evidence(NamedTuple):
    """Facts by which k steps are scored.

    Attributes:
        self_eval: (k,) rating of the team's product by an LLM, 0-100; NaN where none came.
        checklist: (k,) share of the structural checklist; NaN where there is none.
        found: (k,) new flags of the critic.
        resolved: (k,) flags that a revision resolved.
        claimed: (k,) points that the critic says its new flags are worth.
    """

    self_eval: Floats
    checklist: Floats
    found: Ints
    resolved: Ints
    claimed: Floats


# Budget


def allocate(budget: Any, shares: Any) -> Ints:
    """Share budgets out, (..., 3) tokens; what rounding leaves is the executor's.

    Args:
        budget: (...,) tokens.
        shares: (..., 3), summing to 1.
    """
    whole = np.asarray(budget, np.int64)
    exact = whole[..., None] * np.asarray(shares, np.float64)
    parts: Ints = np.floor(exact + 1e-9).astype(np.int64)
    parts[..., EXECUTOR] += whole - parts.sum(axis=-1)
    return parts


def open_budget(ledger: Ledger, rows: Ints, budget: Ints, shares: Any) -> None:
    """Give some teams a new budget (k,) and its allocations."""
    ledger.budget[rows] = budget
    ledger.left[rows] = allocate(budget, shares)
    for part in (ledger.free, ledger.used, ledger.overhead, ledger.cut):
        part[rows] = 0


def call_limits(
    ledger: Ledger,
    rows: Ints,
    prompt_estimate: Ints,
    max_tokens: Ints,
    self_eval: int,
    min_completion: int,
) -> Ints:
    """Return the tokens in which every agent may answer at every size, 0 where it is not called.

    Args:
        ledger: of all teams.
        rows: (k,) teams.
        prompt_estimate: (k, 3) estimated tokens of each agent's prompt.
        max_tokens: (3, 3) by agent and size.
        self_eval: tokens of the self-evaluation that follows.
        min_completion: a limit below this refuses the call.

    Returns:
        (k, 3, 3) by agent and size.
    """
    hard = ledger.remaining[rows, None] - self_eval
    soft = ledger.left[rows] + ledger.free[rows, None]
    room = np.minimum(hard, soft) - prompt_estimate
    room[ledger.cut[rows] | (room < min_completion)] = 0
    return np.asarray(np.minimum(max_tokens, room[:, :, None]))


def can_go_on(
    ledger: Ledger, rows: Ints, prompt_estimate: Ints, self_eval: int, min_completion: int
) -> Bools:
    """Return (k, 3) the agents for whose call there is room below the ceiling.

    Arguments are those of `call_limits`.
    """
    hard = ledger.remaining[rows, None] - self_eval - prompt_estimate
    return np.asarray(~ledger.cut[rows] & (hard >= min_completion))


def spend(ledger: Ledger, rows: Ints, agents: Ints, tokens: Ints) -> None:
    """Charge k calls to their agents: to the allocation first, then to what was returned."""
    own = np.minimum(ledger.left[rows, agents], tokens)
    ledger.left[rows, agents] -= own
    ledger.free[rows] -= np.minimum(ledger.free[rows], tokens - own)
    ledger.used[rows, agents] += tokens


def cut(ledger: Ledger, rows: Ints, agents: Ints) -> None:
    """Cut k agents off; what is left of their allocations returns to the pool."""
    ledger.free[rows] += ledger.left[rows, agents]
    ledger.left[rows, agents] = 0
    ledger.cut[rows, agents] = True


def movable(ledger: Ledger, rows: Ints, share: float) -> Ints:
    """Return (k, 3) tokens that `reallocate` would move to each agent."""
    given = np.floor(share * ledger.left[rows]).astype(np.int64)
    return np.asarray(given.sum(axis=1)[:, None] - given + ledger.free[rows, None])


def reallocate(ledger: Ledger, rows: Ints, agents: Ints, share: float) -> Ints:
    """Move what was returned, and a share of what others have not spent, to k agents.

    Returns:
        (k,) tokens that were moved.
    """
    given = np.floor(share * ledger.left[rows]).astype(np.int64)
    at = np.arange(len(rows)), agents
    given[at] = 0
    moved = given.sum(axis=1) + ledger.free[rows]
    given[at] = -moved
    ledger.left[rows] -= given
    ledger.free[rows] = 0
    return np.asarray(moved)


def share_out(ledger: Ledger, rows: Ints, shares: Floats) -> None:
    """Allocate all that remains anew, by shares (k, 3)."""
    ledger.left[rows] = allocate(np.maximum(ledger.remaining[rows], 0), shares)
    ledger.free[rows] = 0


# Scores


def quality(self_eval: Any, flag_share: Any, checklist: Any, weights: ProxyWeights) -> Floats:
    """Return the weighted mean of the proxies that there are, 0-100; 0 where there is none.

    Args:
        self_eval: (k,) points, 0-100; NaN where no rating came.
        flag_share: (k,) share of flags resolved, NaN before there are flags.
        checklist: (k,) share of the checklist, NaN where there is none.
        weights: of the three.
    """
    total, weight = np.zeros(np.shape(self_eval)), np.zeros(np.shape(self_eval))
    for points, own in (
        (np.asarray(self_eval, np.float64), weights.self_eval),
        (100.0 * np.asarray(flag_share, np.float64), weights.flags),
        (100.0 * np.asarray(checklist, np.float64), weights.checklist),
    ):
        there = ~np.isnan(points)
        total = total + np.where(there, own * points, 0.0)
        weight = weight + np.where(there, own, 0.0)
    mean = total / np.where(weight > 0.0, weight, 1.0)
    return np.asarray(np.clip(mean, 0.0, 100.0))


def roi(delta: Any, tokens: Any) -> Floats:
    """Return points of quality per token."""
    return np.asarray(np.asarray(delta, np.float64) / np.maximum(tokens, 1))


def record(
    progress: Progress,
    rows: Ints,
    agents: Ints,
    tokens: Ints,
    evidence: Evidence,
    weights: ProxyWeights,
) -> None:
    """Score k steps.

    A critic changes nothing in the product: its step is worth the points that it claims for its
    new flags. The flags count as a proxy of quality from the next step of another agent on.
    """
    is_critic = agents == CRITIC
    found = progress.flags_open[rows] + evidence.found
    progress.flags_open[rows] = found - evidence.resolved
    progress.flags_resolved[rows] += evidence.resolved
    known = progress.flags_open[rows] + progress.flags_resolved[rows]
    share = np.where(known > 0, progress.flags_resolved[rows] / np.maximum(known, 1), np.nan)
    progress.flag_share[rows] = np.where(is_critic, progress.flag_share[rows], share)
    progress.checklist[rows] = evidence.checklist
    score = quality(evidence.self_eval, progress.flag_share[rows], evidence.checklist, weights)
    delta = np.where(is_critic, evidence.claimed, score - progress.score[rows])
    progress.score[rows] = score
    progress.calls[rows, agents] += 1
    progress.last_tokens[rows, agents] = tokens
    progress.last_delta[rows, agents] = delta
    progress.last_roi[rows, agents] = roi(delta, tokens)


# Choices


def action_mask(limits: Ints, has_draft: Bools, cut_off: Bools, moved: Ints) -> Bools:
    """Return the actions that are open to k teams, (k, 16).

    Args:
        limits: (k, 3, 3) of `call_limits`.
        has_draft: (k,) whether the critic has something to review.
        cut_off: (k, 3) agents that were cut.
        moved: (k, 3) of `movable`.
    """
    mask = np.zeros((len(limits), NUM_ACTIONS), np.bool_)
    mask[:, :CUT] = (limits > 0).reshape(len(limits), CUT)
    mask[:, CRITIC * len(SIZES) : CUT] &= has_draft[:, None]
    mask[:, CUT:REALLOCATE] = ~cut_off
    mask[:, REALLOCATE:STOP] = ~cut_off & (moved > 0)
    mask[:, STOP] = True
    return mask


def describe(action: int) -> str:
    """Return an action in words."""
    if action == STOP:
        return "stop"
    if action >= REALLOCATE:
        return f"reallocate to {AGENTS[action - REALLOCATE]}"
    if action >= CUT:
        return f"cut {AGENTS[action - CUT]}"
    return f"{AGENTS[action // len(SIZES)]} {SIZES[action % len(SIZES)]}"
