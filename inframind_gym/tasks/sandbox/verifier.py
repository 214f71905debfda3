"""Processes that compare formulas: they stay, because importing SymPy takes most of a second."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import dataclass, field

from inframind_gym.errors import needs
from inframind_gym.tasks.sandbox.jail import wire
from inframind_gym.tasks.sandbox.process import (
    START_S,
    SandboxError,
    end,
    package_places,
    pipes,
    read_message,
    start,
)

TIMEOUT_S = 5
MEMORY_MB = 1024
MAX_FORMULA = 2000  # characters; what a question asks for is never longer
PER_PROCESS = 500  # comparisons: SymPy's caches grow
_PACKAGES = ("math_verify", "latex2sympy2_extended", "antlr4", "sympy", "mpmath")


@dataclass
class _Process:
    """A process that is ready, and the pipes to and from it."""

    process: subprocess.Popen[bytes]
    requests: int
    results: int
    served: int = 0

    def close(self) -> None:
        """End it."""
        end(self.process)
        os.close(self.requests)
        os.close(self.results)


@dataclass
class Verifier:
    """A few processes of the sandbox that run math-verify. Threads can share one.

    Attributes:
        landlock: whether the kernel's Landlock is used.
        workers: processes at most.
    """

    landlock: bool
    workers: int
    _idle: list[_Process] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._slots = threading.BoundedSemaphore(self.workers)

    def same(self, expected: str, found: str) -> bool:
        """See :meth:`Sandbox.same_formula`."""
        if not found.strip() or max(len(expected), len(found)) > MAX_FORMULA:
            return False
        with self._slots:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                process = _start(self.landlock)
            result = self._ask(process, wire.encode((expected, found)))
            with self._lock:
                keep = result is not None and process.served < PER_PROCESS and not self._closed
                if keep:
                    self._idle.append(process)
            if not keep:
                process.close()
            return result is True

    def _ask(self, process: _Process, request: bytes) -> bool | None:
        """Return the process's answer, or None where it gave none: it is of no more use then."""
        process.served += 1
        try:
            wire.send(process.requests, request)
        except wire.ClosedError:
            return None
        answer = _message(process.results, time.monotonic() + TIMEOUT_S + 1)
        return answer if isinstance(answer, bool) else None

    def close(self) -> None:
        """End the processes that wait."""
        with self._lock:
            self._closed = True
            waiting, self._idle = self._idle, []
        for process in waiting:
            process.close()


def _message(fd: int, until: float) -> object:
    """Read one message; None when time is up or the process has ended."""
    body = read_message(fd, until)
    try:
        return None if not body else wire.decode(body)
    except wire.WireError:
        return None


def _start(landlock: bool) -> _Process:
    """Start a process and wait until it is ready.

    Raises:
        SandboxError: math-verify is not installed, or the process cannot be locked.
    """
    places = []
    for name in _PACKAGES:
        found = package_places(name)
        if not found:
            raise SandboxError(needs("comparing formulas", name, "live"))
        places += found
    with pipes(2) as ((requests_r, requests_w), (results_r, results_w)):
        job = {
            "part": "verifier",
            "landlock": landlock,
            "readable": [str(place) for place in places],
            "folders": sorted({str(place.parent) for place in places}),
            "packages": [],
            "cpu_s": None,
            "memory_mb": MEMORY_MB,
            "parent": None,
            "requests": requests_r,
            "results": results_w,
            "timeout_s": TIMEOUT_S,
        }
        process = _Process(
            start(job, (requests_r, results_w)), os.dup(requests_w), os.dup(results_r)
        )
    ready = _message(process.results, time.monotonic() + START_S)
    if ready != "ready":
        process.close()
        raise SandboxError(f"math-verify cannot be run in the sandbox: {ready or 'it ended'}")
    return process
