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
_STARTS: Final = tuple(int(start) for start in np.cumsum((0, *_WIDTHS[:-1])))
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
    budget = ledger.budget[rows].astype(np.float64)
    share, per_agent = 1.0 / budget, 1.0 / budget[:, None]
    ticked = progress.checklist[rows]
    parts = (
        ledger.remaining[rows] * share,
        np.log10(budget) / 5.0,
        ledger.left[rows] * per_agent,
        ledger.free[rows] * share,
        ledger.used[rows] * per_agent,
        100.0 * progress.last_roi[rows],
        progress.last_delta[rows] / 100.0,
        progress.score[rows] / 100.0,
        np.stack([progress.flags_open[rows], progress.flags_resolved[rows]], axis=1) / 5.0,
        np.where(np.isnan(ticked), 0.0, ticked),
        progress.calls[rows] / 10.0,
        ledger.cut[rows],
        state.steps[rows] / state.max_steps,
        _EYE[state.seen[rows]],
        _EYE[state.strategy[rows]],
    )
    found = np.empty((len(rows), OBSERVATION_SIZE), np.float32)
    for part, start, width in zip(parts, _STARTS, _WIDTHS, strict=True):
        if width == 1:
            found[:, start] = part
        else:
            found[:, start : start + width] = part
    return np.clip(found, LOW, HIGH, out=found)
