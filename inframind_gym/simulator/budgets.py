"""Latency budgets and arrival rates of the published training (`spec/inframind.md` §4.4, §4.5)."""

from __future__ import annotations

from typing import Final

RATES_PER_MIN: Final = (10.0, 30.0, 50.0, 100.0, 150.0, 200.0)  # queries per minute
BUDGET_TIERS_S: Final = (10.0, 30.0, 50.0, 100.0, 200.0, 300.0, 600.0, 1000.0)  # seconds
