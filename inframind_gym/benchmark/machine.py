"""This machine: processor, cores and operating system; not every system reports or binds cores."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Describe processor, cores that this process may use, and operating system."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def available_cores() -> int:
    """Count the cores that this process may use; all cores where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def keep_to_one_core() -> Iterator[None]:
    """Keep this process and its new children on one core; no effect where that is not offered.

    macOS is such a system: it has no call that binds a process to a core.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
