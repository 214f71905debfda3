"""The sandbox: what passes in it, and what hostile answers can do: nothing."""

from __future__ import annotations

import inspect
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.tasks import Answer
from inframind_gym.tasks.sandbox import Sandbox, SandboxError, Verdict, jail, process
from tests.tasks.sandbox.snippets import GROUPS, USUAL, Snippet, asks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")

ROOT = Path(__file__).parents[3]
RIGHT = "def f(x): return x + 1"
MOST_S = 1.5 + 30.0  # with starting and ending, on a busy machine


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as made:
        yield made


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sessions of the processes that a test starts."""
    started: list[int] = []
    real = subprocess.Popen

    def start(*arguments: Any, **named: Any) -> subprocess.Popen[bytes]:
        process = real(*arguments, **named)
        started.append(process.pid)
        return process

    monkeypatch.setattr(subprocess, "Popen", start)
    return started


def alive(sessions: list[int]) -> list[str]:
    """The processes of these sessions, whoever their parent is."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # it has ended meanwhile
            continue
        if int(text.rpartition(")")[2].split()[3]) in sessions:
            found.append(text)
    return found


def verdicts(box: Sandbox, snippets: Iterable[Snippet]) -> list[tuple[str, Verdict]]:
    """Judge many answers, a few at a time."""

    def judge(snippet: Snippet) -> tuple[str, Verdict]:
        return snippet.name, box.run_tests(snippet.code, snippet.answer)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(judge, snippets))


def test_no_verdict_can_be_forged(sessions: list[int]) -> None:
    snippets = GROUPS["FORGED"] + GROUPS["SILENT"]
    with Sandbox(cpu_s=1, wall_s=1.5) as box:
        found = verdicts(box, snippets)
    assert [name for name, verdict in found if verdict.passed] == []
    assert len(sessions) == len(snippets) > 150
    assert alive(sessions) == []


@pytest.mark.parametrize("group", ["LEGAL", "POSSIBLE"])
def test_right_answers_pass_and_the_header_names_what_else_does(
    sandbox: Sandbox, group: str
) -> None:
    found = verdicts(sandbox, GROUPS[group])
    assert [(name, verdict.reason) for name, verdict in found if not verdict.passed] == []


def test_the_tests_of_legal_styles_can_fail(sandbox: Sandbox) -> None:
    """None of them passes an answer whose names are all there and do nothing."""

    def idle(code: str) -> str:
        names = re.findall(r"^(?:def|class) (\w+)|^(\w+) =", code, re.MULTILINE)
        return "\n".join(f"def {first or second}(*a, **k): pass" for first, second in names)

    found = verdicts(sandbox, (each._replace(code=idle(each.code)) for each in GROUPS["LEGAL"]))
    assert [name for name, verdict in found if verdict.passed] == []
    assert len(found) >= 80


VECTOR = "class Vector:\n    def __init__(self, x, y): pass\n    def norm(self): return "
RIGHT_ANSWERS = [
    RIGHT,
    "def f(x): return [2, 1]",
    "def f(x): return {1, 2}",
    "def f(x): return iter([1])",
    "def f(x): return [1, 2]",
    "def f(x): return 'banana'",
    "def f(x): return 2",
    "def f(x): raise ValueError",
    "left = [2, 0]\ndef f(): return left.pop(0)",
    "from contextlib import nullcontext\ndef f(x): return nullcontext(2)",
    "from types import SimpleNamespace\ndef f(x): return SimpleNamespace(x=2)",
    f"{VECTOR}5.0",
    f"{VECTOR}'50'",
    f"{VECTOR}[]",
]


def holds(code: str, tests: str, error: type[Exception]) -> bool:
    """Return whether tests of ours pass in Python itself."""
    try:
        with warnings.catch_warnings(action="ignore"):
            exec(f"{code}\n{tests}", {})
    except error:
        return False
    return True


def test_the_tests_of_hostile_answers_can_pass(sandbox: Sandbox) -> None:
    """With the first right answer with which they pass in Python itself."""
    snippets = [each for name in ("FORGED", "SILENT", "POSSIBLE") for each in GROUPS[name]]
    different = {(each.answer.value, each.answer.entry_point): each for each in snippets}
    assert len(different) > 60
    for (tests, _), each in different.items():
        code = next(code for code in RIGHT_ANSWERS if holds(code, tests, Exception))
        different[tests, each.answer.entry_point] = each._replace(code=code)
    found = verdicts(sandbox, different.values())
    assert [(name, verdict.reason) for name, verdict in found if not verdict.passed] == []


MONEY = (
    "class Money:\n    def __init__(self, n): self.n = n\n"
    "    def __eq__(self, o): return self.n == getattr(o, 'n', o)\n"
    "    def __abs__(self): return abs(self.n)\n"
)
HALF = "from fractions import Fraction\ndef f(): return Fraction(1, 2)"


@pytest.mark.parametrize(
    ("code", "tests", "entry_point", "reason"),
    [
        (MONEY + "def f(x): return Money(x)", "assert abs(f(5)) == 5", "f", "AssertionError"),
        (HALF, "assert f() == 0.5", "f", "AssertionError"),
        ("async def f(): return 2", "import asyncio\nassert asyncio.run(f()) == 2", "f", "."),
    ],
)
def test_what_the_sandbox_says_it_judges_wrong(
    sandbox: Sandbox, code: str, tests: str, entry_point: str, reason: str
) -> None:
    verdict = sandbox.run_tests(code, asks(tests, entry_point))
    assert not verdict.passed
    assert re.search(reason, verdict.reason)


COUNTED = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
NANS = "def f(x): return [float('nan')]"
PAIRS = "def f(n): return {(i, j) for i in range(n) for j in range(n)}"
USER_DICT = "from collections import UserDict\ndef f(x): return UserDict(a=x)"


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        ("def f(n): return range(n)", "assert f(2) == [0, 1]"),
        ("def f(n): return {n: 2}.keys()", "assert [f(1)] == [[1]]"),
        ("def f(n): return map(int, [n])", "assert f(1) in [[1], [2]]"),
        ("def f(n): return reversed([n, 2])", "assert list(f(1)) == [2, 1]"),
        ("def f(n): yield n", "assert [1] == f(1)"),
        ("def f(n): yield n", "assert f(1) != [1]"),
        ("def f(n): yield n", "assert list(f(1)) == [1]"),
        (COUNTED, "assert {f(1): f(2), f(3): f(4)} == {1: 2, 3: 4}"),
        (COUNTED, "assert (f(1), [f(2)]) == (1, [2]) and f(3) < f(4)"),
        (NANS, "assert f(1) == f(1)"),
        (NANS, "assert f(1)[0] != f(1)[0]"),
        ("def f(x): return [x * 1e308, -x * 1e308]", "assert f(10) == [10e308, -10e308]"),
        ("def f(n): return [n, 2]", "assert sum(f(1), 0) == sum(f(1)) == 3"),
        ("def f(n): return [n, 2]", "assert sum(f(1), start=-1.5) == 1.5"),
        ("def f(n): return [[n], [2]]", "assert sum(f(1), []) == [1, 2]"),
        ("def f(n): return [n, 2]", "assert dict({}, items=f(1)) == dict(items=f(1))"),
        ("def f(n): return [n, 2]", "assert dict(items=f(1)) == {'items': [1, 2]}"),
        (PAIRS, "assert len(f(111)) == 12321"),
        (f"{PAIRS}\ng = f\ndef f(n): return dict.fromkeys(g(n))", "assert len(f(111)) == 12321"),
        ("def f(n): return [i / 2 for i in range(n)]", "assert len(set(f(150_000))) == 150_000"),
        (USER_DICT, "assert {**f(1), 'b': 2} == dict(**f(1), b=2) == {'a': 1, 'b': 2}"),
    ],
)
def test_asserts_are_decided_as_python_does(sandbox: Sandbox, code: str, tests: str) -> None:
    assert sandbox.run_tests(code, asks(tests)).passed is holds(code, tests, AssertionError)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Files that hostile answers are after, and a process that lives as long as they do.

    Only what nobody else takes away meanwhile: what is not there is not found, and not refused. A
    checkout replaces files of the repository, never its folder.
    """
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "link").symlink_to(victim)
    # It ends with its parent, and with nothing that ends programs by their names.
    neighbour = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield {
        "repository": str(ROOT),
        "home": str(Path.home()),
        "folder": str(tmp_path),
        "link": str(tmp_path / "link"),
        "victim": str(victim),
        "neighbour": str(neighbour.pid),
    }
    assert neighbour.poll() is None
    neighbour.kill()
    neighbour.communicate()


# How an attempt ends. An assertion fails where the attempt came to nothing without an error.
REFUSED = re.compile(
    "(PermissionError|ModuleNotFoundError|ImportError|EOFError|AssertionError"
    "|RuntimeError: can't start new thread|ValueError: not allowed to raise)"
)


@pytest.mark.parametrize("landlock", [True, False])
def test_nothing_can_be_reached(
    landlock: bool, places: dict[str, str], sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFRAMIND_SECRET", "token")
    folder = Path(places["folder"])
    before = sorted(folder.iterdir())
    with Sandbox(wall_s=60, landlock=landlock) as box:
        snippets = GROUPS["FORBIDDEN"]
        found = verdicts(box, (x._replace(code=x.code.format(**places)) for x in snippets))
    assert [name for name, verdict in found if verdict.passed] == []
    assert [v for _, v in found if not REFUSED.match(v.reason) or "token" in v.reason] == []
    assert sorted(folder.iterdir()) == before
    assert Path(places["victim"]).read_text() == "untouched"
    assert Path(places["victim"]).stat().st_mode & 0o400
    assert not Path("/dev/shm/a").exists()
    assert alive(sessions) == []


def test_nothing_can_be_used_up(sessions: list[int]) -> None:
    took: dict[str, float] = {}

    class Timed(Sandbox):
        def run_tests(self, code: str, *arguments: Any, **named: Any) -> Verdict:
            started = time.monotonic()
            try:
                return super().run_tests(code, *arguments, **named)
            finally:
                took[code] = time.monotonic() - started

    with Timed(cpu_s=1, wall_s=1.5) as box:
        found = verdicts(box, GROUPS["GREEDY"])
    assert [name for name, verdict in found if verdict.passed] == []
    assert max(took.values()) < MOST_S
    assert alive(sessions) == []


LARGE = """
import resource
from inframind_gym.tasks.sandbox import Sandbox
from tests.tasks.sandbox.snippets import USUAL
def most(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def f(x): return 2
with Sandbox() as box:
    box.run_tests("def f(x): return 2", USUAL)
    before = most()
    print(box.run_tests({code!r}, USUAL).reason, "|", most() - before)
"""
SENDS = """
import os, sys
frame = sys._getframe()
while 'nonce' not in frame.f_locals: frame = frame.f_back
data = (frame.f_locals['nonce'] + ' ["value", 0, [[' + {values} + ']]]\\n').encode()
while data: data = data[os.write(frame.f_locals['out'], data):]
def f(x): return 2
"""


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("','.join(['[]'] * 490_000)", "AssertionError"),
        ("','.join(['[]'] * 1_390_000)", "a result cannot be read"),
        ("','.join(['{}'] * 1_390_000)", "a result cannot be read"),
        ("','.join(['1.5'] * 990_000)", "AssertionError"),
        ("','.join(['{\"tuple\":[]}'] * 310_000)", "AssertionError"),
    ],
)
def test_a_message_fills_no_memory(values: str, reason: str) -> None:
    """Four megabytes at most, their values up to twenty times that; in a process of its own."""
    code = LARGE.format(code=SENDS.format(values=values))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found, grown_kb = done.stdout.split("|")
    assert found.strip() == reason
    assert int(grown_kb) < 100 << 10


def test_a_process_that_does_not_read_its_job_is_no_sandbox(
    tmp_path: Path, sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = tmp_path / "python"
    deaf.write_text("#!/bin/sh\nexec sleep 60\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(deaf))
    monkeypatch.setattr(process, "START_S", 0.5)
    started = time.monotonic()
    with Sandbox() as box, pytest.raises(SandboxError, match="not ready in time"):
        box.run_tests(f"{RIGHT}\n#{'x' * 60_000}", USUAL)
    assert time.monotonic() - started < MOST_S
    assert alive(sessions) == []


@pytest.mark.skipif(not process.package_places("math_verify"), reason="math-verify is missing")
def test_a_formula_process_that_was_killed_is_replaced(sessions: list[int]) -> None:
    with Sandbox() as box:
        assert box.same_formula("x+1", "1+x")
        os.kill(sessions[0], signal.SIGKILL)
        while "Z" not in alive(sessions)[0].rpartition(")")[2]:
            time.sleep(0.01)
        assert box.same_formula("x+1", "1+x")
        assert not box.same_formula("x+1", "x")
    assert len(sessions) == 2
    assert alive(sessions) == []


QUESTION = 'import math\n\ndef helper(x):\n    return math.floor(x)\n\ndef f(x):\n    """Text."""\n'
CHECK = "def check(candidate):\n    assert candidate(1) == helper(2.5)\n\ncheck(f)\n"


@pytest.mark.parametrize(
    ("code", "answer", "passes"),
    [
        (RIGHT, asks("assert f(1) == math.gcd(2, 4)\n", reference="import math\n"), True),
        ("def sum(a, b): return 6", asks("assert sum(10, 15) == 6\n", "sum"), True),
        ("def other(a, b): return 6", asks("assert sum(10, 15) == 6\n", "sum"), False),
        ("def g(x): return 2", asks("assert g(1) == 2\n", ""), True),  # found by its name
        ("def h(x): return 2", asks("assert g(1) == 2\n", ""), False),
        (RIGHT, asks("assert True\n"), False),  # never called
        (RIGHT, asks("for x in f: assert x.name"), False),
        ("def f(x):\n    import csv, zoneinfo, xml.dom.minidom\n    return 2", USUAL, True),
        (f"import re, math, collections, heapq, decimal, datetime\n{RIGHT}", USUAL, True),
    ],
)
def test_which_names_tests_and_answers_have(
    sandbox: Sandbox, code: str, answer: Answer, passes: bool
) -> None:
    assert sandbox.run_tests(code, answer).passed is passes
    with Sandbox(landlock=False) as box:
        assert not box.landlock
        assert box.run_tests(code, answer).passed is (passes and "zoneinfo" not in code)


def test_a_question_in_python_brings_its_helpers(sandbox: Sandbox) -> None:
    answer = Answer("tests", CHECK, entry_point="f")
    assert sandbox.run_tests("def f(x): return helper(x + 1.5)", answer, QUESTION).passed
    assert sandbox.run_tests("def f(x): return math.ceil(1.5)", answer, QUESTION).passed
    assert not sandbox.run_tests(RIGHT, answer, "Write f.").passed
    # The tests use the question's helper, not what an answer makes of it.
    forged = "def helper(x): return 0\ndef f(x): return 0"
    assert not sandbox.run_tests(forged, answer, QUESTION).passed
    # The question's own, empty function is no answer.
    assert sandbox.run_tests("x = 1", answer, QUESTION).reason == "AssertionError"


@pytest.mark.parametrize(
    ("tests", "error"),
    [
        ("assert f(1) ==\n", "SyntaxError"),
        ("import nothing_there\nassert f(1) == 2", "ModuleNotFoundError: No module named 'nothing"),
        ("assert f(np.int64(1)) == 2", "NameError: name 'np' is not defined"),
        ("open('cases.json')\nassert f(1) == 2", "FileNotFoundError|PermissionError"),
        ("raise SystemExit", "SystemExit"),
        ("import unittest\nunittest.main()", "SystemExit"),
        ("assert 1 == 2", "AssertionError"),
    ],
)
def test_broken_tests_are_an_error_and_no_verdict(sandbox: Sandbox, tests: str, error: str) -> None:
    with pytest.raises(ConfigError, match=f"task 'mbpp/7': its tests fail before .*({error})"):
        sandbox.run_tests(RIGHT, asks(tests), task="mbpp/7")


@pytest.mark.parametrize("message", ["'broken', 'x' * 999", "'raised', 'x' * 999, 1, None, []"])
def test_an_answer_can_say_that_tests_are_broken(sandbox: Sandbox, message: str) -> None:
    """As the sandbox's header says: that is no verdict, and its text is short."""
    code = (
        "import os, sys\nframe = sys._getframe()\n"
        "while 'send' not in frame.f_locals: frame = frame.f_back\n"
        f"frame.f_locals['send']({message})\nos._exit(0)"
    )
    with pytest.raises(ConfigError, match=r"before they first call the answer: x{300}\. Mend"):
        sandbox.run_tests(code, USUAL)


EVALPLUS = """
import numpy as np
def is_floats(x): return isinstance(x, float) or isinstance(x, np.ndarray)
def assertion(out, exp, atol):
    if atol == 0 and is_floats(exp): atol = 1e-6
    assert out == exp if out == exp else np.allclose(out, exp, rtol=1e-7, atol=atol)
def check(candidate):
    inputs, results = [[1.0], [np.pi]], [2.0, np.pi + 1]
    for inp, exp in zip(inputs, results): assertion(candidate(*inp), exp, 0)
check(f)
"""


def test_tests_can_import_the_allowed_packages(sandbox: Sandbox) -> None:
    assert sandbox.run_tests("def f(x): return x + 1", asks(EVALPLUS)).passed
    assert not sandbox.run_tests("def f(x): return x + 2", asks(EVALPLUS)).passed
    with Sandbox(packages=()) as box, pytest.raises(ConfigError, match="No module named 'numpy'"):
        box.run_tests("def f(x): return x + 1", asks(EVALPLUS))


@pytest.mark.parametrize("landlock", [True, False])
def test_packages_are_locked_in(landlock: bool) -> None:
    code = "import numpy as np\nimport os\ndef f(x):\n    {}\n    return int(np.int64(x)) + 1"
    attempts = {
        "": True,
        "np.save('/tmp/inframind_escape', np.zeros(1))": False,
        "np.fromfile('/etc/passwd')": False,
        "import scipy": False,
        "os.listdir(np.__path__[0] + '/../..')": False,
        "import threading; threading.Thread(target=print).start()": False,
    }
    with Sandbox(landlock=landlock) as box:
        found = verdicts(box, (Snippet(a, code.format(a), USUAL) for a in attempts))
    assert {name: verdict.passed for name, verdict in found} == attempts


def test_threads_can_share_a_sandbox(sessions: list[int]) -> None:
    codes = [RIGHT, "def f(x): return x", "import os\nos._exit(0)"] * 6
    with Sandbox() as box, ThreadPoolExecutor(6) as pool:
        passed = list(pool.map(lambda code: box.run_tests(code, USUAL).passed, codes))
    assert passed == [True, False, False] * 6
    assert len(sessions) == len(codes)
    assert alive(sessions) == []


def test_nothing_is_run_where_a_process_cannot_be_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # the process takes its parent for gone
    with Sandbox() as box, pytest.raises(SandboxError, match="no code is run: the parent has gone"):
        box.run_tests(RIGHT, USUAL)


def test_what_a_sandbox_cannot_be_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="packages: 'no_such_package' is not an installed"):
        Sandbox(packages=["no_such_package"])
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InfraMindError, match=r"on Linux.*this is darwin"):
        Sandbox()


def test_a_sandbox_that_cannot_be_had_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that forbids seccomp: the sandbox is made, and nothing can be run."""
    source = inspect.getsource(jail).replace("_PR_SET_SECCOMP = 22", "_PR_SET_SECCOMP = 9999")
    monkeypatch.setattr(process, "_jail", lambda: compile(source, "jail", "exec"))
    with Sandbox() as box:
        box.check(code=False, formulas=False)
        with pytest.raises(SandboxError, match="Containers can forbid"):
            box.check(formulas=False)
        with pytest.raises(SandboxError):
            box.check(code=False)
