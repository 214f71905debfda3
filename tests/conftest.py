"""What holds for all tests.

Workers of pytest share the processors: none lets torch or BLAS start threads of its own.
What a shell runs in the background ignores Ctrl-C, and so does all that it starts; tests press it.
"""

import os
import signal
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def until(condition: Callable[[], object], wait_s: float = 60.0) -> None:
    """Wait for something that happens soon, if at all."""
    over_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < over_s, "it never came to that"
        time.sleep(0.005)
