"""Threads that run compiled code side by side: it holds no lock of the interpreter."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.native import Bound

MOST_THREADS: Final = 256
_LEAST_ROWS: Final = 16  # of a thread: handing over a share takes as long as a dozen rows


class Crew:
    """Threads that run an entry point, each on a share of the work.

    The caller's thread takes the first share; the others start when they are first needed, and end
    with the crew. Not to be called by two threads at a time.

    Args:
        entry: an entry point.
        num_threads: T, the caller's included.

    Attributes:
        own: the entry point as the caller's thread runs it.
    """

    def __init__(self, entry: Any, num_threads: int) -> None:
        self._entry = entry
        self.num_threads = num_threads
        self.own = Bound(entry)
        self._members: list[_Member] = []
        self._process = 0  # that the members are threads of
        self._rows: NDArray[np.int64] | None = None
        self._slices: list[slice] = []
        self._shares: list[NDArray[np.int64]] = []

    def __reduce__(self) -> tuple[type[Crew], tuple[Any, int]]:
        return Crew, (self._entry, self.num_threads)

    def split(self, rows: NDArray[np.int64]) -> tuple[list[slice], list[NDArray[np.int64]]]:
        """Return equal shares of rows, at most T, as slices and as arrays."""
        if rows is not self._rows:
            count = max(1, min(self.num_threads, len(rows) // _LEAST_ROWS))
            ends = np.linspace(0, len(rows), count + 1).astype(int).tolist()
            self._rows = rows
            self._slices = [slice(a, b) for a, b in pairwise(ends)]
            self._shares = [rows[part] for part in self._slices]
        return self._slices, self._shares

    def run(self, shares: Sequence[tuple[Any, ...]]) -> None:
        """Call the entry point with each of these arguments, and wait for all.

        Raises:
            RuntimeError: The compiled code has failed.
        """
        others = shares[1:]
        if others:
            self._call_up(len(others))
        for member, share in zip(self._members, others, strict=False):
            member.begin(share)
        try:
            self.own(*shares[0])
        finally:
            errors = [member.wait() for member, _ in zip(self._members, others, strict=False)]
        for error in errors:
            if error is not None:
                raise error

    def _call_up(self, count: int) -> None:
        """Start threads up to that number; a forked process has none of its parent's."""
        if self._process != os.getpid():
            self._members, self._process = [], os.getpid()
        while len(self._members) < count:
            member = _Member(Bound(self._entry))
            member.start()
            weakref.finalize(self, member.dismiss)
            self._members.append(member)


class _Member(threading.Thread):
    """A thread of a crew.

    Args:
        call: what it runs.
    """

    def __init__(self, call: Bound) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._share: tuple[Any, ...] | None = None
        self._error: Exception | None = None
        self._begin, self._end = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._end.acquire()

    def begin(self, share: tuple[Any, ...]) -> None:
        """Let it work on a share."""
        self._share = share
        self._begin.release()

    def wait(self) -> Exception | None:
        """Wait until it is done; return what went wrong."""
        self._end.acquire()
        error, self._error = self._error, None
        return error

    def dismiss(self) -> None:
        """Let the thread end."""
        self._share = None
        self._begin.release()

    def run(self) -> None:
        """Work on shares until there is none."""
        while self._begin.acquire() and self._share is not None:
            try:
                self._call(*self._share)
            except Exception as error:
                self._error = error
            self._end.release()
