"""Threads that run compiled code side by side: it holds no lock of the interpreter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from inframind_gym.simulator.native import Bound

MOST_THREADS: Final = 256
_WORTHWHILE: Final = 32  # rows of a thread: waking one takes as long as dozens of them


class ThreadPool:
    """Threads that run an entry point together, each on its share of the rows.

    The caller's thread is one of them; the others start when they are first needed, and end with
    the pool. Not to be called by two threads at a time.

    Args:
        entry: an entry point, whose last two arguments are the first row of a share and the one
            behind its last.
        scratch: T values of one argument, one a thread: what it writes that is nobody else's.
        place: which argument that is.
    """

    def __init__(self, entry: Any, scratch: Sequence[Any], place: int) -> None:
        self._entry, self._scratch, self._place = entry, scratch, place
        self._calls = [Bound(entry) for _ in scratch]
        self._count, self._ends = -1, [0]  # rows of the last run, and where its shares end
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0  # that the executor's threads are of: a forked one has none

    def __reduce__(self) -> tuple[type[ThreadPool], tuple[Any, Sequence[Any], int]]:
        return ThreadPool, (self._entry, self._scratch, self._place)

    def run(self, count: int, *arguments: Any) -> None:
        """Work on `count` rows, and wait until all are done.

        Args:
            count: number of rows.
            arguments: the entry point's without the last two, as the caller's thread takes them.

        Raises:
            RuntimeError: The compiled code has failed.
        """
        if count != self._count:
            shares = max(1, min(len(self._scratch), count // _WORTHWHILE))
            self._count, self._ends = count, [count * i // shares for i in range(shares + 1)]
        first, *others = self._calls[: len(self._ends) - 1]
        if not others:
            first(*arguments, 0, count)
            return
        before, behind = arguments[: self._place], arguments[self._place + 1 :]
        for i, call in enumerate(others, 1):
            call.prepare(*before, self._scratch[i], *behind, self._ends[i], self._ends[i + 1])
        first.prepare(*arguments, 0, self._ends[1])
        if self._executor is None or self._process != os.getpid():
            self._executor = ThreadPoolExecutor(len(self._scratch) - 1, "inframind_gym")
            self._process = os.getpid()
        running = [self._executor.submit(call.run) for call in others]
        try:
            first.run()
        finally:
            failures = [future.exception() for future in running]
        for failure in filter(None, failures):
            raise failure
