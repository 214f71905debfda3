"""Batches of cells over processes or a Ray cluster; the death of a worker costs no result."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from inframind_gym.benchmark.cells import BaseCell, batches
from inframind_gym.benchmark.errors import BenchmarkError, PolicyFailedError, StoppedError
from inframind_gym.benchmark.families import Family, Player, family
from inframind_gym.benchmark.lines import CellResult
from inframind_gym.benchmark.machine import available_cores
from inframind_gym.benchmark.suite import BaseSuite
from inframind_gym.benchmark.workers import LOCAL, MAX_ATTEMPTS, Emit, WorkerDiedError, Workers
from inframind_gym.simulator.server.evidence import give, hand_on

MAX_ROWS = 128  # of one batch: enough to hide the cost of a step in Python
_FIRST_ROWS = 16  # of a policy whose speed is not known yet
_KEEP_EVERY_S = 30.0  # a batch is kept when it ends; rows in lock-step share the cost of a step
_REPORT_EVERY_S = 0.5
_ALL_OF_A_CLUSTER = 1_000_000


def default_workers(ray_address: str | None = None) -> int:
    """Return one worker for each core: of this machine, or of a running cluster."""
    return available_cores() if ray_address in (None, LOCAL) else _ALL_OF_A_CLUSTER


def run_cells(
    kind: Family,
    suite: BaseSuite,
    ids: Mapping[BaseCell, str],
    *,
    workers: int = 1,
    ray_address: str | None = None,
    max_rows: int = MAX_ROWS,
    log: Path | None = None,
    export_port: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
    failed: Callable[[PolicyFailedError], None],
) -> Iterator[list[CellResult]]:
    """Run cells; the results are the same for any number of workers, wherever, and any batch size.

    Args:
        kind: Their family.
        suite: What the cells share.
        ids: The cells to run and their ids.
        workers: Processes, or actors on Ray; one process is this one.
        ray_address: Of a Ray cluster, see `Workers`; None for processes.
        max_rows: Most cells that run in lock-step.
        log: File that the calls to live servers are appended to.
        export_port: Port at which metrics of live servers are shown.
        stop: Called several times a second; True ends the run.
        progress: Called with the amount of the family's `unit` that was done since the last call.
        failed: Called once for each policy that cannot play, with the reason; its cells are left
            out unless this raises. Every policy is asked in every environment first.

    Yields:
        Results as soon as they are there, in no particular order.

    Raises:
        StoppedError: `stop` returned True.
        BenchmarkError: Workers keep dying.
    """
    if not ids:
        return
    out: set[str] = set()

    def raise_if_stopped() -> None:
        if stop():
            raise StoppedError

    def leave_out(error: PolicyFailedError) -> None:
        if error.policy not in out:
            out.add(error.policy)
            failed(error)

    def play(player: Player, work: list[list[BaseCell]]) -> Iterator[list[CellResult]]:
        run = _Batches(kind, player).run
        for batch in work:
            if batch[0].policy not in out:
                try:
                    yield from run(batch, ids)
                except PolicyFailedError as error:
                    leave_out(error)

    def ask(player: Player) -> None:
        """Ask every policy in every environment, policies of one environment together.

        Draws of quality make no other environment: the first one stands for all.
        """
        first = {
            (
                *(cell.policy, cell.training),
                *cell.without_draw(cell.place)[0][: cell.fixed_axes],
            ): cell
            for cell in reversed(list(ids))
        }
        for cell in sorted(first.values(), key=lambda cell: cell.group[1:]):
            raise_if_stopped()
            if cell.policy not in out:
                try:
                    player.ask(cell)
                except PolicyFailedError as error:
                    leave_out(error)

    live = kind.live(suite, stop, progress=progress, log=log, export_port=export_port)
    if live is not None:  # there is one set of servers
        try:
            ask(live)
            yield from play(live, batches(list(ids), 1))
        finally:
            live.close()
        return
    simulator = kind.simulator(suite, stop, progress)
    ask(simulator)
    ids = {cell: name for cell, name in ids.items() if cell.policy not in out}
    if not ids:
        return
    if ray_address is None:
        work = _cut(ids, workers, max_rows)
        workers = min(workers, len(work))
        if workers <= 1:
            yield from play(simulator, work)
            return
        simulator.warm_up(work[0][0])  # compiles once, not once a process

    made_of = f"{__name__}:CellWorker", {"kind": kind.kind, "suite": suite}
    with Workers(*made_of, workers, ray_address) as pool:
        # A job is a batch of cells without those whose results have arrived.
        jobs = [{cell: ids[cell] for cell in b} for b in _cut(ids, pool.size, max_rows)]
        for job, (what, content) in pool.run(
            jobs,
            retry=_Halves(),
            request=lambda job: {cell: n for cell, n in job.items() if cell.policy not in out},
            stop=raise_if_stopped,
        ):
            if what == "progress":
                progress(content)
                continue
            if what == "warning":
                give(content)
                continue
            if what == "failed":
                leave_out(content)
                continue
            arrived = {result.cell_id for result in content}
            for cell in [cell for cell, name in job.items() if name in arrived]:
                del job[cell]
            yield content


def _cut(ids: Mapping[BaseCell, str], workers: int, max_rows: int) -> list[list[BaseCell]]:
    return batches(list(ids), min(max_rows, math.ceil(len(ids) / workers)))


class _Batches:
    """Runs cells of one policy, as many at once as end within `_KEEP_EVERY_S`.

    A policy that takes long to be reset gets longer batches: four times as long as its reset.

    Args:
        kind: Family of the cells.
        player: Runs them.
    """

    def __init__(self, kind: Family, player: Player) -> None:
        self._kind, self._player = kind, player
        self._rows: dict[str, int] = {}  # that end in time, of a policy

    def run(
        self, cells: Sequence[BaseCell], ids: Mapping[BaseCell, str]
    ) -> Iterator[list[CellResult]]:
        """Run cells that one vector environment can run; yields results as they are there."""
        while cells:
            policy = cells[0].policy
            rows = self._rows.get(policy, _FIRST_ROWS)
            rows = math.ceil(len(cells) / math.ceil(len(cells) / rows))  # no small rest
            asked = time.monotonic()
            for finished in self._player.run(cells[:rows]):
                yield [self._kind.encode(cell, ids[cell], *content) for cell, *content in finished]
            cells = cells[rows:]
            reset_s, spent_s = self._player.began - asked, time.monotonic() - self._player.began
            factor = max(_KEEP_EVERY_S, 4.0 * reset_s) / max(spent_s, 1e-9)
            self._rows[policy] = max(1, int(rows * min(factor, 4.0)))


class CellWorker:
    """Runs batches of cells; emits results and counts of finished queries or decisions.

    Args:
        kind: Name of their family.
        suite: What the cells share.
    """

    def __init__(self, kind: str, suite: BaseSuite) -> None:
        made = family(kind)
        self._batches = _Batches(made, made.simulator(suite, progress=self._count))
        self._queries, self._sent_at = 0, time.monotonic()
        self._emit: Emit = lambda item: None

    def __call__(self, emit: Emit, ids: Mapping[BaseCell, str]) -> None:
        """Run the cells; a count is emitted not more than twice a second."""
        self._emit = emit
        hand_on(lambda warning: emit(("warning", warning)))
        try:
            for results in self._batches.run(list(ids), ids):
                emit(("results", results))
        except PolicyFailedError as error:
            emit(("failed", error))
        self._report()

    def _count(self, queries: int) -> None:
        self._queries += queries
        if time.monotonic() - self._sent_at > _REPORT_EVERY_S:
            self._report()

    def _report(self) -> None:
        self._emit(("progress", self._queries))
        self._queries, self._sent_at = 0, time.monotonic()


class _Halves:
    """Returns a dead worker's unfinished cells, in halves in case they were too many."""

    def __init__(self) -> None:
        self._attempts: Counter[BaseCell] = Counter()

    def __call__(
        self, job: dict[BaseCell, str], death: WorkerDiedError
    ) -> list[dict[BaseCell, str]]:
        cells = list(job)
        self._attempts.update(cells)
        lost = [cell for cell in cells if self._attempts[cell] >= MAX_ATTEMPTS]
        if lost:
            raise BenchmarkError(
                f"a worker died {MAX_ATTEMPTS} times (last {death}), last with {lost[0]}. If "
                "memory ran out, use fewer --workers; what has finished is kept."
            )
        middle = math.ceil(len(cells) / 2)
        halves = (cells[:middle], cells[middle:])
        return [{cell: job[cell] for cell in half} for half in halves if half]
