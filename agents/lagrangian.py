"""The Lagrange multiplier: the weight of a query's cost against solving it.

Cost is latency over budget; the constraint is that its mean stays at or below `limit`. It
sees the mean cost of one batch after another.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Multiplier:
    """Dual ascent, λ ← clip(λ + η·(C̄ - limit), 0, max), with C̄ the mean cost of a batch."""

    value: float = 0.2  # λ at the start
    lr: float = 0.001  # η
    limit: float = 1.0  # mean cost that is allowed
    max_value: float | None = 1.0  # largest λ; None: there is no bound

    def update(self, mean_cost: float) -> None:
        """Take one step for the mean cost of a batch."""
        self.value = max(self.value + self.lr * (mean_cost - self.limit), 0.0)
        if self.max_value is not None:
            self.value = min(self.value, self.max_value)
