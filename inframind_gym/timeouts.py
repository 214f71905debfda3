"""Time limits on code that cannot be trusted to return: a signal interrupts it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class HungError(BaseException):  # policies catch their own exceptions
    """Code took too long: the seconds that it had."""


@contextmanager
def interruptible() -> Iterator[Callable[[float], None]]:
    """Yield what sets after how many seconds `HungError` is raised in the block; 0: it is not.

    It is raised as soon as the block is in Python, and on the main thread alone. Entering the block
    takes ten times as long as setting the seconds: a loop enters it once.
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
