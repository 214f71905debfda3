"""Processor cores of this process; not every system can tell or bind them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def available_cores() -> int:
    """How many cores this process may use; where that cannot be told, as many as there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def keep_to_one_core() -> Iterator[None]:
    """Keep this process and its new children on one core; does nothing where that is not offered.

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
