"""Spreads batches of cells over processes; a process that dies costs a retry, never a result."""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from benchmarks.cells import Cell, batches
from benchmarks.errors import BenchmarkError
from benchmarks.records import encode_cell
from benchmarks.rollout import Simulator, StoppedError
from benchmarks.store import CellResult
from benchmarks.suite import SuiteConfig
from inframind_gym.errors import InfraMindError

MAX_ROWS = 128  # of one batch: enough to hide the cost of a step in Python
MAX_ATTEMPTS = 3
_REPORT_EVERY_S = 0.5
_POLL_S = 0.2


def run_cells(
    suite: SuiteConfig,
    ids: Mapping[Cell, str],
    *,
    workers: int = 1,
    max_rows: int = MAX_ROWS,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[list[CellResult]]:
    """Run cells; the results are the same for any number of workers and any size of batch.

    Args:
        suite: What the cells share.
        ids: The cells to run and their ids.
        workers: Processes; 1 runs everything in this one.
        max_rows: Most cells that run in lock-step.
        stop: Asked several times a second; "yes" ends the run.
        progress: Told how many queries have finished since it was told last.

    Yields:
        Results as soon as they are there, in no particular order.

    Raises:
        StoppedError: `stop` said so.
        BenchmarkError: A policy failed, or worker processes keep dying.
    """
    rows = min(max_rows, math.ceil(len(ids) / workers)) or 1
    work = batches(list(ids), rows)
    if min(workers, len(work)) > 1:
        Simulator(suite).warm_up(work[0][0])  # compiles once, not once a process
        pool = _Pool(suite, ids, min(workers, len(work)))
        yield from pool.run(work, stop, progress)
        return
    simulator = Simulator(suite, stop, progress)
    for batch in work:
        yield from _run_batch(simulator, batch, ids)


def _run_batch(
    simulator: Simulator, batch: Sequence[Cell], ids: Mapping[Cell, str]
) -> Iterator[list[CellResult]]:
    for finished in simulator.run(batch):
        yield [
            encode_cell(cell, ids[cell], completed, names) for cell, completed, names in finished
        ]


class _Progress:
    """Sends the count of finished queries to the parent, not more than twice a second."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._sent_at = time.monotonic()

    def __call__(self, queries: int) -> None:
        self._count += queries
        if time.monotonic() - self._sent_at > _REPORT_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Send what has not been sent."""
        if self._count:
            self._connection.send(("progress", self._count))
        self._count, self._sent_at = 0, time.monotonic()


def _work(connection: Connection, suite: SuiteConfig) -> None:
    """Body of a worker process: batches in, results out, until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    report = _Progress(connection)
    simulator = Simulator(suite, progress=report)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent is gone
        while True:
            ids: dict[Cell, str] = connection.recv()
            try:
                for results in _run_batch(simulator, list(ids), ids):
                    connection.send(("results", results))
                report.flush()
                connection.send(("idle", None))
            except InfraMindError as error:
                connection.send(("error", str(error)))


class _Worker:
    """A process and the cells that it still owes."""

    def __init__(self, suite: SuiteConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(theirs, suite), daemon=True)
        self.process.start()
        theirs.close()
        self.owed: dict[str, Cell] = {}

    def give(self, batch: Sequence[Cell], ids: Mapping[Cell, str]) -> None:
        """Hand out a batch."""
        self.owed = {ids[cell]: cell for cell in batch}
        with suppress(BrokenPipeError, ConnectionResetError):  # it has died: reading will tell
            self.connection.send({cell: ids[cell] for cell in batch})

    def end(self) -> int | None:
        """Stop the process.

        Returns:
            Its exit code, if it had ended by itself.
        """
        self.process.join(timeout=0.1)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        self.connection.close()
        return code


class _Pool:
    """Worker processes, refilled as they become idle and replaced when they die."""

    def __init__(self, suite: SuiteConfig, ids: Mapping[Cell, str], size: int) -> None:
        self._suite, self._ids, self._size = suite, ids, size
        self._attempts: Counter[Cell] = Counter()
        self._workers: dict[Connection, _Worker] = {}

    def run(
        self,
        work: Sequence[Sequence[Cell]],
        stop: Callable[[], bool],
        progress: Callable[[int], None],
    ) -> Iterator[list[CellResult]]:
        queue = deque(work)
        try:
            while queue or self._workers:
                while queue and len(self._workers) < self._size:
                    worker = _Worker(self._suite)
                    self._workers[worker.connection] = worker
                    worker.give(queue.popleft(), self._ids)
                if stop():
                    raise StoppedError
                for ready in wait(list(self._workers), timeout=_POLL_S):
                    worker = self._workers[cast(Connection, ready)]
                    try:
                        kind, content = worker.connection.recv()
                    except (EOFError, ConnectionResetError):
                        queue.extend(self._bury(worker))
                        continue
                    if kind == "results":
                        for result in content:
                            del worker.owed[result.line["cell"]]
                        yield content
                    elif kind == "idle":
                        self._next(worker, queue)
                    else:
                        self._handle(kind, content, progress)
        finally:
            for worker in self._workers.values():
                worker.end()

    def _next(self, worker: _Worker, queue: deque[Sequence[Cell]]) -> None:
        if queue:
            worker.give(queue.popleft(), self._ids)
        else:
            del self._workers[worker.connection]
            worker.end()

    def _handle(self, kind: str, content: Any, progress: Callable[[int], None]) -> None:
        if kind == "error":
            raise BenchmarkError(content)
        progress(content)

    def _bury(self, worker: _Worker) -> list[list[Cell]]:
        """Take a dead worker's unfinished cells back, in halves in case they were too many."""
        del self._workers[worker.connection]
        code = worker.end()
        cells = list(worker.owed.values())
        self._attempts.update(cells)
        lost = [cell for cell in cells if self._attempts[cell] >= MAX_ATTEMPTS]
        if lost:
            raise BenchmarkError(
                f"a worker process died {MAX_ATTEMPTS} times (last exit code {code}), last with "
                f"{lost[0]}. If memory ran out, use fewer --workers; what has finished is kept."
            )
        middle = math.ceil(len(cells) / 2)
        return [half for half in (cells[:middle], cells[middle:]) if half]
