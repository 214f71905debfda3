"""Locked processes, from outside of them: starting, sending requests, reading messages, ending."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import marshal
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from inframind_gym.errors import InfraMindError

START_S = 60.0  # until a process must be ready, however busy the machine is
MAX_OUTPUT = 4 << 20  # bytes that a process may send; a thousand times what a judgement says
MAX_VALUES = 1_000_000  # of a message, by its commas and brackets; each takes up to 100 bytes here
# A process gets its module compiled, with its job: nothing is looked for on the disk.
_START = """
import marshal, sys
read = sys.stdin.buffer.read
code, job = marshal.loads(read(int.from_bytes(read(8), "little")))
jail = sys.modules["jail"] = type(sys)("jail")
exec(code, jail.__dict__)
del code, read
jail.main(job)
"""
# All that a process finds in its environment. The fixed seed makes sets of texts have the same
# order in every run. NumPy's libraries start no threads.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class SandboxError(InfraMindError):
    """Code cannot be isolated here, so none is run."""


@functools.cache
def _jail() -> CodeType:
    """Return the module that runs in a locked process, compiled."""
    return compile(Path(__file__).with_name("jail.py").read_text("utf-8"), "<jail>", "exec")


def package_places(name: str) -> list[Path]:
    """Return the folders of an installed package, with the libraries it brings; [] if it is not."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return []
    places = [Path(place).resolve() for place in spec.submodule_search_locations]
    libraries = places[0].with_name(f"{name}.libs")
    return [*places, *([libraries] if libraries.is_dir() else [])]


class Process:
    """A locked process: a fresh interpreter with an empty environment, in a session of its own.

    It inherits two pipes, of its job and requests and of its messages, may read the given packages,
    and is locked when the constructor returns.
    """

    def __init__(self, job: dict[str, Any], packages: Sequence[str]) -> None:
        places = [place for name in packages for place in package_places(name)]
        self._nonce = secrets.token_hex(16)
        self._pending, self._received = bytearray(), 0
        content = {
            **job,
            "nonce": self._nonce,
            "readable": [str(place) for place in places],
            "folders": sorted({str(place.parent) for place in places}),
        }
        python = getattr(sys, "_base_executable", None) or sys.executable
        try:
            self._process = subprocess.Popen(
                [python, "-S", "-s", "-B", "-X", "utf8", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise SandboxError(
                f"the sandbox cannot start a process: {error}. Judge fewer answers at a time."
            ) from None
        data, until = marshal.dumps((_jail(), content)), time.monotonic() + START_S
        try:
            os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]
            self.send(len(data).to_bytes(8, "little") + data, START_S)
            messages = self.messages(until - time.monotonic())
            first = next(messages, ["unlocked", "not ready in time, or it ended"])
            if first[0] != "ready":
                raise SandboxError(
                    f"the sandbox cannot be had, so no code is run: {first[-1]}. Containers can "
                    "forbid what it needs (the system calls prctl and seccomp)."
                )
        except BaseException:
            self.end()
            raise

    @property
    def ended(self) -> bool:
        """True once the process has ended, or was killed."""
        return self._process.poll() is not None

    def send(self, data: bytes, within_s: float) -> None:
        """Write to the process, until it has all, it ends or time is up."""
        until = time.monotonic() + within_s
        poll = select.poll()
        to = self._process.stdin.fileno()  # type: ignore[union-attr]
        poll.register(to, select.POLLOUT)
        with contextlib.suppress(BrokenPipeError):
            while data and poll.poll(max(until - time.monotonic(), 0) * 1000):
                data = data[os.write(to, data) :]

    def messages(
        self, within_s: float, read_object: Callable[[dict[str, Any]], Any] | None = None
    ) -> Iterator[list[Any]]:
        """Yield its messages until the process ends, time is up or it says too much.

        `read_object` returns what is meant by an object of JSON. A ValueError or RecursionError: a
        message cannot be read, or holds more than ``MAX_VALUES`` values.
        """
        until = time.monotonic() + within_s
        poll = select.poll()
        out = self._process.stdout.fileno()  # type: ignore[union-attr]
        poll.register(out, select.POLLIN)
        while True:
            while b"\n" in self._pending and time.monotonic() < until:
                line, _, self._pending = self._pending.partition(b"\n")
                nonce, _, content = line.partition(b" ")
                if secrets.compare_digest(nonce, self._nonce.encode()):
                    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
                        raise ValueError("a message of too many values")
                    yield json.loads(content, object_hook=read_object)
            left_s = until - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                return
            data = os.read(out, 1 << 16)
            self._received += len(data)
            if not data or self._received > MAX_OUTPUT:
                return
            self._pending += data

    def end(self) -> None:
        """Kill the process with its whole group, wait for its end and close its pipes."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes and waits
            self._process.kill()
