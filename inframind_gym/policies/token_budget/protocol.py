"""The interface of token-budget policies, and the pieces that most of them share.

It mirrors `inframind_gym.policies.Policy`: reset once with the facts of the run and one seed a row,
then asked at every decision, several rows at once. A policy may set `strategy`, the mode of the
initial allocations that it wants, and `sees_truth` if it is a bound that knows the latent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.token_budget.context import TokenBudgetContext, TokenBudgetSpec
from inframind_gym.teams.token_budget.rules import REALLOCATE, STOP, Bools, Ints
from inframind_gym.teams.token_budget.settings import SIZES

S, M, L = range(len(SIZES))


@runtime_checkable
class TokenBudgetPolicy(Protocol):
    """Chooses who spends the next tokens, or stops."""

    name: str

    def reset(self, spec: TokenBudgetSpec, seeds: Sequence[int]) -> None:
        """Forget everything and prepare for `len(seeds)` rows, one seed each."""

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: TokenBudgetContext,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the actions of several rows.

        Args:
            observations: (n, d), one a row.
            contexts: arrays with a first axis of n.
            rows: (n,) which of the rows given to `reset` these are.

        Returns:
            (n,) 0-15.
        """


class BaseTokenBudgetPolicy:
    """A policy without memory: `choose` is a function of the contexts."""

    name = "base"
    strategy: ClassVar[str] = "adaptive"
    sees_truth: ClassVar[bool] = False

    def reset(self, spec: TokenBudgetSpec, seeds: Sequence[int]) -> None:
        """Remember the facts of the run and the seeds."""
        self.spec = spec
        self.seeds = np.array([int(seed) % 2**64 for seed in seeds], np.uint64)

    def act_batch(
        self,
        observations: NDArray[np.float32],
        contexts: TokenBudgetContext,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return one action a row, by `choose`, (n,)."""
        return np.asarray(self.choose(contexts, rows), np.int64)

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return the actions (n,) of the rows (n,) whose state is `context`."""
        raise NotImplementedError


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
