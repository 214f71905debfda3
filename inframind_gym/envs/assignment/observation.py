"""Observations: the row of the Q-table, or everything that the application knows.

| full | numbers | |
|---|---|---|
| `task_type` | 4 | one-hot |
| `load_state` | 5 | one-hot |
| `utilization` | 4 | share of the window |
| `window` | 8 x 4 | one-hot, oldest first; a row of zeros is an empty place |
| `fill` | 1 | places of the window that are taken, over 8 |
| `complexity`, `priority` | 1, 1 | of the task |
| `in_flight` | 8 | with queues: tasks in the server of each action, over 8, at most 5 |

"flat" are the same numbers in one Box, in this order. "tabular" is the number
5 x task type + load state, which is all that the source's learner sees.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.assignment.config import Observation
from inframind_gym.envs.assignment.context import AssignmentContext
from inframind_gym.envs.observations import ObservationForm, Places
from inframind_gym.teams.assignment.rules import (
    AGENTS,
    LOAD_STATES,
    NUM_ACTIONS,
    NUM_STATES,
    TASK_TYPES,
    WINDOW,
    state_index,
    utilization,
)

HIGHEST_IN_FLIGHT: Final = 5.0
_PARTS: Final = {
    "task_type": (len(TASK_TYPES),),
    "load_state": (len(LOAD_STATES),),
    "utilization": (len(AGENTS),),
    "window": (WINDOW, len(AGENTS)),
    "fill": (1,),
    "complexity": (1,),
    "priority": (1,),
}


class StateForm(ObservationForm):
    """Observations as numbers of states."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(0.0, NUM_STATES - 1.0, (1,), np.float32), None)
        self.space = spaces.Discrete(NUM_STATES)

    def of(self, flat: NDArray[np.float32]) -> Any:
        """Return the states of observations (..., 1) as integers (...)."""
        states = flat[..., 0].astype(np.int64)
        return states if states.ndim else np.int64(states)


def flat_space(queues: bool) -> tuple[spaces.Box, Places]:
    """Return the Box of all numbers, and where the entries of the Dict are in it."""
    shapes = {**_PARTS, **({"in_flight": (NUM_ACTIONS,)} if queues else {})}
    places, begin = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        places[name] = np.arange(begin, begin + size).reshape(shape)
        begin += size
    high = np.ones(begin, np.float32)
    if queues:
        high[places["in_flight"]] = HIGHEST_IN_FLIGHT
    return spaces.Box(np.zeros(begin, np.float32), high, dtype=np.float32), places


def form_of(observation: Observation, queues: bool) -> ObservationForm:
    """Return the form in which observations are shown."""
    if observation == "tabular":
        return StateForm()
    box, places = flat_space(queues)
    return ObservationForm(box, places if observation == "full" else None)


def write_flat(context: AssignmentContext, queues: bool) -> NDArray[np.float32]:
    """Return the numbers of "full" and "flat" observations, (n, d)."""
    n = len(context.task)
    parts = [
        np.eye(len(TASK_TYPES), dtype=np.float32)[context.task_type],
        np.eye(len(LOAD_STATES), dtype=np.float32)[context.load_state],
        utilization(context.counts),
        (context.window[:, :, None] == np.arange(len(AGENTS))).reshape(n, WINDOW * len(AGENTS)),
        context.counts.sum(axis=1, keepdims=True) / WINDOW,
        context.complexity[:, None],
        context.priority[:, None],
    ]
    if queues:
        parts.append(np.minimum(context.in_flight / WINDOW, HIGHEST_IN_FLIGHT))
    return np.concatenate(parts, axis=1, dtype=np.float32)


def write_state(context: AssignmentContext) -> NDArray[np.float32]:
    """Return the numbers of "tabular" observations, (n, 1)."""
    return np.asarray(state_index(context.task_type, context.load_state)[:, None], np.float32)
