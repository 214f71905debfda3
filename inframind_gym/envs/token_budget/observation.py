"""Observation of `InfraMind-TokenBudget-v0`: numbers that the application could see, too.

| numbers | | range |
|---|---|---|
| 1 | tokens left, over the budget B | -1..1 |
| 1 | log10 of B, over 5 | 0..2 |
| 3 | left of the allocation of planner, executor, critic, over B | 0..1 |
| 1 | returned by agents that were cut, over B | 0..1 |
| 3 | used by each agent, over B | 0..2 |
| 3 | points per 100 tokens of each agent's last call (ROI x 100) | -5..5 |
| 3 | points of each agent's last call, over 100 | -1..1 |
| 1 | quality by the proxies, over 100 | 0..1 |
| 2 | flags of the critic: open, resolved, over 5 | 0..2 |
| 1 | share of the structural checklist; 0 where there is none | 0..1 |
| 3 | calls of each agent, over 10 | 0..10 |
| 3 | 1 for an agent that was cut | 0..1 |
| 1 | decisions so far, over the most | 0..1 |
| 3 | complexity by the pre-flight: simple, moderate, complex | 0..1 |
| 3 | mode of the allocations: frontload, critique_heavy, adaptive | 0..1 |
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.token_budget.rules import Ints
from inframind_gym.teams.token_budget.state import TeamState

_WIDTHS: Final = (1, 1, 3, 1, 3, 3, 3, 1, 2, 1, 3, 3, 1, 3, 3)
OBSERVATION_SIZE: Final = sum(_WIDTHS)
LOW: Final = np.repeat(
    np.array([-1, 0, 0, 0, 0, -5, -1, 0, 0, 0, 0, 0, 0, 0, 0], np.float32), _WIDTHS
)
HIGH: Final = np.repeat(
    np.array([1, 2, 1, 1, 2, 5, 1, 1, 2, 1, 10, 1, 1, 1, 1], np.float32), _WIDTHS
)
_EYE: Final = np.eye(3)


def observe(state: TeamState, rows: Ints) -> NDArray[np.float32]:
    """Return the observations of some teams, (k, 32)."""
    ledger, progress = state.ledger, state.progress
    budget = ledger.budget[rows, None].astype(np.float64)
    parts = (
        ledger.remaining[rows, None] / budget,
        np.log10(budget) / 5.0,
        ledger.left[rows] / budget,
        ledger.free[rows, None] / budget,
        ledger.used[rows] / budget,
        100.0 * progress.last_roi[rows],
        progress.last_delta[rows] / 100.0,
        progress.score[rows, None] / 100.0,
        progress.flags_open[rows, None] / 5.0,
        progress.flags_resolved[rows, None] / 5.0,
        np.nan_to_num(progress.checklist[rows, None]),
        progress.calls[rows] / 10.0,
        ledger.cut[rows],
        state.steps[rows, None] / state.max_steps,
        _EYE[state.seen[rows]],
        _EYE[state.strategy[rows]],
    )
    found = np.concatenate(parts, axis=1).astype(np.float32)
    return np.asarray(np.clip(found, LOW, HIGH))
