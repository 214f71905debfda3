"""Time limits on code that cannot be trusted to return: a signal interrupts it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class HungError(BaseException):  # policies catch their own exceptions
    """Code took too long: the seconds that it had."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `HungError` in a block after so many seconds, and after as many again.

    It is raised as soon as the block is in Python, and on the main thread alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    over = False

    def interrupt(*_: object) -> None:
        if not over:
            raise HungError(seconds)

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        over = True  # first of all: entering a function may deliver the signal
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
