"""Lagrange multipliers: the weight of a query's cost against solving it.

Cost is latency over budget; the constraint is that its mean stays at or below `limit`. A multiplier
sees the mean cost of one batch after another.
"""

from __future__ import annotations

import math
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


@dataclass
class PIDMultiplier:
    """PID-controlled multiplier (Stooke, Achiam, Abbeel, ICML 2020, Algorithm 2).

    Δ = C̄ - limit, I ← max(I + K_I·Δ, 0), ∂ = max(C̄ - C̄_before, 0) and
    λ = max(K_P·Δ + I + K_D·∂, 0), with Δ and C̄ smoothed exponentially, for a batch is noisy. K_I
    is inside of the integral, which is the same as outside and lets I start at λ.
    """

    value: float = 0.2  # λ at the start
    kp: float = 0.05  # K_P
    ki: float = 0.001  # K_I
    kd: float = 0.05  # K_D
    limit: float = 1.0  # mean cost that is allowed
    smoothing: float = 0.9  # share of the old value that smoothing keeps, in [0, 1)
    integral: float | None = None  # I; None starts it at `value`
    smooth_error: float = 0.0  # Δ, smoothed
    smooth_cost: float | None = None  # C̄, smoothed; None before the first batch
    most: float | None = None  # largest λ, and largest I: it winds up no further; None: no bound

    def update(self, mean_cost: float) -> None:
        """Take one step for the mean cost of a batch."""
        keep = self.smoothing
        error = mean_cost - self.limit
        before = mean_cost if self.smooth_cost is None else self.smooth_cost
        self.smooth_cost = keep * before + (1.0 - keep) * mean_cost
        self.smooth_error = keep * self.smooth_error + (1.0 - keep) * error
        start = self.value if self.integral is None else self.integral
        most = math.inf if self.most is None else self.most
        self.integral = min(max(start + self.ki * error, 0.0), most)
        rising = max(self.smooth_cost - before, 0.0)
        value = self.kp * self.smooth_error + self.integral + self.kd * rising
        self.value = min(max(value, 0.0), most)
