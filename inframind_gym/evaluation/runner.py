"""Run a suite into a results folder, from where an earlier run of the same command left off."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.cells import Cell, without_draw
from inframind_gym.evaluation.play import PolicyFailedError
from inframind_gym.evaluation.store import REQUESTS, Finished, ResultStore, plan
from inframind_gym.evaluation.suite import Suite
from inframind_gym.progress import ProgressReport, say

MAX_ROWS: Final = 64  # of one batch: enough to hide the cost of a step in Python

J = TypeVar("J")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a run."""

    cells: int  # cells of the suite
    computed: int  # cells that this run has computed
    kept: int  # cells that earlier runs had computed
    wall_s: float  # seconds that this run took
    stopped: bool  # whether it was stopped before the end


def run(
    suite: Suite,
    folder: Path,
    *,
    workers: int | None = 1,
    max_rows: int = MAX_ROWS,
    command: Sequence[str] = (),
) -> RunSummary:
    """Compute the cells of a suite that a folder does not hold yet.

    Ctrl-C and SIGTERM end the run; batches that have finished are kept. Every policy is reset in
    every environment before anything is run. One that cannot play, then or later, is left out: the
    run goes on, and ``run.json`` has the reason.

    Args:
        suite: A resolved suite.
        folder: Where results go.
        workers: Processes; None: one for each core.
        max_rows: Most cells in lock-step; a batch is kept when its last cell ends.
        command: The command line, for the record.

    Raises:
        ConfigError: The folder cannot be used, no policy can play, the disk is full, or there
            are no live servers to show metrics of.
    """
    began = time.monotonic()
    header, ids = plan(suite, command)
    computed, stopped = 0, False
    with ResultStore(folder, header) as store:
        todo = {cell: name for cell, name in ids.items() if name not in store.finished}
        if kept := len(ids) - len(todo):
            say(f"{folder}: {kept} of {len(ids)} cells are there, {len(todo)} to go")

        def leave_out(error: PolicyFailedError) -> None:
            say(f"{error}\nThe run goes on without it.")
            store.leave_out(error.policy, error.reason)

        total, left = (sum(map(suite.length, cells)) for cells in (ids, todo))
        unit = suite.unit
        with ProgressReport(total, total - left, suite.name, unit) as report, _sigterm():
            try:
                for batch in play(
                    suite,
                    todo,
                    workers=workers,
                    max_rows=max_rows,
                    progress=report.advance,
                    failed=leave_out,
                    log=folder / REQUESTS,
                ):
                    store.commit(batch)
                    computed += len(batch)
            except KeyboardInterrupt:
                stopped = True
        left_out = store.header["left_out"]
        if set(suite.policies) <= set(left_out):
            reasons = "; ".join(f"{name}: {left_out[name]}" for name in suite.policies)
            raise ConfigError(f"no policy can play: {reasons}")
    return RunSummary(len(ids), computed, kept, time.monotonic() - began, stopped)


def play(
    suite: Suite,
    ids: Mapping[Cell, str],
    *,
    workers: int | None = 1,
    max_rows: int = MAX_ROWS,
    progress: Callable[[int], None],
    failed: Callable[[PolicyFailedError], None],
    **live: Any,
) -> Iterator[list[Finished]]:
    """Play the cells of `ids`, after every policy has been reset in every environment.

    Yields batches of finished cells, in no particular order. `progress` is called with the number
    of records since its last call, `failed` once for each policy that cannot play, whose other
    cells are left out. `live` are options of a player on live servers; the rest is as in `run`.
    """
    from joblib import cpu_count

    workers, left_out = workers or cpu_count(), set[str]()

    def leave_out(error: PolicyFailedError) -> None:
        if error.policy not in left_out:
            left_out.add(error.policy)
            failed(error)

    player = suite.player(progress, **live)
    try:
        # All posterior draws of a workload share an environment: the first one is checked.
        first = {
            (cell.policy, cell.training, *without_draw(cell.place)[0][: suite.together]): cell
            for cell in reversed(list(ids))
        }
        for error in player.refused(sorted(first.values(), key=lambda c: suite.group_of(c)[2:])):
            leave_out(error)
        cells = sorted((c for c in ids if c.policy not in left_out), key=lambda c: c.sort_key)
        if not cells:
            return
        if player.one_at_a_time:
            workers, max_rows = 1, 1
        # A batch is played in lock-step; episodes of one place end at about the same step.
        size, groups = min(max_rows, math.ceil(len(cells) / workers)), dict[Any, list[Cell]]()
        for cell in cells:
            groups.setdefault(suite.group_of(cell), []).append(cell)
        jobs = [own[i : i + size] for own in groups.values() for i in range(0, len(own), size)]
        workers = min(workers, len(jobs))
        several = workers > 1
        work: Callable[[list[Cell]], Any] = partial(_play_batch, player)
        if several:
            for cell in cells:  # compiled once, not once a process
                with suppress(PolicyFailedError):  # which is told when the cell is played
                    player.warm_up(cell)
                    break
            work = partial(_play_in_worker, type(suite), suite.model_dump_json(), os.getcwd())
        for batch, played in in_parallel(
            work, jobs, workers, lambda batch: batch[0].policy not in left_out
        ):
            if isinstance(played, PolicyFailedError):
                leave_out(played)
                continue
            if several:  # players in other processes cannot report their progress
                progress(sum(map(suite.length, batch)))
            yield [Finished(cell, ids[cell], columns) for cell, columns in played]
    finally:
        player.close()


def _play_batch(player: Any, batch: list[Cell]) -> Any:
    """Play a batch in this process; return its records, or the policy's failure."""
    try:
        return player.run(batch)
    except PolicyFailedError as error:
        return error


def _play_in_worker(family: type[Suite], suite: str, folder: str, batch: list[Cell]) -> Any:
    """Play a batch in another process, which keeps its player."""
    os.chdir(folder)
    return _play_batch(_worker_player(family, suite, folder), batch)


@lru_cache(maxsize=1)
def _worker_player(family: type[Suite], suite: str, folder: str) -> Any:
    return family.model_validate_json(suite).player()


# Processes


def in_parallel(
    work: Callable[[J], Any],
    jobs: Sequence[J],
    workers: int,
    wanted: Callable[[J], bool] = lambda job: True,
) -> Iterator[tuple[J, Any]]:
    """Yield jobs with their results as they finish, from `workers` processes; one: from this one.

    Jobs start in order, unless they are no longer `wanted`; `work` must be a module's function.

    Raises:
        ConfigError: A process has died.
    """
    if workers == 1:
        yield from ((job, work(job)) for job in jobs if wanted(job))
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    begin = {"initializer": _begin_worker, "initargs": (os.getpid(),)}
    with parallel_config("loky", n_jobs=workers, inner_max_num_threads=1, **begin):
        todo = (delayed(_do_job)(work, i, jobs[i]) for i in range(len(jobs)) if wanted(jobs[i]))
        try:
            for i, result in Parallel(return_as="generator_unordered", batch_size=1)(todo):
                yield jobs[i], result
        except TerminatedWorkerError as error:
            raise ConfigError(
                f"a process died ({str(error).split('.')[0]}). What has finished is kept: the same "
                "command goes on from there. If memory ran out, use fewer --workers."
            ) from None


def _do_job(work: Callable[[Any], Any], number: int, job: Any) -> tuple[int, Any]:
    return number, work(job)


def _begin_worker(parent: int) -> None:
    """Ignore Ctrl-C in this process, which its parent handles, and end it with the parent."""

    def end_with_parent() -> None:
        while os.getppid() == parent:  # another one if it has died before this process began
            time.sleep(0.2)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()


@contextmanager
def _sigterm() -> Iterator[None]:
    """Take SIGTERM for Ctrl-C, for the time of a block in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
