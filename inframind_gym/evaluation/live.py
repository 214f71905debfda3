"""Plays cells on live servers: one episode after the other, on the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import gymnasium as gym

from inframind_gym.errors import InfraMindError
from inframind_gym.evaluation.cells import Cell
from inframind_gym.evaluation.errors import BenchmarkError, PolicyFailedError
from inframind_gym.evaluation.play import Batch, Played, Player
from inframind_gym.evaluation.queries import QueryBatch
from inframind_gym.progress import say

LIVE_ID: Final = "InfraMind-StreamLive-v0"


class LiveBatch(QueryBatch):
    """An episode on live servers."""

    def begin(self) -> None:
        """Open the window; the servers count the answers of all episodes."""
        super().begin()
        self.ungraded = self.simulation.ungraded

    def columns(self, row: int) -> Any:
        """Return the queries; say which calls failed and which answers were not graded."""
        cell = self.cells[0]
        if failed := int(self.done["failed_calls"].sum()):
            say(
                f"warning: {cell}: calls that failed: {failed}; they were sent again, or count "
                "as wrong answers. The log of requests has the reasons."
            )
        if ungraded := self.simulation.ungraded - self.ungraded:
            say(f"warning: {cell}: {ungraded} answers could not be graded, and count as wrong")
        return super().columns(row)


class LivePlayer(Player):
    """Plays episodes on a pool's servers, as `Player` does on simulated ones.

    Every policy meets the same queries, arrivals and budgets; answers and latencies are the
    servers' own. Every call is appended to the file `log`.
    """

    def __init__(
        self,
        suite: Any,
        progress: Callable[[int], None] = lambda _: None,
        *,
        log: Path | None = None,
    ) -> None:
        super().__init__(suite, progress)
        self.batch, self.log = LiveBatch, log
        self.arguments = {"log": None if log is None else str(log)}
        self._env: Any = None

    def run(self, cells: Sequence[Cell]) -> list[Played]:
        """Play cells one by one.

        Raises:
            PolicyFailedError: The policy cannot play on this pool, or gave no valid action.
            InfraMindError: No server answers, or all went down for good.
        """
        return [played for cell in cells for played in super(LivePlayer, self).run([cell])]

    def simulate(self, policy: Any, kwargs: dict[str, Any], rows: int) -> Any:
        """Return the closed loop with the servers, which an environment holds."""
        self._env = gym.make(LIVE_ID, disable_env_checker=True, **kwargs).unwrapped
        return self._env.simulation

    def check(self, cell: Cell) -> None:
        """Check that a policy can play a cell, without the servers."""
        self.reset_policy(self.make([cell]))

    def begin(self, cells: Sequence[Cell]) -> Any:
        """Begin an episode; servers that do not answer are not the policy's fault."""
        batch = self.make(cells)
        self.reset(batch)
        batch.begin()
        self.reset_policy(batch)
        return batch

    def play(self, batch: Batch) -> list[Played]:
        """Play an episode that has begun; say what to do where the servers are gone."""
        try:
            return super().play(batch)
        except InfraMindError as error:
            servers = batch.simulation.servers
            if isinstance(error, PolicyFailedError) or servers is None or servers.watcher.up:
                raise
            raise BenchmarkError(
                f"{batch.cells[0]}: {error}. Finished cells are kept, and so are the calls of this "
                f"one ({self.log}). Bring the servers up (inframind pool up --pool "
                f"{self.suite.pool}); the same command goes on from there."
            ) from None
