"""What holds for all tests.

What a shell runs in the background ignores Ctrl-C, and so does all that it starts; tests press it.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
