"""Modes with fixed allocations, and limits that do not look at quality."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from inframind_gym.envs.token_budget.context import TokenBudgetContext
from inframind_gym.errors import require_within
from inframind_gym.policies.token_budget.protocol import (
    BaseTokenBudgetPolicy,
    L,
    M,
    S,
    payable,
    request,
)
from inframind_gym.teams.token_budget.rules import CRITIC, CUT, EXECUTOR, PLANNER, STOP, Ints
from inframind_gym.teams.token_budget.settings import SIZES


class _FixedMode(BaseTokenBudgetPolicy):
    """Plan, draft, then review and revise in turn while the allocations pay; no reallocation."""

    plans: ClassVar[int]
    sizes: ClassVar[tuple[int, int, int]]  # of planner, executor, critic

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return the next call of the schedule, or STOP where its agent's allocation is spent."""
        calls = context.calls
        reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]
        agent = np.where(reviewed, EXECUTOR, CRITIC)
        planned = calls[:, PLANNER] >= self.plans
        agent = np.where(planned | ~payable(context, PLANNER), agent, PLANNER)
        action = agent * len(SIZES) + np.array(self.sizes)[agent]
        return np.where(context.mask[np.arange(len(rows)), action], action, STOP)


class FrontloadPolicy(_FixedMode):
    """Two long plans, a long draft, and what little review the rest allows."""

    name = "frontload"
    strategy = "frontload"
    plans = 2
    sizes = (L, L, S)


class CritiqueHeavyPolicy(_FixedMode):
    """A short plan, a draft, then reviews and revisions until an allocation is spent."""

    name = "critique_heavy"
    strategy = "critique_heavy"
    plans = 1
    sizes = (S, M, L)


class SpendAllPolicy(BaseTokenBudgetPolicy):
    """Long calls until no call can be paid: the limit of tokens is the only stop."""

    name = "spend_all"

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return plan, draft, review, revision, … , or whatever call is still open."""
        action = _in_turn(context, L)
        any_call = context.mask[:, :CUT]
        fallback = np.where(any_call.any(axis=1), any_call.argmax(axis=1), STOP)
        return np.where(action == STOP, fallback, action)


class SingleShotPolicy(BaseTokenBudgetPolicy):
    """One long call of the executor."""

    name = "single_shot"

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return the executor's call, then STOP."""
        return np.where(context.has_draft, STOP, request(context, EXECUTOR, L))


class FixedCallsPolicy(BaseTokenBudgetPolicy):
    """As many calls as a limit of turns allows, as agent frameworks count them.

    Args:
        k: number of calls.

    Raises:
        ConfigError: `k` is no number from 1 to 1000.
    """

    def __init__(self, k: int | str = 6) -> None:
        number = int(k) if isinstance(k, str) and k.isdigit() else k
        self.k = int(require_within(number, 1, 1000, "fixed_k: k (calls)"))
        self.name = "fixed_k" if self.k == 6 else f"fixed_k:{self.k}"

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return plan, draft, review, revision, …, then STOP."""
        done = context.calls.sum(axis=1) >= self.k
        return np.where(done, STOP, _in_turn(context, M))


class RandomPolicy(BaseTokenBudgetPolicy):
    """Any action that is open, all equally likely."""

    name = "random"

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return (n,) draws of the rows' seeds and their numbers of decisions."""
        return self.draw_open(rows, context.steps, context.mask)


def _in_turn(context: TokenBudgetContext, size: int) -> Ints:
    """Return (n,) the next of plan, draft, review, revision, review, … at one size."""
    calls = context.calls
    reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]
    again = np.where(reviewed, request(context, EXECUTOR, size), request(context, CRITIC, size))
    return np.where(calls[:, PLANNER] > 0, again, request(context, PLANNER, size))
