"""Stop on marginal ROI: the adaptive mode as its worked example plays it, and to the letter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inframind_gym.envs.token_budget.context import TokenBudgetContext, TokenBudgetSpec
from inframind_gym.errors import require_within
from inframind_gym.policies.token_budget.protocol import BaseTokenBudgetPolicy, M, request
from inframind_gym.teams.token_budget.rules import (
    CRITIC,
    CUT,
    EXECUTOR,
    PLANNER,
    REALLOCATE,
    STOP,
    Bools,
    Ints,
)


class AdaptiveRoiPolicy(BaseTokenBudgetPolicy):
    """Plan, draft, then review and revise; the critic is cut when its ROI falls below a threshold.

    After each round of review and revision, what the others have not spent goes to the agent of the
    higher ROI; the planner has no further call, and so no part in it. An agent whose turn it is and
    whose allocation is short gets the tokens back. The cut returns the critic's allocation, and one
    closing revision follows. The threshold is not applied to the
    executor: in the worked example of the design the executor falls below it at its first call and
    goes on. `adaptive_roi_strict` applies it to all.

    Args:
        threshold: points of quality per token; that of the team's constants if None.

    Raises:
        ConfigError: `threshold` is no number from 0 to 1.
    """

    strict = False

    def __init__(self, threshold: float | str | None = None) -> None:
        self.name = "adaptive_roi_strict" if self.strict else "adaptive_roi"
        self.threshold: float | None = None
        if threshold is not None:
            self.threshold = require_within(_number(threshold), 0.0, 1.0, f"{self.name}: threshold")
            self.name += f":{self.threshold:g}"

    def reset(self, spec: TokenBudgetSpec, seeds: Sequence[int]) -> None:
        """Forget the rounds after which tokens were moved."""
        super().reset(spec, seeds)
        self._moved_after = np.zeros(len(seeds), np.int64)  # calls at the last move

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return the next call, a reallocation, a cut, or STOP."""
        calls, is_cut = context.calls, context.cut
        low = self._low(context)
        reviewed = calls[:, CRITIC] >= calls[:, EXECUTOR]  # the executor's turn
        revise, review = request(context, EXECUTOR, M), request(context, CRITIC, M)
        after_cut = np.where(reviewed | self._goes_on(context, low), revise, STOP)
        action = np.where(is_cut[:, CRITIC], after_cut, np.where(reviewed, revise, review))
        action = np.where(low[:, CRITIC] & ~is_cut[:, CRITIC], CUT + CRITIC, action)
        if self.strict:
            ends = low[:, EXECUTOR]
            cut_or_stop = np.where(is_cut[:, EXECUTOR], STOP, CUT + EXECUTOR)
            action = np.where(ends, cut_or_stop, action)
        action = np.where(calls[:, PLANNER] == 0, request(context, PLANNER, M), action)
        return self._after_round(context, rows, action)

    def _after_round(self, context: TokenBudgetContext, rows: Ints, action: Ints) -> Ints:
        """Return (n,) actions, a reallocation to the higher ROI first where a round has ended."""
        calls, last_roi, number = context.calls, context.last_roi, context.calls.sum(axis=1)
        best = np.where(last_roi[:, EXECUTOR] > last_roi[:, CRITIC], EXECUTOR, CRITIC)
        move = REALLOCATE + best
        ended = (calls[:, CRITIC] > 0) & (calls[:, EXECUTOR] > calls[:, CRITIC])
        ended &= ~context.cut.any(axis=1) & ((action < CUT) | (action >= REALLOCATE))
        ended &= (action != STOP) & (self._moved_after[rows] < number)
        ended &= context.mask[np.arange(len(rows)), move]
        self._moved_after[rows] = np.where(ended, number, self._moved_after[rows])
        return np.where(ended, move, action)

    def _low(self, context: TokenBudgetContext) -> Bools:
        """Return (n, 3) agents that were called and whose last call fell below the threshold."""
        least = self.threshold
        if least is None:
            least = self.spec.settings.roi_threshold
        return np.asarray((context.calls > 0) & (context.last_roi < least))

    def _goes_on(self, context: TokenBudgetContext, low: Bools) -> Bools:
        """Return (n,) whether revisions go on without a critic."""
        return np.zeros(len(low), np.bool_)


class AdaptiveRoiStrictPolicy(AdaptiveRoiPolicy):
    """Every agent is cut when its ROI falls below the threshold; without executor the team stops.

    With a threshold that is the price of a token, this is greedy by one step.
    """

    strict = True

    def _goes_on(self, context: TokenBudgetContext, low: Bools) -> Bools:
        """Return (n,) whether the executor still pays."""
        return np.asarray(~low[:, EXECUTOR])


def _number(text: float | str) -> object:
    try:
        return float(text)
    except ValueError:
        return text
