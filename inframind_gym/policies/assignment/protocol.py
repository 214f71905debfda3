"""The interface of assignment policies, and the pieces that most of them share.

It mirrors `inframind_gym.policies.Policy`: reset once with the facts of the run and one seed a row,
asked at every decision, several rows at once, and shown the tasks that ended. What a policy draws
and learns belongs to a row: the same row with the same seed gets the same actions, alone or in a
batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.assignment.context import AssignmentContext, AssignmentSpec, Completed
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array
from inframind_gym.teams.assignment import rules

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@runtime_checkable
class AssignmentPolicy(Protocol):
    """Chooses an agent and a provider for every task."""

    name: str

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Forget everything and prepare for `len(seeds)` rows, one seed each."""

    def act_batch(
        self, observations: NDArray[np.float32], contexts: AssignmentContext, rows: Ints
    ) -> Ints:
        """Return the actions of several rows.

        Args:
            observations: (n, ...), one a row.
            contexts: arrays with a first axis of n.
            rows: (n,) which of the rows given to `reset` these are.

        Returns:
            (n,) 0-7.
        """


class BaseAssignmentPolicy:
    """A policy that decides from the contexts alone, by `choose`, and learns in `observe`."""

    name = "base"

    def reset(self, spec: AssignmentSpec, seeds: Sequence[int]) -> None:
        """Remember the facts of the run and the seeds."""
        self.spec = spec
        self.seeds = np.array([int(seed) % 2**64 for seed in seeds], np.uint64)

    def act_batch(
        self, observations: NDArray[np.float32], contexts: AssignmentContext, rows: Ints
    ) -> Ints:
        """Return one action a row, by `choose`, (n,)."""
        return np.asarray(self.choose(contexts, rows), np.int64)

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return the actions (n,) of the rows (n,) whose state is `context`."""
        raise NotImplementedError

    def observe(self, completed: Completed) -> None:
        """Learn from tasks that ended; `completed.row` are rows given to `reset`."""

    def draw(self, rows: Ints, ordinals: Ints, use: int) -> Floats:
        """Return a number in (0, 1) for each of `rows` at its task, (n,)."""
        return uniform_array(self.seeds[rows], STREAM_POLICY, ordinals, use)

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
