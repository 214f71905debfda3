"""Answers that attack whoever runs them: those of ``hostile.txt``, and what takes Python to write.

A block of that file is "=== GROUP: name", an answer, and its tests after "---" where these are not
the usual ones: f(1) == 2. The groups:

    FORGED      want to pass with a wrong result
    SILENT      end what the tests do in silence
    POSSIBLE    pass, as the sandbox's header says
    FORBIDDEN   return 2, the right result, if what they try works; with names of places
    GREEDY      use something up
"""

from __future__ import annotations

import re
from pathlib import Path

Group = dict[str, tuple[str, str]]  # by name: an answer and its tests
_USUAL = "assert sorted([f(1)]) == [2]\n"


def _groups() -> dict[str, Group]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    found: dict[str, Group] = {}
    for block in re.split("^=== ", text, flags=re.MULTILINE)[1:]:
        title, _, rest = block.rstrip("\n").partition("\n")
        group, _, name = title.partition(": ")
        code, _, tests = rest.partition("\n---\n")
        found.setdefault(group, {})[name] = (code, tests or _USUAL)
    return found


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
_RAISED = {
    "unittest.SkipTest": "",
    "unittest.case._ShouldStop": "",
    "an_own_one": "class an_own_one(unittest.SkipTest, ValueError): pass",
    "SystemExit(0)": "",
    "KeyboardInterrupt": "",
}
# A right answer that sends, before it is called, a value that the harness does not send.
_SENDS = """
import sys
frame = sys._getframe()
while 'send' not in frame.f_locals: frame = frame.f_back
frame.f_locals['send']('value', {})
def f(x): return 2
"""
_SENT = {
    "for no assert": "99, [2]",
    "too few": "0, []",
    "an object without a type": "0, [{}]",
    "an object of two types": "0, [{'int': '0x2', 'bytes': '02'}]",
    "an object of an unknown type": "0, [{'number': 2}]",
    "an integer that is no text": "0, [{'int': 2}]",
}
GROUPS = _groups()
for _name, _arguments in _SENT.items():
    GROUPS["FORGED"][f"sends {_name}"] = (_SENDS.replace("{}", _arguments, 1), _USUAL)
for _raised, _code in _RAISED.items():
    _answer = f"import unittest\n{_code}\ndef f(x): raise {_raised}"
    GROUPS["SILENT"][f"{_raised} in a test case"] = (_answer, TEST_CASE)
GROUPS["POSSIBLE"]["equals everything, in a test with a variable"] = (
    ANYTHING,
    "r = f(1)\nassert r == 2",
)
GROUPS["GREEDY"]["deep nesting"] = ("x = " + "(" * 5000 + ")" * 5000, _USUAL)
GROUPS["GREEDY"]["zero bytes"] = ("def f(x): return 2\0", _USUAL)
