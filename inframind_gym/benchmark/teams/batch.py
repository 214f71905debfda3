"""The loop that plays cells of a team in lock-step."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import StoppedError, blame, checked
from inframind_gym.benchmark.metrics import Columns
from inframind_gym.benchmark.teams.suite import TeamCell

Ints = NDArray[np.int64]


class Batch(ABC):
    """Cells of one policy and scenario at the begin of their episodes, by default a record each.

    Args:
        policy: it is reset for them.
        cells: one a row.
        config: checked arguments of the environment.

    Attributes:
        num_actions: of the environment.
        simulation: of all cells.
        rows: (E,) all of them.
        actions: (E,) last ones.
    """

    num_actions: ClassVar[int]

    def __init__(self, policy: Any, cells: Sequence[TeamCell], config: Any) -> None:
        self.policy, self.name, self.config = policy, cells[0].policy, config
        self.rows = np.arange(len(cells))
        self.actions, self._return = np.zeros(len(cells), np.int64), np.zeros(len(cells))
        self.simulation = self.make(policy, config, len(cells))
        self.observations = self.simulation.observations()
        generators = [seeding.np_random(cell.episode_seed)[0] for cell in cells]
        self.simulation.start(self.rows, generators, self.observations)
        with blame(self.name):
            policy.reset(self.simulation.spec(), [cell.policy_seed for cell in cells])

    @abstractmethod
    def make(self, policy: Any, config: Any, num_envs: int) -> Any:
        """Make the simulation."""

    def waiting(self) -> Ints:
        """Return the rows (k,) whose decisions wait; none: all episodes are over."""
        return np.flatnonzero(~self.simulation.over())

    def contexts(self, rows: Ints) -> Any:
        """Return what the policy sees of some rows."""
        return self.simulation.contexts(rows, truth=getattr(self.policy, "sees_truth", False))

    def step(self, rows: Ints, actions: Ints) -> int:
        """Carry out the actions (k,) of some rows; return the records that came to an end."""
        self.actions[rows] = actions
        self.simulation.step_rows(rows, self.actions, self.observations)
        self._return[rows] += self.simulation.terms[rows].sum(axis=1)
        return int(self.simulation.over()[rows].sum())

    def records(self) -> dict[str, NDArray[Any]]:
        """Return the fields of the records, (E,) or (E, records of a cell)."""
        return {**self.simulation.summaries(self.rows), "return": self._return}

    def play(
        self,
        stop: Callable[[], bool],
        progress: Callable[[int], None],
        watch: Callable[..., None] | None = None,
    ) -> tuple[list[Columns], list[float]]:
        """Play the episodes to their ends.

        Returns:
            Records of each cell, and the milliseconds that each decision of a row took.

        Raises:
            StoppedError: `stop` returned true.
            PolicyFailedError: the policy raised an error or gave no valid action.
        """
        took_ms: list[float] = []
        while len(rows := self.waiting()):
            if stop():
                raise StoppedError
            seen, context = self.observations[rows], self.contexts(rows)
            with blame(self.name):
                began = time.thread_time()
                chosen: Any = self.policy.act_batch(seen, context, rows)
                took_ms.append(1e3 * (time.thread_time() - began) / len(rows))
            actions = checked(self.name, chosen, Discrete(self.num_actions), len(rows))[:, 0]
            progress(self.step(rows, actions))
            if watch is not None:
                watch(self)
        found = self.records()
        return [
            {field: np.atleast_1d(values[row]) for field, values in found.items()}
            for row in self.rows
        ], took_ms
