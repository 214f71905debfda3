"""Starting and ending the processes of the sandbox, from outside of them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import marshal
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from inframind_gym.errors import InfraMindError

# The modules of jail/ in the order in which they import one another.
_MODULES = (
    "syscalls", "wire", "lockdown", "mirror", "link", "candidate", "examiner", "verifier", "main",
)  # fmt: skip
# The processes get these modules compiled, with their job: nothing is looked for on the disk.
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
module.main(job)
"""
# All that a process of the sandbox finds in its environment. The fixed seed makes sets of texts
# have the same order in every run, so that a verdict does not depend on it. NumPy's libraries start
# no threads.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
START_S = 60.0  # until a process must be ready, however busy the machine is


class SandboxError(InfraMindError):
    """Code cannot be isolated here, so none is run."""


def start(job: dict[str, Any], fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start a process of the sandbox.

    It is a fresh interpreter with an empty environment and no standard streams, in a session of
    its own, that inherits nothing but the given pipes.

    Args:
        job: what it is to do (``jail/main.py``).
        fds: pipes that it inherits.

    Raises:
        SandboxError: the machine cannot start it.
    """
    job_fd = os.memfd_create("job")
    try:
        with open(job_fd, "wb", closefd=False) as stream:
            marshal.dump((_modules(), job), stream)
        os.lseek(job_fd, 0, os.SEEK_SET)
        return subprocess.Popen(
            [_interpreter(), "-S", "-s", "-B", "-X", "utf8", "-c", _START],
            stdin=job_fd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            pass_fds=fds,
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(
            f"the sandbox cannot start a process: {error}. Judge fewer answers at a time."
        ) from None
    finally:
        os.close(job_fd)


@functools.cache
def _modules() -> list[tuple[str, CodeType]]:
    """Return the names of jail's modules and their compiled code."""
    result = []
    for name in _MODULES:
        module = importlib.import_module(f"inframind_gym.tasks.sandbox.jail.{name}")
        result.append((name, compile(inspect.getsource(module), f"<jail.{name}>", "exec")))
    return result


def _interpreter() -> str:
    """Return the path of the Python that runs this, outside of any virtual environment."""
    return getattr(sys, "_base_executable", None) or sys.executable


def package_places(name: str) -> list[Path]:
    """Return the folders of an installed package, with the libraries it brings; [] if it is not.

    The first is the package itself.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return []
    places = [Path(place).resolve() for place in spec.submodule_search_locations]
    libraries = places[0].with_name(f"{name}.libs")
    return [*places, *([libraries] if libraries.is_dir() else [])]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its whole group and wait for its end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


@contextlib.contextmanager
def pipes(count: int) -> Iterator[list[tuple[int, int]]]:
    """Yield pipes as (reading end, writing end); closes at the end what is still open."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            made.append(os.pipe())
        yield made
    finally:
        for pair in made:
            for fd in pair:
                os.close(fd)


def read_message(fd: int, until: float) -> bytes | None:
    """Read one message (``wire.send``); b"" at the end, None when time is up."""
    head = _read_some(fd, until, 4)
    if not head or len(head) < 4:
        return head
    return _read_some(fd, until, min(int.from_bytes(head, "little"), 4096))


def _read_some(fd: int, until: float, most: int) -> bytes | None:
    """Read what is there, at most `most` bytes; b"" at the end, None when time is up.

    Args:
        fd: a pipe.
        until: monotonic time.
        most: bytes.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            return os.read(fd, most)
    return None
