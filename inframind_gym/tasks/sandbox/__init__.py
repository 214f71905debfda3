"""Running code that a model wrote, in a locked process and nowhere else.

* An answer and the task's tests run in a process of their own, made for this judgement and locked
  before it runs anything (`jail`), as root and as an ordinary user: an allow-list of system
  calls (seccomp) without processes, threads, programs, sockets, signals to others or changes to
  files; Landlock, so that only Python's standard library and the allowed packages can be read, or,
  where the kernel has none, no file at all; no capabilities, no environment, no standard streams;
  limits of processor time, memory and open files; a limit of wall-clock time, after which the
  process is killed. Where one of these steps fails nothing is run: that is an error, no verdict.
* Messages leave the process behind a nonce that only `jail.main` was given. A process that ends
  early, by whatever means, has failed. What a message can say is a closed list, and none says that
  an answer passed: only the asserts that are decided outside, and the end of the tests, do.
* Asserts over what the answer returns are decided outside, over plain data (`lift`): in
  ``assert f(3) == 9`` the 9 is nowhere where the answer's code runs. An answer that equals
  everything, replaces builtins or searches the interpreter gains nothing there. So are 99 % of the
  asserts of MBPP and 95 % of HumanEval's; the others are decided beside the answer.

What a hostile answer could still do:

* Where a test is not decided outside (it uses variables, loops, classes, unittest), an answer that
  searches frames and memory of its own process can find what the test expects, change how it is
  compared, or find the nonce and say that the tests came to their end. That also passes over
  asserts in branches, loops and functions, of which nobody outside knows how often they are run.
  The tests have builtins of their own, so that replacing those is not enough.
* There, too, an object of its class can pretend to be plain data (``__eq__`` that is always true),
  a context manager of the answer can suppress an error of the tests, a method or attribute of its
  objects can raise StopIteration, and an iterator can begin anew.
* It can tell what a test asks, and so recognise published tests; and it can say that the tests are
  broken (a ConfigError).
* Whether files exist and how large they are can be found out, and process ids. A defect of the
  kernel, of its seccomp or of Landlock is not caught; caches and processor are shared.

Judged wrong, though Python allows it: an object compared with plain data
(``Fraction(1, 2) == 0.5``) in an assert that is decided outside; SystemExit and its like that the
tests do not name; asyncio, threads and time zones by name, which need what is locked. Allowed
packages are trusted code: they are imported before the lock. Linux on x86-64 and 64-bit ARM only.
"""

from __future__ import annotations

import ast
import builtins
import functools
import json
import os
import queue
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from inframind_gym.errors import ConfigError, needs
from inframind_gym.tasks.sandbox.jail import MAX_REASON, landlock_version, this_machine
from inframind_gym.tasks.sandbox.lift import Reader, lift
from inframind_gym.tasks.sandbox.process import Process, SandboxError, package_places
from inframind_gym.tasks.taskset import Answer

__all__ = ["MAX_FORMULA", "MAX_TEXT", "PACKAGES", "Sandbox", "SandboxError", "Verdict"]

PACKAGES = ("numpy",)
MAX_TEXT = 64_000  # characters of an answer's code
MAX_FORMULA = 2000  # characters; what a question asks for is never longer
_FORMULA_S = 5  # to compare two formulas
_PER_PROCESS = 500  # comparisons of formulas: SymPy's caches grow
_MATH_PACKAGES = ("math_verify", "latex2sympy2_extended", "antlr4", "sympy", "mpmath")
_MEMORY_MB = 512  # address space of a judgement of code; Python needs 64
_TRIES = 2  # of a check: the machine may have been busy


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the tests, and why an answer failed: a text that is partly the answer's own."""

    passed: bool
    reason: str = ""


class Sandbox:
    """Judge of answers that are code or formulas, one a processor at a time. Threads can share it.

    Args:
        cpu_s: processor time of a judgement of code, whole seconds.
        wall_s: seconds from when its process is ready to the verdict.
        landlock: use the kernel's Landlock where it has one.
        packages: installed packages that answers and tests may import beside the standard
            library. Each is imported, before the lock, where a text mentions it.

    Attributes:
        landlock: whether Landlock is used; else answers can open no file, and import what is
            loaded.

    Raises:
        SandboxError: code cannot be isolated on this machine.
        ConfigError: a package is not installed.
    """

    def __init__(
        self,
        *,
        cpu_s: int = 4,
        wall_s: float = 8.0,
        landlock: bool = True,
        packages: Sequence[str] = PACKAGES,
    ) -> None:
        if sys.platform != "linux" or this_machine() is None:
            raise SandboxError(
                "code that a model wrote is only run where it can be isolated: on Linux with a "
                f"64-bit x86_64 or aarch64 processor; this is {sys.platform}, {os.uname().machine}."
                " Judge code tasks there (a container or a virtual machine will do), or leave them "
                "out: datasets without code need no sandbox."
            )
        self.landlock = landlock and landlock_version() > 0
        self._cpu_s, self._wall_s, self._packages = cpu_s, wall_s, tuple(packages)
        for name in self._packages:
            if not package_places(name):
                raise ConfigError(
                    f"packages: {name!r} is not an installed package with a folder of its own; "
                    f"install it or leave it out (default: {', '.join(PACKAGES)})"
                )
        self._slots = threading.BoundedSemaphore(os.cpu_count() or 1)
        # Processes that compare formulas, with the number of their comparisons. They stay, because
        # importing SymPy takes most of a second.
        self._idle: queue.SimpleQueue[tuple[Process, int]] = queue.SimpleQueue()
        self._closed = False

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that wait for work. May be called twice."""
        self._closed = True
        with suppress(queue.Empty):
            while True:
                self._idle.get_nowait()[0].end()

    def check(self, *, code: bool = True, formulas: bool = True) -> None:
        """Run a trivial answer, to find out before a run whether answers can be judged here.

        That a sandbox could be made says little: a container can forbid what it needs. Raises the
        SandboxError that says why.
        """
        trivial = Answer("tests", "assert f(1) == 2", entry_point="f")
        right = "def f(x):\n    return x + 1\n"
        if code and not any(self.run_tests(right, trivial).passed for _ in range(_TRIES)):
            raise SandboxError(f"a trivial program got no verdict within {self._wall_s:g} s")
        if formulas and not any(self.same_formula("x+1", "1+x") for _ in range(_TRIES)):
            raise SandboxError("math-verify got no answer for a trivial formula")

    def run_tests(self, code: str, answer: Answer, question: str = "", task: str = "") -> Verdict:
        """Run an answer's code against a task's tests.

        Args:
            code: Python that a model wrote; never run in this process.
            answer: of the kind "tests".
            question: the task's text; where it is Python (as HumanEval's are), its imports and
                helpers are there for the answer and for the tests. The tests have the imports of
                the reference too.
            task: name of the task, for messages.

        Raises:
            SandboxError: the code could not be isolated, and was not run.
            ConfigError: the tests raise something before they first call the answer.
        """
        if len(code) > MAX_TEXT:
            return Verdict(False, f"the code has more than {MAX_TEXT} characters")
        preamble = question if _is_python(question) else ""
        with self._slots:
            kind, reason = self._examine(code, answer, preamble)
        if kind == "broken":
            name = f"task {task!r}" if task else f"task of {answer.entry_point or 'no name'!r}"
            raise ConfigError(
                f"{name}: its tests fail before they first call the answer: {reason}. Mend "
                f"them or leave the task out; they may import the standard library and "
                f"{', '.join(self._packages) or 'no package'} (setting `packages`)."
            )
        return Verdict(kind == "passed", reason)

    def same_formula(self, expected: str, candidate: str) -> bool:
        """Return whether two LaTeX formulas are equal, by math-verify; False after a time limit.

        Raises:
            SandboxError: math-verify is not installed, or cannot be isolated.
        """
        if not candidate.strip() or max(len(expected), len(candidate)) > MAX_FORMULA:
            return False
        request = f"{json.dumps([expected, candidate])}\n".encode()
        with self._slots:
            (process, count), message = self._formula_process(), None
            try:
                process.send(request, _FORMULA_S)
                message = next(process.messages(_FORMULA_S + 1), None)
            finally:
                if message is None or count + 1 == _PER_PROCESS:
                    process.end()
                else:
                    self._idle.put((process, count + 1))
            if self._closed:  # meanwhile
                self.close()
            return message == ["same", True]

    def _formula_process(self) -> tuple[Process, int]:
        """Return a process that compares formulas, idle or new, and the number of its comparisons.

        One that was killed while it was idle, as memory ran out, is left.
        """
        with suppress(queue.Empty):
            while True:
                process, count = self._idle.get_nowait()
                if not process.ended:
                    return process, count
                process.end()
        missing = [name for name in _MATH_PACKAGES if not package_places(name)]
        if missing:
            raise SandboxError(needs("comparing formulas", missing[0], "live"))
        job = {"landlock": self.landlock, "packages": [], "parent": None}
        job |= {"cpu_s": None, "memory_mb": 1024, "timeout_s": _FORMULA_S}
        return Process(job, _MATH_PACKAGES), 0

    def _examine(self, code: str, answer: Answer, preamble: str) -> tuple[str, str]:
        """Run an answer beside the tests; return "passed", "failed" or "broken", and why."""
        preamble_of_tests = f"{_imports(answer.reference)}\n{preamble}"
        provides, plain, words = _task_facts(answer, preamble)
        tests, lifted = lift(answer.value, answer.entry_point, preamble_of_tests, plain)
        texts = (preamble, answer.reference, answer.value, code)
        packages = [name for name in self._packages if any(name in text for text in texts)]
        process = Process(
            {
                "landlock": self.landlock,
                "packages": packages,
                "cpu_s": self._cpu_s,
                "memory_mb": _MEMORY_MB,
                "parent": os.getpid(),
                "sources": [preamble, code] if preamble else [code],
                "preamble": preamble_of_tests,
                "tests": tests,
                "entry_point": answer.entry_point,
                "plain": plain,
                "words": words,
            },
            packages,
        )
        decided, reader = set[int](), Reader()
        try:
            for kind, *content in process.messages(self._wall_s, reader.read):
                if kind == "value":
                    number, values = content
                    if not reader.holds(lifted[number].test, values):
                        return "failed", "AssertionError"
                    decided.add(number)
                elif kind == "done":
                    missed = any(a.required and i not in decided for i, a in enumerate(lifted))
                    return ("failed", "an assert was passed over") if missed else ("passed", "")
                elif kind == "raised":
                    text, line, missing, offered = content
                    source = (tests.split("\n")[int(line) - 1 :] or [""])[0] if line else ""
                    is_its_fault = not set(re.findall(r"\w+", source)).isdisjoint(offered)
                    if missing is not None:
                        is_its_fault = provides is None or missing in provides
                    return "failed" if is_its_fault else "broken", str(text)[:MAX_REASON]
                elif kind in ("failed", "broken"):
                    return kind, str(content[0])[:MAX_REASON]
                else:
                    return "failed", "a message that is not known"
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
            return "failed", "a result cannot be read"
        finally:
            process.end()
        return "failed", f"no verdict within {self._wall_s:g} s, or the process ended"


@functools.lru_cache(1024)
def _task_facts(answer: Answer, preamble: str) -> tuple[list[str] | None, bool, list[str]]:
    """Return what a task says of the names and objects of its answers.

    Names that an answer has to define, None where that is not known; whether results are plain
    data, because the task has no classes; names in the tests, those of exceptions among them.
    """
    statements = [*_statements(preamble), *_statements(answer.value)]
    nodes = [node for statement in statements for node in ast.walk(statement)]
    # Literals stay outside: a text may be what a test expects.
    words = {getattr(node, key, "") for node in nodes for key in ("id", "attr", "name")}
    source = f"{preamble}\n{answer.reference}"
    defined = re.findall(r"^(?:def|class|async def)\s+(\w+)", source, re.MULTILINE)
    provides = [answer.entry_point, *defined] if answer.entry_point or defined else None
    classes = re.search(r"^[ \t]*class\s", source, re.MULTILINE) is not None
    if not source.strip():  # only the tests can tell: they make objects of a class in CapWords
        made = set(re.findall(r"(?<![\w.])[A-Z]\w*(?=\()", answer.value))
        lines = re.findall(r"^\s*(?:import|from|class)\b.*", answer.value, re.MULTILINE)
        classes = bool(made - {*dir(builtins), *re.findall(r"\w+", " ".join(lines))})
    return provides, not classes, sorted(filter(None, words))


@functools.lru_cache(1024)
def _imports(reference: str) -> str:
    """Return the import statements of a reference: tests can count on them (MBPP's do)."""
    imports = (s for s in _statements(reference) if isinstance(s, (ast.Import, ast.ImportFrom)))
    return "\n".join(map(ast.unparse, imports))


@functools.lru_cache(1024)
def _is_python(text: str) -> bool:
    """Return whether a question is a Python module that defines something."""
    return "def " in text and any(isinstance(s, ast.FunctionDef) for s in _statements(text))


def _statements(text: str) -> list[ast.stmt]:
    """Return the statements of a module; none if the text is no Python."""
    try:
        return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
