"""Observation of `InfraMind-Coordination-v0`: numbers that the application sees, too.

| numbers | | range |
|---|---|---|
| 3 | complexity by the question's words: simple, medium, complex | 0..1 |
| 1 | 1 where the question refers to an exchange before | 0..1 |
| 1 | 1 once it is routed | 0..1 |
| 3 | strategy that the router named: vector, hybrid, graphrag | 0..1 |
| 3 | complexity that it named | 0..1 |
| 2 | 1 where it asks for a plan; its confidence | 0..1 |
| 3 | 1 once there is a plan; sub-tasks that wait, that are done, over 3 | 0..1 |
| 3 | 1 for each strategy by which the whole question was searched for | 0..1 |
| 4 | searches over 3; passages over 10; their mean score; share of duplicates | 0..4 |
| 3 | 1 once the question is rewritten, the passages are merged, there is a draft | 0..1 |
| 3 | 1 once the draft is validated, where it is valid; confidence of the validation | 0..1 |
| 4 | issues by type; the worst severity, over 3 | 0..1 |
| 2 | drafts written again, over 2; retries over 3 | 0..1 |
| 5 | 1 for an agent whose last call failed | 0..1 |
| 3 | tokens of the conversation over 131,072; 1 above 120,000; 1 once it was trimmed | 0..2 |
| 2 | time over the deadline of the complexity that is known, and over the hard deadline | 0..2 |
| 2 | overhead of the last decision over 200 ms; time of its agents in seconds | 0..5 |
| 1 | decisions over 10 | 0..1 |
| 1 | tokens of all calls over 4,096 | 0..4 |
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.teams.coordination import rules
from inframind_gym.teams.coordination.rules import Ints
from inframind_gym.teams.coordination.state import CoordinationState

_WIDTHS: Final = (3, 1, 1, 3, 3, 2, 3, 3, 4, 3, 3, 4, 2, 5, 3, 2, 2, 1, 1)
_HIGHS: Final = (1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1, 1, 2, 2, 5, 1, 4)
OBSERVATION_SIZE: Final = sum(_WIDTHS)
LOW: Final = np.zeros(OBSERVATION_SIZE, np.float32)
HIGH: Final = np.repeat(np.array(_HIGHS, np.float32), _WIDTHS)
_ONE_HOT: Final = np.vstack([np.eye(3), np.zeros(3)])  # the last row is that of -1


def observe(state: CoordinationState, rows: Ints) -> NDArray[np.float32]:
    """Return the observations of some questions, (k, 49)."""
    settings = state.settings
    limits, context = settings.limits, state.context[rows]
    elapsed, docs = state.elapsed_ms[rows], state.docs[rows]
    done = np.where(state.planned[rows], state.subtasks[rows] - state.pending[rows], 0)
    columns = (
        _ONE_HOT[state.hint[rows]],
        state.refers[rows],
        state.routed[rows],
        _ONE_HOT[state.strategy[rows]],
        _ONE_HOT[state.complexity[rows]],
        state.needs_planning[rows],
        state.confidence[rows],
        state.planned[rows],
        state.pending[rows] / 3.0,
        done / 3.0,
        state.searched[rows],
        state.searches[rows] / 3.0,
        docs / settings.passages.most,
        state.score[rows],
        state.duplicates[rows] / np.maximum(docs, 1),
        state.rewritten[rows],
        state.merged[rows],
        state.drafted[rows],
        state.judged[rows],
        state.valid[rows],
        state.verdict[rows],
        state.issues[rows],
        state.severity[rows] / 3.0,
        state.regenerations[rows] / rules.MOST_REGENERATIONS,
        state.retries[rows] / max(limits.max_retries, 1),
        state.failed[rows],
        context / settings.context.max_tokens,
        context > settings.context.trim_above_tokens,
        state.trimmed[rows],
        elapsed / rules.deadline_ms(state.known_complexity(rows), settings),
        elapsed / (1000.0 * limits.hard_s),
        state.setup_ms[rows] / (1000.0 * limits.decision_s),
        state.agent_ms[rows] / 1000.0,
        state.iteration[rows] / limits.max_iterations,
        state.total_tokens[rows] / 4096.0,
    )
    found = np.empty((len(rows), OBSERVATION_SIZE), np.float32)
    start = 0
    for column in columns:
        width = 1 if column.ndim == 1 else column.shape[1]
        found[:, start : start + width] = column.reshape(len(rows), width)
        start += width
    return np.clip(found, LOW, HIGH, out=found)
