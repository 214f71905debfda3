"""The interface of token-budget policies, and the pieces that most of them share.

A policy may set `strategy`, the mode of the initial allocations that it wants, and `sees_truth` if
it is a bound that knows the latent state.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from inframind_gym.envs.token_budget.context import TokenBudgetContext, TokenBudgetSpec
from inframind_gym.policies.protocol import BaseBatchPolicy, BatchPolicy
from inframind_gym.teams.token_budget.rules import REALLOCATE, STOP, Bools, Ints
from inframind_gym.teams.token_budget.settings import SIZES

S, M, L = range(len(SIZES))
TokenBudgetPolicy = BatchPolicy[TokenBudgetSpec, TokenBudgetContext]  # actions (n,) 0-15


class BaseTokenBudgetPolicy(BaseBatchPolicy[TokenBudgetSpec, TokenBudgetContext]):
    """A policy without memory: `choose` is a function of the contexts."""

    strategy: ClassVar[str] = "adaptive"
    sees_truth: ClassVar[bool] = False


def payable(context: TokenBudgetContext, agent: int) -> Bools:
    """Return (n,) whether the agent's own allocation pays a call of it."""
    return np.asarray(context.limits[:, agent, S] > 0)


def request(context: TokenBudgetContext, agent: int, size: int) -> Ints:
    """Return (n,) calls of an agent, after a reallocation where its allocation is short.

    Where neither allocation nor budget pays, the action is STOP.
    """
    limit, most = context.limits[:, agent, size], context.max_tokens[agent, size]
    room = context.remaining - context.estimates[:, agent]
    short = limit < np.minimum(most, room)
    helps = short & context.mask[:, REALLOCATE + agent] & ~_covered(context, agent, room)
    call = np.where(context.mask[:, agent * len(SIZES) + size], agent * len(SIZES) + size, STOP)
    return np.where(helps, REALLOCATE + agent, call)


def _covered(context: TokenBudgetContext, agent: int, room: Ints) -> Bools:
    """Return (n,) whether the ceiling, not the allocation, is what limits a call."""
    own = context.left[:, agent] + context.free - context.estimates[:, agent]
    return np.asarray(own >= room)
