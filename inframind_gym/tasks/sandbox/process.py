"""Locked processes, from outside of them: starting, reading messages, ending; formulas."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import marshal
import os
import queue
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from inframind_gym.errors import InfraMindError, needs

START_S = 60.0  # until a process must be ready, however busy the machine is
MAX_OUTPUT = 4 << 20  # bytes that a process may send; a thousand times what a judgement says
_MODULES = ("lockdown", "harness")  # in the order in which they import one another
# A process gets these modules compiled, with its job: nothing is looked for on the disk.
_START = """
import marshal, os, sys
data = b""
while part := os.read(0, 1 << 20):
    data += part
modules, job = marshal.loads(data)
package = sys.modules["jail"] = type(sys)("jail")
package.__path__ = []
for name, code in modules:
    module = sys.modules["jail." + name] = type(sys)("jail." + name)
    module.__package__ = "jail"
    setattr(package, name, module)
    exec(code, module.__dict__)
del data, modules, code
module.main(job)
"""
# All that a process finds in its environment. The fixed seed makes sets of texts have the same
# order in every run. NumPy's libraries start no threads.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class SandboxError(InfraMindError):
    """Code cannot be isolated here, so none is run."""


@functools.cache
def _modules() -> list[tuple[str, CodeType]]:
    """Return the names of the modules that run in a locked process, and their compiled code."""
    folder = Path(__file__).parent
    return [
        (name, compile((folder / f"{name}.py").read_text("utf-8"), f"<jail.{name}>", "exec"))
        for name in _MODULES
    ]


def package_places(name: str) -> list[Path]:
    """Return the folders of an installed package, with the libraries it brings; [] if it is not."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return []
    places = [Path(place).resolve() for place in spec.submodule_search_locations]
    libraries = places[0].with_name(f"{name}.libs")
    return [*places, *([libraries] if libraries.is_dir() else [])]


class Process:
    """A locked process: a fresh interpreter with an empty environment and no standard streams.

    It is in a session of its own and inherits nothing but the pipe of its messages, and that of
    requests where the job (see `harness.main`) is "formulas". It may read the given packages.
    """

    def __init__(self, job: dict[str, Any], packages: Sequence[str]) -> None:
        places = [place for name in packages for place in package_places(name)]
        self._nonce = secrets.token_hex(16)
        self._read, out = os.pipe()
        requests, self._requests = os.pipe()
        self._pending, self._received = bytearray(), 0
        job_fd = os.memfd_create("job")
        try:
            job = job | {
                "nonce": self._nonce,
                "out": out,
                "requests": requests,
                "readable": [str(place) for place in places],
                "folders": sorted({str(place.parent) for place in places}),
            }
            with open(job_fd, "wb", closefd=False) as stream:
                marshal.dump((_modules(), job), stream)
            os.lseek(job_fd, 0, os.SEEK_SET)
            python = getattr(sys, "_base_executable", None) or sys.executable
            self._process = subprocess.Popen(
                [python, "-S", "-s", "-B", "-X", "utf8", "-c", _START],
                stdin=job_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd="/",
                pass_fds=(out, requests),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._read)
            os.close(self._requests)
            raise SandboxError(
                f"the sandbox cannot start a process: {error}. Judge fewer answers at a time."
            ) from None
        finally:
            for fd in (job_fd, out, requests):
                os.close(fd)
        first = next(self.messages(START_S), ["unlocked", "not ready in time, or it ended"])
        if first[0] != "ready":
            self.end()
            raise SandboxError(
                f"the sandbox cannot be had, so no code is run: {first[-1]}. Containers can forbid "
                "what it needs (the system calls prctl and seccomp)."
            )

    def request(self, value: Any) -> None:
        """Send a line of JSON."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._requests, f"{json.dumps(value)}\n".encode())

    def messages(self, within_s: float) -> Iterator[list[Any]]:
        """Yield the harness's messages until the process ends, time is up or it says too much."""
        until = time.monotonic() + within_s
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                nonce, _, content = bytes(line).partition(b" ")
                if secrets.compare_digest(nonce, self._nonce.encode()):
                    with contextlib.suppress(ValueError, RecursionError):
                        yield json.loads(content)
            left_s = until - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return
            data = os.read(self._read, 1 << 16)
            self._received += len(data)
            if not data or self._received > MAX_OUTPUT:
                return
            self._pending += data

    def end(self) -> None:
        """Kill the process with its whole group, wait for its end and close its pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._requests)


MAX_FORMULA = 2000  # characters; what a question asks for is never longer
TIMEOUT_S = 5
_PER_PROCESS = 500  # comparisons: SymPy's caches grow
_MATH_PACKAGES = ("math_verify", "latex2sympy2_extended", "antlr4", "sympy", "mpmath")


class Formulas:
    """Processes that compare formulas by math-verify. Threads can share one.

    They stay, because importing SymPy takes most of a second.
    """

    def __init__(self, landlock: bool, workers: int) -> None:
        limits = {"cpu_s": None, "memory_mb": 1024, "parent": None, "timeout_s": TIMEOUT_S}
        self._job: dict[str, Any] = {"part": "formulas", "packages": [], "landlock": landlock}
        self._job |= limits
        self._idle: queue.SimpleQueue[tuple[Process, int]] = queue.SimpleQueue()  # and their counts
        self._slots = threading.BoundedSemaphore(workers)
        self._closed = False

    def same(self, expected: str, candidate: str) -> bool:
        """See `Sandbox.same_formula`."""
        if not candidate.strip() or max(len(expected), len(candidate)) > MAX_FORMULA:
            return False
        with self._slots:
            try:
                process, count = self._idle.get_nowait()
            except queue.Empty:
                missing = [name for name in _MATH_PACKAGES if not package_places(name)]
                if missing:
                    raise SandboxError(needs("comparing formulas", missing[0], "live")) from None
                process, count = Process(self._job, _MATH_PACKAGES), 0
            process.request([expected, candidate])
            answer = next(process.messages(TIMEOUT_S + 1), None)
            if answer is None or count + 1 == _PER_PROCESS:
                process.end()
            else:
                self._idle.put((process, count + 1))
                if self._closed:  # meanwhile
                    self.close()
            return answer == ["same", True]

    def close(self) -> None:
        """End the processes that wait."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait()[0].end()
