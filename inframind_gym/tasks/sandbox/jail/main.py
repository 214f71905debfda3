"""The first code of every process of the sandbox: limits, locks, and then the part it plays."""

from __future__ import annotations

import os
import sys

from . import candidate, examiner, lockdown, verifier, wire

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Any


def main(job: dict[str, Any]) -> None:
    """Play the part of a job (``process.py``); the process ends with it."""
    sys.path[:] = [p for p in sys.path if p]
    os.dup2(1, 0)  # from here on standard input is empty
    try:
        _play(job)
    except BaseException:
        os._exit(1)
    os._exit(0)  # nothing that an answer left for the end is run


def _play(job: dict[str, Any]) -> None:
    """Lock the process and play the job's part."""
    readable = lockdown.stdlib_paths() if job["landlock"] else []
    sys.path += job["folders"]
    same = None
    if job["part"] == "verifier":
        try:
            same = verifier.load()
        except Exception as error:
            wire.send(job["results"], wire.encode(f"{type(error).__name__}: {error}"))
            return
    locked = None
    try:
        _lock(job, [*readable, *job["readable"]])
    except (lockdown.LockError, ImportError, OSError, ValueError) as error:
        locked = lockdown.LockError(str(error))
    if job["part"] == "candidate":
        candidate.serve(job, job["requests"], job["results"], locked)
    elif job["part"] == "examiner":
        examiner.serve(job, job["requests"], job["results"], job["verdict"], locked)
    elif locked is None:
        verifier.serve(same, job["requests"], job["results"], job["timeout_s"])
    else:
        wire.send(job["results"], wire.encode(f"it cannot be locked: {locked}"))


def _lock(job: dict[str, Any], readable: list[str]) -> None:
    """Import the allowed packages, set the limits and lock the process, as the job says."""
    for name in job["packages"]:
        __import__(name)
    if job["packages"] and len(os.listdir("/proc/self/task")) > 1:
        raise lockdown.LockError(f"threads were started by {' or '.join(job['packages'])}")
    if not job["landlock"]:
        for name in lockdown.COMMON_MODULES:
            try:
                __import__(name)
            except ImportError:  # not every interpreter has every module
                continue
    lockdown.set_limits(job["cpu_s"], job["memory_mb"])
    lockdown.lock(readable, job["landlock"], job["parent"])
