"""The interface of assignment policies, and the pieces that most of them share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.policies.protocol import BaseBatchPolicy, BatchPolicy
from inframind_gym.teams.assignment import rules

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
AssignmentPolicy = BatchPolicy[AssignmentSpec, AssignmentContext]  # actions (n,) 0-7


class BaseAssignmentPolicy(BaseBatchPolicy[AssignmentSpec, AssignmentContext]):
    """A policy that decides from the contexts alone, by `choose`, and learns in `observe`."""

    def observe(self, completed: Completed) -> None:
        """Learn from tasks that ended; `completed.row` are rows given to `reset`."""

    def best(self, values: Floats, rows: Ints, ordinals: Ints, use: int = 99) -> Ints:
        """Return the places of the largest of `values` (n, k), drawn where several are, (n,)."""
        largest = values >= values.max(axis=1, keepdims=True)
        place = self.draw(rows, ordinals, use) * largest.sum(axis=1)
        found = np.cumsum(largest, axis=1) > np.floor(place)[:, None]
        return np.asarray((found & largest).argmax(axis=1))


def penalties(spec: AssignmentSpec, context: AssignmentContext) -> Floats:
    """Return the load penalty of each action, (n, 8); without a window's penalty zeros."""
    n = len(context.task)
    if spec.config.queues:
        return np.zeros((n, rules.NUM_ACTIONS))
    agents = rules.agent_of(np.arange(rules.NUM_ACTIONS))
    return np.stack(
        [rules.load_penalty(context.counts, np.full(n, agent)) for agent in agents], axis=1
    )


def one_a_row(completed: Completed) -> Iterator[Completed]:
    """Split tasks so that no part has two of one row, in the order in which they ended."""
    left = np.ones(len(completed.row), np.bool_)
    while left.any():
        places = np.flatnonzero(left)
        first = places[np.unique(completed.row[places], return_index=True)[1]]
        chosen = np.zeros_like(left)
        chosen[first] = True
        left &= ~chosen
        yield completed.of(chosen)
