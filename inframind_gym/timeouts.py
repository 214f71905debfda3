"""Time limits on code that cannot be trusted to return: a signal interrupts it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class HungError(BaseException):  # policies catch their own exceptions
    """Code took too long; the argument is its limit in seconds."""


@contextmanager
def interruptible() -> Iterator[Callable[[float], None]]:
    """Yield a function that sets the seconds after which the block gets a `HungError`; 0: never.

    It is raised as soon as the block runs Python code, and on the main thread alone. Entering the
    block takes ten times as long as setting the seconds: enter it once, outside of a loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda seconds: None
        return
    limit_s = 0.0

    def interrupt(*_: object) -> None:
        if limit_s:
            raise HungError(limit_s)

    def within(seconds: float) -> None:
        nonlocal limit_s
        limit_s = seconds
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, 0.0)
    try:
        yield within
    finally:
        limit_s = 0.0  # first of all: entering a function may deliver the signal
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
