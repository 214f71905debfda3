"""Stop on marginal ROI: the adaptive mode as its worked example plays it, and to the letter."""

from __future__ import annotations

import numpy as np

from inframind_gym.envs.token_budget.context import TokenBudgetContext
from inframind_gym.errors import require_within
from inframind_gym.policies.token_budget.protocol import BaseTokenBudgetPolicy, M, request
from inframind_gym.teams.token_budget.rules import CRITIC, CUT, EXECUTOR, PLANNER, STOP, Bools, Ints


class AdaptiveRoiPolicy(BaseTokenBudgetPolicy):
    """Plan, draft, then review and revise; the critic is cut when its ROI falls below a threshold.

    The cut returns the critic's allocation, and one closing revision follows. An agent whose
    allocation is short gets what the others have not spent. The threshold is not applied to the
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

    def choose(self, context: TokenBudgetContext, rows: Ints) -> Ints:
        """Return the next call, a cut, or STOP."""
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
        return np.where(calls[:, PLANNER] == 0, request(context, PLANNER, M), action)

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
