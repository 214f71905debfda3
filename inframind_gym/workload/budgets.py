"""Latency budgets and arrival rates of the published training (`spec/inframind.md` §4.4, §4.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, require_positive

RATES_PER_MIN: Final = (10.0, 30.0, 50.0, 100.0, 150.0, 200.0)  # queries per minute
BUDGET_TIERS_S: Final = (10.0, 30.0, 50.0, 100.0, 200.0, 300.0, 600.0, 1000.0)  # seconds


def sample_budgets(
    n: int, rng: np.random.Generator, tiers_s: Sequence[float] = BUDGET_TIERS_S
) -> NDArray[np.float64]:
    """Draw one budget for each of `n` queries, every tier with equal probability.

    Args:
        n: Number of queries.
        rng: Source of randomness.
        tiers_s: Budgets to choose from, in seconds.

    Returns:
        Budgets in seconds, shape (n,).

    Raises:
        ConfigError: If there is no tier, or one is not positive and finite.
    """
    if len(tiers_s) == 0:
        raise ConfigError("budget_tiers_s must name at least one budget, got none.")
    tiers = np.array([require_positive("budget_tiers_s", tier) for tier in tiers_s])
    return tiers[rng.integers(len(tiers), size=n)]
