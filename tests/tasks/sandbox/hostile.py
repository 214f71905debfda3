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
    "a class that equals everything": (
        "class M(type):\n    def __eq__(s, o): return True\n    def __hash__(s): return 2\n"
        "class f(metaclass=M):\n    def __init__(self, x): pass\n"
        "    def __eq__(self, o): return True"
    ),
    "returns a class that equals everything": (
        "class M(type):\n    def __eq__(s, o): return True\n    def __hash__(s): return 2\n"
        "class A(metaclass=M): pass\ndef f(x): return A"
    ),
    "says it is an int": (
        "class E:\n    __class__ = int\n    def __index__(self): return 2\n"
        "    __int__ = __float__ = __index__\ndef f(x): return E()"
    ),
    "an Enum that equals everything": (
        "import enum\nclass E(enum.IntEnum):\n    A = 0\n    def __eq__(self, o): return True\n"
        "    def __hash__(self): return 2\ndef f(x): return E.A"
    ),
    "an array that equals everything": (
        "import numpy\nclass E(numpy.ndarray):\n    def __eq__(self, o): return True\n"
        "def f(x): return numpy.zeros(1).view(E)"
    ),
    "pickles itself as the answer": (
        "class E:\n    def __reduce__(self): return int, (2,)\n"
        "    __reduce_ex__ = __copy__ = __deepcopy__ = lambda s, *a: (int, (2,))\n"
        "def f(x): return E()"
    ),
    "raises and never returns": "def f(x): raise BaseException",
    "raises an exception group": "def f(x): raise BaseExceptionGroup('a', [SystemExit(0)])",
    "raises an own SystemExit": (
        "class E(SystemExit):\n    code = 0\n    def __str__(self): raise E\ndef f(x): raise E(0)"
    ),
    "an exception that cannot be shown": (
        "class E(Exception):\n    def __str__(self): raise self\n    __repr__ = __str__\n"
        "    args = property(__str__)\ndef f(x): raise E"
    ),
    "ends generators": "def f(x):\n    raise GeneratorExit\n    yield",
    "a coroutine": "async def f(x): return 2",
    "traces everything": ("import sys\nsys.settrace(lambda *a: sys.exit(0))\ndef f(x): return 0"),
    "audits everything": "import sys\nsys.addaudithook(lambda *a: sys.exit(0))\ndef f(x): return 0",
    "replaces the hooks of errors": (
        "import sys\nsys.excepthook = sys.unraisablehook = lambda *a: __import__('os')._exit(0)\n"
        "def f(x): 1 / 0"
    ),
    "finalises": (
        "import os\nclass D:\n    def __del__(self): os._exit(0)\ndef f(x):\n    D()\n    return 0"
    ),
    "leaves by a signal": (
        "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\ndef f(x):\n    while True: pass"
    ),
    "recompiles itself": (
        "import sys\nf = lambda x: 0\n"
        "f.__code__ = compile('2', '', 'eval').replace(co_argcount=0)\n"
    ),
    "replaces its module": (
        "import sys\nsys.modules['tests'] = sys.modules['__main__'] = sys.modules['answer']\n"
        "def f(x): return 0"
    ),
    "replaces sorted": (
        "import builtins\nbuiltins.sorted = lambda *a: [2]\nsorted = builtins.sorted\n"
        "def f(x): return 0"
    ),
    "overrides import": (
        "import builtins\nbuiltins.__import__ = lambda *a, **k: print\ndef f(x): return 0"
    ),
    "patches small numbers": (
        "import ctypes\nctypes.c_int64.from_address(id(0) + 24).value = 2\ndef f(x): return 3 - 3"
    ),
    "patches the type of numbers": (
        "import ctypes\nclass E(int):\n    def __eq__(s, o): return True\n"
        "x = 12345\nctypes.c_int64.from_address(id(x) + 8).value = id(E)\ndef f(y): return x"
    ),
    "finds the nonce and says that all passed": (
        "import sys\n"
        "frame = sys._getframe()\n"
        "while 'send' not in frame.f_locals: frame = frame.f_back\n"
        "frame.f_locals['send']('done')\n"
        "def f(x): return 0"
    ),
    "finds the nonce when called": (
        "import sys, os\n"
        "def f(x):\n"
        "    frame = sys._getframe()\n"
        "    while 'send' not in frame.f_locals: frame = frame.f_back\n"
        "    frame.f_locals['send']('value', 0, [['i', '0x3']])\n"
        "    frame.f_locals['send']('done')\n"
        "    os._exit(0)"
    ),
    "replaces the encoder": (
        "import sys\n"
        "p = sys.modules['jail.plain']\n"
        "p.encode = p._all = lambda *a: ['i', '0x3']\n"
        "def f(x): return 0"
    ),
    "sends what cannot be read": (
        "import sys\n"
        "frame = sys._getframe()\n"
        "while 'send' not in frame.f_locals: frame = frame.f_back\n"
        "frame.f_locals['send']('value', 99, [['i']])\n"
        "def f(x): return 2"
    ),
    "sends fewer values than an assert needs": (
        "import sys\n"
        "frame = sys._getframe()\n"
        "while 'send' not in frame.f_locals: frame = frame.f_back\n"
        "frame.f_locals['send']('value', 0, [])\n"
        "def f(x): return 2"
    ),
    "sends without an end": (
        "import sys\n"
        "frame = sys._getframe()\n"
        "while 'send' not in frame.f_locals: frame = frame.f_back\n"
        "while True: frame.f_locals['send']('hello')\n"
    ),
    "returns what takes long to compute with": "def f(x): return 10 ** 100_000",
}


# An object that tries to pass for whatever the tests of plain data ask for: they must not pass.
ANYTHING = """
class Meta(type):
    __iter__ = lambda s: iter([]); __len__ = lambda s: 2; __instancecheck__ = lambda s, o: True
    __eq__ = lambda s, o: True; __hash__ = lambda s: 2; __getitem__ = lambda s, k: 2
class Any(metaclass=Meta):
    state = 0
    def same(self, *a): return True
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = same
    startswith = endswith = issubset = issuperset = isdisjoint = isdigit = is_integer = same
    find = count = index = compare = lambda s, *a: 0
    __hash__ = lambda s: 2
    def zero(self, *a): return 0.0
    __sub__ = __rsub__ = __mod__ = __xor__ = __rxor__ = __add__ = __radd__ = __truediv__ = zero
    __mul__ = __rmul__ = __floordiv__ = __and__ = __or__ = __pow__ = __matmul__ = __isub__ = zero
    __abs__ = __round__ = __neg__ = __pos__ = __trunc__ = __floor__ = zero
    def __float__(self):
        self.state += 1
        return [-1.0, 0.0, 0.0][self.state % 3]
    __int__ = __index__ = __complex__ = lambda s: int(float(s))
    __len__ = lambda s: 2
    __iter__ = lambda s: iter([])
    __getitem__ = lambda s, k: k
    __str__ = __repr__ = lambda s: 'ab'
    __format__ = lambda s, k: '2'
    difference = symmetric_difference = lambda s, o: set()
    intersection = union = lambda s, o: o
    get = setdefault = pop = lambda s, k=0, d=0: d
    __enter__ = lambda s: s
    __exit__ = same
    __array_ufunc__ = lambda s, *a, **k: 0.0
    __array_function__ = lambda s, *a, **k: True
    __array__ = lambda s, *a, **k: __import__('numpy').zeros(2)
    __array_priority__ = 1e9
    __class__ = property(lambda s: int)
def f(x): return Any()
"""
PLAIN_TESTS = (
    "assert f(1) == 2", "assert 2 == f(1)", "assert not f(1) != 2", "assert [f(1)] == [2]",
    "assert {'a': f(1)} == {'a': 2}", "assert f(1) in (2, 3)", "assert 2 in f(1)",
    "assert abs(f(1) - 2) < 1e-6", "assert f(1) - 2 == 0", "assert not f(1) - 2",
    "assert not (f(1) - 2.0)", "assert round(f(1) - 2, 3) == 0", "assert 2 - f(1) < 1e-9",
    "assert sum([f(1), -2]) == 0", "assert 1 <= f(1) <= 3", "assert max(f(1), 2) == 2",
    "assert f(1) % 2 == 0", "assert divmod(f(1), 2) == (1, 0)",
    "import math\nassert math.isclose(f(1), 2)", "import math\nassert math.fsum([f(1), -2]) == 0",
    "import math\nassert 1 + sum(c * math.pow(f(1), i) for i, c in [(1, 1), (2, 5)]) == 0",
    "assert f(1)[0] == 0 and list(f(1)) == []", "assert len(f(1) ^ {1, 2}) == 0",
    "assert f(1) in {2}", "from fractions import Fraction\nassert Fraction(2) == f(1)",
    "import numpy as np\nassert (f(1) == np.array([1, 2])).all()",
    "assert sorted([f(1), 2]) == [2, 2]",
    "try: f(1) + 'a'\nexcept ValueError: pass\nelse: assert f(1) is 2",
)  # fmt: skip

# The same in a task whose reference has classes: (answer, tests, reference).
NUMBER = """
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __sub__(self, other): return Vector(self.x - other.x, self.y - other.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k)
    def __neg__(self): return self * -1
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __len__(self): return 2
    def norm(self): return abs(self)
"""
NO_NUMBER = f"""{ANYTHING}
class Zero(int): pass
class Empty(list): pass
class Vector(Any):
    def __init__(self, x, y): pass
    def norm(self): return self
    __len__ = lambda s: 0
    __sub__ = __mul__ = __neg__ = __pow__ = lambda s, *a: {{}}
"""
NUMBER_TESTS = (
    "assert Vector(3, 4).norm() == 5", "assert abs(Vector(3, 4).norm() - 5) < 1e-6",
    "assert abs(-(Vector(3, 4).norm() - 5)) < 1e-6", "assert not Vector(3, 4).norm() - 5",
    "assert Vector(3, 4).norm() in [5]", "assert (Vector(3, 4).norm() - 5) * 1 < 1e-6",
    "assert Vector(3, 4).norm().startswith('5')", "assert 4 < Vector(3, 4).norm() < 6",
    "assert round(Vector(3, 4).norm(), 3) == 5", "assert len(Vector(3, 4).norm()) == 2",
    "assert not len(Vector(3, 4).norm() - 5)",
)  # fmt: skip

TEST_CASE = """
import io, unittest
import doctest; doctest.SkipTest = unittest.SkipTest
class T(unittest.TestCase):
    def test(self): self.assertEqual(f(1), 2)
suite = unittest.defaultTestLoader.loadTestsFromTestCase(T)
result = unittest.TextTestRunner(io.StringIO()).run(suite)
assert result.wasSuccessful() and not result.errors and not result.failures
"""
# Answers that end what the tests do in silence, and the tests.
SILENT = {
    "StopIteration ends map": (
        "def f(x): raise StopIteration",
        "assert all(map(lambda c: f(c) == c + 1, [1, 2]))",
    ),
    "StopIteration ends a map of itself": (
        "def f(x): raise StopIteration",
        "assert all(map(f, [1]))",
    ),
    "an own StopIteration": (
        "class E(StopIteration): pass\ndef f(x): raise E",
        "assert all(map(f, [1]))",
    ),
    "StopIteration ends iter": (
        "def f(): raise StopIteration",
        "for x in iter(f, 0): assert x == 2",
    ),
    "GeneratorExit": ("def f(x): raise GeneratorExit", "assert all(f(c) == 2 for c in [1])"),
    "StopIteration in a callback": (
        "def f(g):\n    def h(*a): raise StopIteration\n    g(h)\n    return 0",
        "def g(h): return all(map(h, [1]))\nassert f(g) == 2",
    ),
    "StopIteration of a method": (
        "class F:\n    def __call__(self, x): raise StopIteration\nf = F()",
        "assert all(map(f, [1]))",
    ),
    "dies where an error is expected": (
        "import os\ndef f(x): os._exit(0)",
        "try: f(1)\nexcept: pass\nelse: assert False",
    ),
    "sends nonsense where an error is expected": (
        "import os\ndef f(x):\n    for fd in range(3, 60):\n"
        "        try: os.write(fd, b'\\x01\\x00\\x00\\x00=')\n        except OSError: pass\n",
        "try: f(1)\nexcept: pass\nelse: assert False",
    ),
    **{
        f"{raised} in a test case": (
            f"import unittest\n{code}\ndef f(x): raise {raised}",
            TEST_CASE,
        )
        for raised, code in {
            "unittest.SkipTest": "",
            "unittest.case._ShouldStop": "",
            "an_own_one": "class an_own_one(unittest.SkipTest, ValueError): pass",
            "KeyError": (  # by a module that is none of unittest's
                "import sys\nL = sys.modules['jail.link'].Link\nold = L.describe\n"
                "L.describe = lambda s, v: ('named', ('doctest', 'SkipTest')) if v is KeyError "
                "else old(s, v)"
            ),
            "SystemExit(0)": "",
            "KeyboardInterrupt": "",
        }.items()
    },
    "SystemExit ends a profile": (
        "def f(x): raise SystemExit",
        "import contextlib, io, profile\nwith contextlib.redirect_stdout(io.StringIO()):\n"
        "    profile.runctx('assert f(1) == 2', globals(), {})",
    ),
    "BdbQuit ends a debugger": (
        "import bdb\ndef f(x): raise bdb.BdbQuit",
        "import bdb\nbdb.Bdb().runctx('assert f(1) == 2', globals(), {})",
    ),
}

# What the sandbox's header says a hostile answer can do: (code, tests) that pass.
POSSIBLE = {
    "equals everything, in a test with a variable": (ANYTHING, "r = f(1)\nassert r == 2"),
    "StopIteration of a comparison": (
        "class A:\n    def __eq__(self, o): raise StopIteration\ndef f(x): return A()",
        "assert all(map(lambda c: f(c) == f(c), [1]))",
    ),
    "StopIteration of an attribute": (
        "class A:\n    @property\n    def x(self): raise StopIteration\ndef f(x): return A()",
        "assert all(map(lambda c: f(c).x == 2, [1]))",
    ),
    "an iterator that begins anew": (
        "class I:\n    n = 0\n    def __iter__(self): return self\n    def __next__(self):\n"
        "        self.n += 1\n        if self.n == 1: raise StopIteration\n        return 2\n"
        "def f(x): return I()",
        "r = f(1)\nassert all(x == 1 for x in r) and next(r) == 2",
    ),
    "swallows the tests' errors": (
        "class C:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n"
        "def f(x): return C()",
        "with f(1): assert False",
    ),
    "finds in its own process what tests beside it expect": (
        "import sys\n"
        "def f(x):\n"
        "    frame = sys._getframe()\n"
        "    while 'expected' not in frame.f_globals: frame = frame.f_back\n"
        "    return frame.f_globals['expected']",
        "expected = 2\nassert f(1) == expected",
    ),
}

# These return 2, the right result, if what they try works.
FORBIDDEN = {
    "reads /etc/passwd": "def f(x):\n    return 2 if open('/etc/passwd').read() else 0",
    "lists the repository": (
        "import os\ndef f(x):\n    return 2 if os.listdir({repository!r}) is not None else 0"
    ),
    "lists the home": (
        "import os\ndef f(x):\n    return 2 if os.listdir({home!r}) is not None else 0"
    ),
    "reads the parent's environment": (
        "import os\ndef f(x):\n"
        "    return 2 if open(f'/proc/{{os.getppid()}}/environ', 'rb').read() else 0"
    ),
    "reads its neighbour's memory": (
        "def f(x):\n    return 2 if open('/proc/{neighbour}/mem', 'rb') else 0"
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
    "imports what is installed": "import gymnasium\ndef f(x): return 2",
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
