"""Answers that attack whoever runs them. Each defines `f`; the tests want f(1) == 2."""

from __future__ import annotations

FORGED = {
    "prints marks": "print('P', 'passed', 'OK', flush=True)\ndef f(x): return 0",
    "exits at once": "import os\nos._exit(0)",
    "exits politely": "import sys\nsys.exit(0)",
    "exits when called": "import os\ndef f(x): os._exit(0)",
    "exits politely when called": "def f(x): raise SystemExit(0)",
    "raises what tests expect": "def f(x): raise AssertionError",
    "equals everything": (
        "class E(int):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = int.__hash__\n"
        "def f(x): return E(0)"
    ),
    "an object that equals everything": (
        "class E:\n    def __eq__(self, other): return True\n"
        "    def __hash__(self): return 0\n"
        "def f(x): return E()"
    ),
    "replaces builtins": (
        "import builtins\n"
        "builtins.AssertionError = type('A', (), {})\n"
        "builtins.compile = builtins.exec = lambda *a: None\n"
        "def f(x): return 0"
    ),
    "takes the place of the builtins": "def f(x): return 0\n__builtins__ = print",
    "names the builtins its own": (
        "import sys\n"
        "wire = sys.modules['jail.wire']\n"
        "old = wire.encode\n"
        "def encode(value, *a):\n"
        "    return old(('loaded', ['f', '__builtins__', '__import__', 'sorted', 'exec']), *a)\n"
        "wire.encode = encode\n"
        "def f(x):\n"
        "    wire.encode = old\n"
        "    return 0"
    ),
    "names that the tests use": "def g(x): return 0\ndef f(x): return 0\ndef sorted(x): return [2]",
    "writes to every pipe": (
        "import os\n"
        "def spray():\n"
        "    for fd in range(3, 60):\n"
        "        for text in (b'P', b'\\x01\\x00\\x00\\x00P', b'\\x01\\x00\\x00\\x00R'):\n"
        "            try: os.write(fd, text)\n"
        "            except OSError: pass\n"
        "spray()\n"
        "def f(x):\n    spray()\n    return 0"
    ),
    "looks for the expected value": (
        "import gc, sys\n"
        "def f(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        if 'tests' in frame.f_locals or 'tests' in frame.f_globals: return 2\n"
        "        job = frame.f_locals.get('job')\n"
        "        if job and ('tests' in job or 'assert' in repr(job.get('sources', ''))[:5]):\n"
        "            return 2\n"
        "        frame = frame.f_back\n"
        "    for x in gc.get_objects():\n"
        "        if type(x) is dict and 'verdict' in x: return 2\n"
        "    return 0"
    ),
    "replaces the protocol": (
        "import sys\n"
        "wire = sys.modules['jail.wire']\n"
        "old = wire.encode\n"
        "wire.encode = lambda value, *a: old(('P', True, True))\n"
        "def f(x): return 0"
    ),
    "leaves work for the end": (
        "import atexit, os\n"
        "@atexit.register\n"
        "def end():\n"
        "    for fd in range(3, 60):\n"
        "        try: os.write(fd, b'\\x01\\x00\\x00\\x00P')\n"
        "        except OSError: pass\n"
        "def f(x): return 0"
    ),
    "hangs up": "import os\nos.closerange(3, 60)\ndef f(x): return 2",
}

# These return 2, the right result, if what they try works.
FORBIDDEN = {
    "reads /etc/passwd": "def f(x):\n    return 2 if open('/etc/passwd').read() else 0",
    "reads the repository": "def f(x):\n    return 2 if open({repository!r}).read() else 0",
    "lists the home": (
        "import os\ndef f(x):\n    return 2 if os.listdir({home!r}) is not None else 0"
    ),
    "reads the parent's environment": (
        "import os\ndef f(x):\n"
        "    return 2 if open(f'/proc/{{os.getppid()}}/environ', 'rb').read() else 0"
    ),
    "reads its neighbour's memory": (
        "import os\ndef f(x):\n    return 2 if open(f'/proc/{{os.getpid() + 1}}/mem', 'rb') else 0"
    ),
    "has secrets in its environment": (
        "import os\ndef f(x):\n    return 2 if 'INFRAMIND_SECRET' in os.environ else 0"
    ),
    "writes a file": "def f(x):\n    return 2 if open({folder!r} + '/a', 'w').write('a') else 0",
    "writes into /dev/shm": "def f(x):\n    return 2 if open('/dev/shm/a', 'w').write('a') else 0",
    "makes a folder": "import os\ndef f(x):\n    os.mkdir({folder!r} + '/b')\n    return 2",
    "makes a link": (
        "import os\ndef f(x):\n    os.symlink('/etc', {folder!r} + '/c')\n    return 2"
    ),
    "follows a link": "def f(x):\n    return 2 if open({link!r}).read() else 0",
    "removes a file": "import os\ndef f(x):\n    os.remove({victim!r})\n    return 2",
    "changes a file's mode": "import os\ndef f(x):\n    os.chmod({victim!r}, 0)\n    return 2",
    "cuts a file": "import os\ndef f(x):\n    os.truncate({victim!r}, 0)\n    return 2",
    "makes a memory file": "import os\ndef f(x):\n    os.memfd_create('a')\n    return 2",
    "opens a socket": "import socket\ndef f(x):\n    socket.socket()\n    return 2",
    "makes a pair of sockets": "import _socket\ndef f(x):\n    _socket.socketpair()\n    return 2",
    "forks": "import os\ndef f(x):\n    os.fork()\n    return 2",
    "starts a program": (
        "import os\ndef f(x):\n    os.posix_spawn('/bin/true', ['true'], {{}})\n    return 2"
    ),
    "becomes a program": "import os\ndef f(x):\n    os.execv('/bin/true', ['true'])",
    "runs a shell": "import os\ndef f(x):\n    return 2 if os.system('true') == 0 else 0",
    "starts a thread": (
        "import _thread\ndef f(x):\n    _thread.start_new_thread(print, ())\n    return 2"
    ),
    "signals its parent": "import os\ndef f(x):\n    os.kill(os.getppid(), 0)\n    return 2",
    "signals everybody": "import os\ndef f(x):\n    os.kill(-1, 0)\n    return 2",
    "has others signalled by a pipe": (
        "import fcntl, os\n"
        "def f(x):\n"
        "    fcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())\n"
        "    return 2"
    ),
    "raises its limits": (
        "import resource\ndef f(x):\n"
        "    resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\n    return 2"
    ),
    "becomes somebody else": "import os\ndef f(x):\n    os.setuid(65534)\n    return 2",
    "changes its root": "import os\ndef f(x):\n    os.chroot('/')\n    return 2",
    "makes a user namespace": (
        "import ctypes\ndef f(x):\n"
        "    return 2 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0"
    ),
    "traces its neighbours": (
        "import ctypes, os\ndef f(x):\n"
        "    return 2 if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else 0"
    ),
    "makes an io_uring": (
        "import ctypes\ndef f(x):\n"
        "    room = ctypes.create_string_buffer(120)\n"
        "    return 2 if ctypes.CDLL(None).syscall(425, 4, room) >= 0 else 0"
    ),
    "imports the package": "import inframind_gym\ndef f(x): return 2",
    "imports what is installed": "import numpy\ndef f(x): return 2",
    "reads standard input": "def f(x):\n    return 2 if input() is not None else 0",
}

GREEDY = {
    "endless loop": "def f(x):\n    while True: pass",
    "endless loop at once": "while True: pass",
    "endless sleep": "import time\ndef f(x): time.sleep(10**6)",
    "ignores signals": (
        "import signal\n"
        "for s in range(1, 64):\n"
        "    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "def f(x):\n    while True: pass"
    ),
    "fork bomb": (
        "import os\n"
        "def f(x):\n"
        "    while True:\n"
        "        try: os.fork()\n"
        "        except OSError: pass"
    ),
    "thread bomb": (
        "import threading\n"
        "def f(x):\n"
        "    while True:\n"
        "        try: threading.Thread(target=f, args=(x,)).start()\n"
        "        except RuntimeError: pass"
    ),
    "memory": "def f(x):\n    a = []\n    while True: a.append(bytearray(1 << 20))",
    "memory in one piece": "def f(x): return len(bytearray(1 << 40))",
    "huge output": "def f(x):\n    while True: print('a' * 10**6)",
    "huge output of errors": "import sys\ndef f(x):\n    while True: sys.stderr.write('a' * 10**6)",
    "huge result": "def f(x): return 'a' * (100 << 20)",
    "endless result": "import itertools\ndef f(x): return itertools.count()",
    "deep result": "def f(x):\n    a = []\n    for _ in range(10**6): a = [a]\n    return a",
    "result in itself": "def f(x):\n    a = []\n    a.append(a)\n    return a",
    "huge number": "def f(x): return 10**10**9",
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x) + 1"),
    "deep nesting": "x = " + "(" * 5000 + ")" * 5000,
    "many files": "import os\ndef f(x):\n    while True: os.open('/', os.O_RDONLY)",
    "flood of results": (
        "import os\n"
        "def f(x):\n"
        "    while True:\n"
        "        for fd in range(3, 60):\n"
        "            try: os.write(fd, b'\\x00' * 65536)\n"
        "            except OSError: pass"
    ),
    "flood of a huge message": (
        "import os\n"
        "def f(x):\n"
        "    for fd in range(3, 60):\n"
        "        try: os.write(fd, b'\\xff\\xff\\xff\\xff')\n"
        "        except OSError: pass\n"
        "    while True: pass"
    ),
    "segmentation fault": "import ctypes\ndef f(x): return ctypes.string_at(0)",
    "abort": "import os\ndef f(x): os.abort()",
    "many names": "for i in range(10**7): globals()[f'a{i}'] = print",
    "not Python": "def f(x:",
    "zero bytes": "def f(x): return 2\0",
    "nothing": "pass",
}
