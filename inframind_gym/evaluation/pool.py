"""Parallel work, in processes through joblib."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from inframind_gym.evaluation.errors import BenchmarkError

J = TypeVar("J")


def available_cores() -> int:
    """Count the cores that this process may use; all cores where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_parallel(
    work: Callable[[J], Any],
    jobs: Sequence[J],
    workers: int,
    wanted: Callable[[J], bool] = lambda job: True,
) -> Iterator[tuple[J, Any]]:
    """Yield jobs with their results as they come.

    Args:
        work: A function of a module.
        jobs: In the order in which they are begun.
        workers: Processes, at most; one is this one.
        wanted: Whether a job that is about to begin is still to be done.

    Raises:
        BenchmarkError: A process has died.
    """
    if workers == 1:
        yield from ((job, work(job)) for job in jobs if wanted(job))
        return
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    with parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
        todo = (delayed(_numbered)(work, i, jobs[i]) for i in range(len(jobs)) if wanted(jobs[i]))
        try:
            for i, result in Parallel(return_as="generator_unordered", batch_size=1)(todo):
                yield jobs[i], result
        except TerminatedWorkerError as error:
            raise BenchmarkError(
                f"a process died ({str(error).split('.')[0]}). What has finished is kept: the same "
                "command goes on from there. If memory ran out, use fewer --workers."
            ) from None


def _numbered(work: Callable[[Any], Any], number: int, job: Any) -> tuple[int, Any]:
    """Do a job in a process that leaves Ctrl-C to its parent and ends as soon as that has ended."""
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    if not any(thread.name == "end-with-parent" for thread in threading.enumerate()):
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()
    return number, work(job)
