"""Policies of coordination: supervisors that are rules."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from inframind_gym.envs.core import Ints
from inframind_gym.policies.base import ContextPolicy, place_in
from inframind_gym.teams.coordination.rules import (
    ANSWER,
    FALLBACK,
    PARALLEL,
    PLAN,
    REGENERATE,
    RETRIEVE,
    REWRITE,
    ROUTE,
    SYNTHESIZE,
    TRIM,
    VALIDATE,
    CoordinationState,
)
from inframind_gym.teams.coordination.settings import CoordinationSettings


class BaseCoordinationPolicy(ContextPolicy[CoordinationSettings, CoordinationState]):
    """A policy without memory: `choose` is a function of the contexts."""


class SeedSupervisor(BaseCoordinationPolicy):
    """The steps of the design, in order.

    Route; plan where the router asks for it; rewrite; search for all sub-tasks at once; merge where
    there were several searches; validate; write again once where the validation finds an issue;
    answer. A conversation that exceeds its limit is trimmed; after an agent that fails or is late
    comes the fallback.
    """

    parallel: ClassVar[bool] = True
    validates: ClassVar[bool] = True
    always_plans: ClassVar[bool] = False

    def choose(self, context: CoordinationState, rows: Ints) -> Ints:
        """Return the first step of the order that is to be done, (n,)."""
        c, strategy = context, np.maximum(context.strategy, 0)
        limit = self.spec.context.trim_above_tokens
        plans = c.needs_planning | self.always_plans
        search = np.where((c.pending > 1) & self.parallel, PARALLEL, RETRIEVE) + strategy
        action = np.select(
            [
                c.failed.any(axis=1),
                (c.context > limit) & ~c.trimmed,
                ~c.routed,
                plans & ~c.planned,
                ~c.rewritten,
                c.pending > 0,
                (c.searches > 1) & ~c.merged,
                ~c.judged & self.validates,
                c.judged & ~c.valid & (c.regenerations == 0),
            ],
            [FALLBACK, TRIM, ROUTE, PLAN, REWRITE, search, SYNTHESIZE, VALIDATE, REGENERATE],
            ANSWER,
        )
        return np.where(c.mask[np.arange(len(rows)), action], action, FALLBACK)


class SequentialSupervisor(SeedSupervisor):
    """`SeedSupervisor` with one search after the other."""

    parallel = False


class AlwaysPlan(SeedSupervisor):
    """`SeedSupervisor` with a plan for every question."""

    always_plans = True


class NoValidate(SeedSupervisor):
    """`SeedSupervisor` without validation."""

    validates = False


class BasicRag(BaseCoordinationPolicy):
    """One vector search for the whole question, then the answer."""

    search: ClassVar[int] = RETRIEVE
    validates: ClassVar[bool] = False

    def choose(self, context: CoordinationState, rows: Ints) -> Ints:
        """Return the search, then the answer; the fallback where one of them fails, (n,)."""
        answer = np.where(~context.judged & self.validates, VALIDATE, ANSWER)
        action = np.where(context.docs > 0, answer, self.search)
        open_ = context.mask[np.arange(len(rows)), action] & ~context.failed.any(axis=1)
        return np.where(open_, action, FALLBACK)


class CheckedRag(BasicRag):
    """One hybrid search for the whole question, a validation, then the answer."""

    search = RETRIEVE + 1
    validates = True


class RandomSupervisor(BaseCoordinationPolicy):
    """Any action that is open, all equally likely."""

    def choose(self, context: CoordinationState, rows: Ints) -> Ints:
        """Return draws of the rows' seeds and their numbers of decisions, (n,)."""
        return place_in(context.mask, self.draw(rows, context.iteration))
