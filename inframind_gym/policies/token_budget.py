"""Policies of the token budget: modes of the design, rules, and the exact optimum.

A policy's `strategy` is the mode of its initial allocations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from inframind_gym.envs.core import Ints
from inframind_gym.envs.token_budget import TokenBudgetSpec
from inframind_gym.errors import ConfigError, require_within
from inframind_gym.policies.base import ContextPolicy, place_in
from inframind_gym.teams.token_budget import optimum
from inframind_gym.teams.token_budget.rules import (
    CRITIC,
    CUT,
    EXECUTOR,
    PLANNER,
    REALLOCATE,
    STOP,
    TeamState,
)
from inframind_gym.teams.token_budget.settings import SIZES

S, M, L = range(len(SIZES))


class BaseTokenBudgetPolicy(ContextPolicy[TokenBudgetSpec, TeamState]):
    """A policy without memory: `choose` is a function of the contexts."""

    strategy: ClassVar[str] = "adaptive"


def request(context: TeamState, agent: int, size: int) -> Ints:
    """Return the actions (n,) towards a call of an agent.

    A reallocation to it where its allocation is short, else the call; STOP where it cannot be paid.
    """
    limit, most = context.limits[:, agent, size], context.max_tokens[agent, size]
    room = context.remaining - context.estimates[:, agent]
    short = limit < np.minimum(most, room)
    own = context.left[:, agent] + context.free - context.estimates[:, agent]
    # Where its own tokens reach `room` the ceiling, not the allocation, limits the call.
    helps = short & context.mask[:, REALLOCATE + agent] & (own < room)
    call = np.where(context.mask[:, agent * len(SIZES) + size], agent * len(SIZES) + size, STOP)
    return np.where(helps, REALLOCATE + agent, call)


def _in_turn(context: TeamState, size: int) -> Ints:
    """Return (n,) the next of plan, draft, review, revision, review, … at one size."""
    calls = context.calls
    reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]
    again = np.where(reviewed, request(context, EXECUTOR, size), request(context, CRITIC, size))
    return np.where(calls[:, PLANNER] > 0, again, request(context, PLANNER, size))


class _FixedMode(BaseTokenBudgetPolicy):
    """Plan, draft, then review and revise in turn while the allocations pay; no reallocation."""

    plans: ClassVar[int]
    sizes: ClassVar[tuple[int, int, int]]  # of planner, executor, critic

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the next call of the schedule, or STOP where its agent's allocation is spent."""
        calls = context.calls
        reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]
        agent = np.where(reviewed, EXECUTOR, CRITIC)
        planned = calls[:, PLANNER] >= self.plans
        agent = np.where(planned | (context.limits[:, PLANNER, S] <= 0), agent, PLANNER)
        action = agent * len(SIZES) + np.array(self.sizes)[agent]
        return np.where(context.mask[np.arange(len(rows)), action], action, STOP)


class FrontloadBudget(_FixedMode):
    """Two long plans, a long draft, and what little review the rest allows."""

    strategy = "frontload"
    plans = 2
    sizes = (L, L, S)


class CritiqueHeavyBudget(_FixedMode):
    """A short plan, a draft, then reviews and revisions until an allocation is spent."""

    strategy = "critique_heavy"
    plans = 1
    sizes = (S, M, L)


class SpendAllBudget(BaseTokenBudgetPolicy):
    """Long calls until no call can be paid: the limit of tokens is the only stop."""

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return plan, draft, review, revision, … , or whatever call is still open."""
        action = _in_turn(context, L)
        any_call = context.mask[:, :CUT]
        fallback = np.where(any_call.any(axis=1), any_call.argmax(axis=1), STOP)
        return np.where(action == STOP, fallback, action)


class SingleShotBudget(BaseTokenBudgetPolicy):
    """One long call of the executor."""

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the executor's call, then STOP."""
        return np.where(context.has_draft, STOP, request(context, EXECUTOR, L))


class FixedCallsBudget(BaseTokenBudgetPolicy):
    """As many calls as a limit of turns allows, as agent frameworks count them.

    Args:
        k: number of calls.

    Raises:
        ConfigError: `k` is no number from 1 to 1000.
    """

    def __init__(self, k: int = 6) -> None:
        self.k = int(require_within(k, 1, 1000, "fixed_k: k (calls)"))
        self.name = "fixed_k" if self.k == 6 else f"fixed_k:{self.k}"

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return plan, draft, review, revision, …, then STOP."""
        done = context.calls.sum(axis=1) >= self.k
        return np.where(done, STOP, _in_turn(context, M))


class RandomBudget(BaseTokenBudgetPolicy):
    """Any action that is open, all equally likely."""

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return (n,) draws of the rows' seeds and their numbers of decisions."""
        return place_in(context.mask, self.draw(rows, context.steps))


class AdaptiveRoiBudget(BaseTokenBudgetPolicy):
    """Plan, draft, then review and revise; the critic is cut when its ROI falls below a threshold.

    After each round of review and revision, what the others have not spent goes to the agent of the
    higher ROI; the planner has no further call, and so no part in it. An agent whose turn it is and
    whose allocation is short gets the tokens back. The cut returns the critic's allocation, and one
    closing revision follows. The threshold is not applied to the executor: in the worked example of
    the design the executor falls below it at its first call and goes on. `adaptive_roi_strict`
    applies it to all.
    """

    strict: ClassVar[bool] = False

    def reset(self, spec: TokenBudgetSpec, seeds: Sequence[int]) -> None:
        """Forget the rounds after which tokens were moved."""
        super().reset(spec, seeds)
        self._moved_after = np.zeros(len(seeds), np.int64)  # calls at the last move

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the next call, a reallocation, a cut, or STOP, (n,)."""
        calls, is_cut, last_roi = context.calls, context.cut, context.last_roi
        # (n, 3) agents whose last ROI is below the threshold
        low = (calls > 0) & (last_roi < self.spec.settings.roi_threshold)
        reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]  # the executor's turn
        revise, review = request(context, EXECUTOR, M), request(context, CRITIC, M)
        goes_on = reviewed | (self.strict & ~low[:, EXECUTOR])
        after_cut = np.where(goes_on, revise, STOP)  # of the critic
        action = np.where(is_cut[:, CRITIC], after_cut, np.where(reviewed, revise, review))
        action = np.where(low[:, CRITIC] & ~is_cut[:, CRITIC], CUT + CRITIC, action)
        if self.strict:
            cut_or_stop = np.where(is_cut[:, EXECUTOR], STOP, CUT + EXECUTOR)
            action = np.where(low[:, EXECUTOR], cut_or_stop, action)
        action = np.where(calls[:, PLANNER] == 0, request(context, PLANNER, M), action)
        # Where a round has ended, a reallocation to the higher ROI comes first.
        number = calls.sum(axis=1)
        best = np.where(last_roi[:, EXECUTOR] > last_roi[:, CRITIC], EXECUTOR, CRITIC)
        move = REALLOCATE + best
        ended = (calls[:, CRITIC] > 0) & (calls[:, EXECUTOR] > calls[:, CRITIC])
        ended &= ~is_cut.any(axis=1) & ((action < CUT) | (action >= REALLOCATE))
        ended &= (action != STOP) & (self._moved_after[rows] < number)
        ended &= context.mask[np.arange(len(rows)), move]
        self._moved_after[rows] = np.where(ended, number, self._moved_after[rows])
        return np.where(ended, move, action)


class AdaptiveRoiStrictBudget(AdaptiveRoiBudget):
    """Every agent is cut when its ROI falls below the threshold; without executor the team stops.

    With the price of a token as the threshold, this is the policy that is greedy by one step.
    """

    strict = True


class OptimalBudget(BaseTokenBudgetPolicy):
    """The best action by dynamic programming (`inframind_gym.teams.token_budget.optimum`)."""

    sees_truth = True

    def choose(self, context: TeamState, rows: Ints) -> Ints:
        """Return the optimal calls, after a reallocation where an allocation is in their way.

        Raises:
            ConfigError: the run is of an application: there is no latent state.
        """
        truth = context.truth
        if truth is None:
            raise ConfigError(
                "policy 'optimum' knows the latent state of simulated tasks and can play those "
                "alone: InfraMind-TokenBudget-v0"
            )
        spec, best = self.spec, np.full(len(rows), STOP)
        for complexity in np.unique(truth.complexity).tolist():
            same = np.flatnonzero(truth.complexity == complexity)
            task = spec.settings, complexity, spec.max_budget, spec.price
            solved = optimum.solve(*task, spec.self_eval)
            at = context.remaining[same], truth.state[same]
            best[same] = solved.look_up(solved.action, *at)
        action = np.full(len(rows), STOP)
        for call in range(CUT):
            wanted = request(context, call // len(SIZES), call % len(SIZES))
            action = np.where(best == call, wanted, action)
        return action
