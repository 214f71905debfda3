"""Running code that a model wrote, and nothing of it anywhere else.

Two processes:

* An answer's code runs in a process of its own, made for this judgement. It gets the arguments of
  the tests' calls and gives back results. It sees neither the tests nor the values they expect.
* The tests run in a second process, the examiner, which calls the answer across a pipe. It alone
  writes the verdict, once, after the last test. An answer that prints marks, leaves early, patches
  builtins or searches the interpreter gains nothing: what it can do is return the right values.
* Both are locked before they run anything (``jail/lockdown.py``), as root and as an ordinary user:
  an allow-list of system calls (seccomp) without processes, threads, programs, sockets, signals to
  others or changes to files; Landlock, so that only Python's standard library and the allowed
  packages can be read, or, where the kernel has none, no file at all; no capabilities, no
  environment, no standard streams; limits of processor time, memory and open files; one limit of
  wall-clock time, after which both are killed. Where one of these steps fails nothing is run, and
  that is an error, not a verdict.

Values across the pipe:

* Plain data travels by value, as exact built-in types (``jail/wire.py``). Arguments that the answer
  changes are changed in the tests, too, and one that it returns is the same object there.
* Every other object stays in its process, and the other side gets a mirror of it
  (``jail/mirror.py``, ``jail/link.py``): an answer's classes, exceptions, Enums, generators and
  closures, and the callbacks, iterators and objects that the tests hand over. Running tests and
  answer in one process would need no mirrors, and could be told to pass by one assignment.
* A mirror cannot pass for plain data. It is compared with plain data by its content alone. Special
  methods and methods that plain data has too (``float()``, ``len()``, ``startswith`` ...) are
  there only if the task's reference or question defines them, or, in a task without either, if the
  tests make objects of a class (a name in CapWords) that only the answer can define. Enums can be
  iterated over in any task. Arithmetic with plain data gives no numbers.
* The answer may call what the tests hand over, draw from iterators, and use public attributes of
  objects whose class the tests define. It is refused all else.
* StopIteration and its like from a call are errors of the answer: they end no loop of the tests.
  Exceptions of the library, and SystemExit and its like, are themselves where the tests name them;
  elsewhere a base of them is raised (SystemExit: BaseException). No library skips or ends anything
  for an answer, as unittest does for a SkipTest.
  Tests that swallow every exception cannot swallow the end of the answer's process.

Judged wrong, though Python allows it:

* An object that is compared with plain data by a method of its own (``Money(5) == 5``, ``<``, or
  ``in`` without iteration), or turned into a number after arithmetic with plain data
  (``abs(Vector(3, 4) * 2)``): the operand is what a test expects as often as not.
* What an object of an answer's own class can do like plain data, where the task does not say so.
* Identity beyond one call: a list that is returned twice is two lists, a list that is read from an
  object is a copy, and so is what an answer keeps of an argument. Texts and tuples are equal, not
  the same.
* An exception of the tests that an answer's context manager suppresses: it goes on. The context
  and the traceback of an answer's exceptions; StopIteration from ``send``; what exceptions of the
  library have beside their arguments (``SystemExit.code``, ``JSONDecodeError.pos``).
* What looks into the interpreter: signatures, source, ``dataclasses.fields``, copies of objects,
  printed text, input, the state of ``random`` and of modules that the tests patch.
* asyncio, threads and time zones by name, which need what is locked.

Tests that derive a class from one of the answer's are an error, like those that fail before they
first call it. ``unittest.main()`` does: it looks for test cases in another module.

What is not guaranteed: a defect of the kernel, of its seccomp or of Landlock is not caught; the
processes share the machine's caches and processor with everything else; whether files exist and
how large they are can be found out, and the process ids that the kernel gives; an answer can tell
what a test asks and so recognise published tests. Any answer can meet tests that compare its
results with one another (``f(1) == Point(2)``), that compute what they expect from an argument
after the call, that check inside of a callback only, or, in tasks without reference and question,
that trust the objects of a class. Allowed packages are code that is trusted: they are imported
before the lock. Linux on x86-64 and 64-bit ARM only.
"""

from __future__ import annotations

import ast
import builtins
import collections
import collections.abc
import functools
import os
import re
import sys
import threading
import time
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inframind_gym.errors import ConfigError, require_within
from inframind_gym.tasks.extract import MAX_TEXT
from inframind_gym.tasks.sandbox.jail.examiner import BrokenTestsError
from inframind_gym.tasks.sandbox.jail.lockdown import landlock_version
from inframind_gym.tasks.sandbox.jail.syscalls import this_machine
from inframind_gym.tasks.sandbox.process import (
    START_S,
    SandboxError,
    end,
    package_places,
    pipes,
    read_message,
    start,
)
from inframind_gym.tasks.sandbox.verifier import Verifier
from inframind_gym.tasks.taskset import Answer

__all__ = ["PACKAGES", "Isolation", "Limits", "Sandbox", "SandboxError", "Verdict", "isolation"]

PACKAGES = ("numpy",)
# What classes have from their bases, in _said.
_BASES = {name: typing.get_origin(kind) for name, kind in vars(typing).items()}
_BASES |= {**vars(collections.abc), **vars(collections), "list": list, "dict": dict, "set": set}
_INHERITED = {name: dir(kind) for name, kind in _BASES.items() if isinstance(kind, type)}
_TRIES = 2  # of a check: the machine may have been busy


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources that a judgement may use.

    Attributes:
        cpu_s: processor time of each of the two processes, whole seconds.
        wall_s: time from when both are ready to the verdict.
        memory_mb: address space of each of the two processes.
    """

    cpu_s: int = 4
    wall_s: float = 8.0
    memory_mb: int = 512

    def __post_init__(self) -> None:
        require_within(self.wall_s, 0.001, 86_400.0, "wall_s")
        if self.cpu_s < 1:
            raise ConfigError(f"cpu_s is {self.cpu_s!r}; it must be at least 1 (whole seconds)")
        if self.memory_mb < 64:
            raise ConfigError(f"memory_mb is {self.memory_mb!r}; Python needs at least 64")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the tests, and why an answer failed: a text that is partly the answer's own."""

    passed: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Isolation of code on this machine.

    Attributes:
        landlock: version of the kernel's Landlock; 0: none, answers can open no file at all and
            import only modules that are loaded beforehand.
    """

    landlock: int

    def __str__(self) -> str:
        files = (
            f"only the standard library can be read (Landlock {self.landlock})"
            if self.landlock
            else "no file can be opened (no Landlock; imports are limited to common modules)"
        )
        return f"allow-list of system calls (seccomp); {files}"


def isolation() -> Isolation:
    """Return how code is isolated on this machine.

    Raises:
        SandboxError: it cannot be.
    """
    if sys.platform != "linux":
        raise SandboxError(
            f"code that a model wrote is only run on Linux, where it can be isolated; this is "
            f"{sys.platform}. Judge code tasks on Linux (a container or a virtual machine will "
            "do), or leave them out: datasets without code need no sandbox."
        )
    if this_machine() is None:
        raise SandboxError(
            f"code that a model wrote is only run where the sandbox knows the system calls: 64-bit "
            f"x86_64 and aarch64; this machine is {os.uname().machine}."
        )
    return Isolation(landlock_version())


class Sandbox:
    """Judge of answers that are code or formulas. Threads can share one.

    Attributes:
        limits: of one judgement.
        isolation: how code is isolated here.
        workers: judgements that run at a time.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        workers: int | None = None,
        landlock: bool | None = None,
        packages: Sequence[str] = PACKAGES,
    ) -> None:
        """Make a sandbox.

        Args:
            limits: of one judgement; None: the defaults.
            workers: judgements that run at a time, others wait; None: one a processor.
            landlock: False does without it, as on a kernel that has none; None: as the kernel is.
            packages: installed packages that answers and tests may import beside the standard
                library. Each is imported, before the lock, where a text mentions it.

        Raises:
            SandboxError: code cannot be isolated on this machine.
            ConfigError: `workers` is below 1, or a package is not installed.
        """
        self.limits = limits or Limits()
        self.isolation = isolation()
        if landlock is False:
            self.isolation = Isolation(0)
        elif landlock and not self.isolation.landlock:
            raise SandboxError("this kernel has no Landlock; leave out landlock=True")
        count = workers if workers is not None else os.cpu_count() or 1
        if count < 1:
            raise ConfigError(f"workers is {workers!r}; it must be at least 1")
        self._packages = {name: package_places(name) for name in packages}
        for name, places in self._packages.items():
            if not places:
                raise ConfigError(
                    f"packages: {name!r} is not an installed package with a folder of its own; "
                    f"install it or leave it out (default: {', '.join(PACKAGES)})"
                )
        self.workers = count
        self._slots = threading.BoundedSemaphore(count)
        self._verifier = Verifier(landlock=self.isolation.landlock > 0, workers=count)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that wait for work. May be called twice."""
        self._verifier.close()

    def check(self, *, code: bool = True, formulas: bool = True) -> None:
        """Run a trivial answer, to find out before a run whether answers can be judged here.

        That a sandbox could be made says little: a container can forbid what it needs.

        Args:
            code: run code against a test.
            formulas: compare two formulas.

        Raises:
            SandboxError: it cannot be done; says why.
        """
        if code and not any(self._try_code() for _ in range(_TRIES)):
            raise SandboxError(f"a trivial program got no verdict within {self.limits.wall_s:g} s")
        if formulas and not any(self.same_formula("x+1", "1+x") for _ in range(_TRIES)):
            raise SandboxError("math-verify got no answer for a trivial formula")

    def _try_code(self) -> bool:
        trivial = Answer("tests", "assert f(1) == 2", entry_point="f")
        return self.run_tests("def f(x):\n    return x + 1\n", trivial).passed

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
            try:
                return self._examine(code, answer, preamble)
            except BrokenTestsError as error:
                name = f"task {task!r}" if task else f"task of {answer.entry_point or 'no name'!r}"
                raise ConfigError(
                    f"{name}: its tests fail before they first call the answer: {error}. Mend "
                    f"them or leave the task out; they may import the standard library and "
                    f"{', '.join(self._packages) or 'no package'} (setting `packages`)."
                ) from None

    def same_formula(self, expected: str, found: str) -> bool:
        """Return whether two LaTeX formulas are equal, by math-verify; False after a time limit.

        Raises:
            SandboxError: math-verify is not installed, or cannot be isolated.
        """
        return self._verifier.same(expected, found)

    def _examine(self, code: str, answer: Answer, preamble: str) -> Verdict:
        """Start the two processes, wait for the verdict and end them."""
        texts = (preamble, answer.reference, answer.value, code)
        packages = [name for name in self._packages if any(name in text for text in texts)]
        places = [place for name in packages for place in self._packages[name]]
        common = {
            "landlock": self.isolation.landlock > 0,
            "readable": [str(place) for place in places],
            "folders": sorted({str(place.parent) for place in places}),
            "packages": packages,
            "cpu_s": self.limits.cpu_s,
            "memory_mb": self.limits.memory_mb,
            "parent": os.getpid(),
        }
        sources = [preamble, code] if preamble else [code]
        running = []
        verdict_r, verdict_w = os.pipe()
        try:
            try:
                with pipes(2) as ((requests_r, requests_w), (results_r, results_w)):
                    ends: dict[str, Any] = {"requests": requests_r, "results": results_w}
                    job = {**common, **ends, "part": "candidate", "sources": sources}
                    running.append(start(job, (requests_r, results_w)))
                    ends = {"requests": requests_w, "results": results_r, "verdict": verdict_w}
                    job = {
                        **common,
                        **ends,
                        "part": "examiner",
                        "tests": answer.value,
                        "preamble": f"{_imports(answer.reference)}\n{preamble}",
                        "entry_point": answer.entry_point,
                        **_said(answer, preamble),
                    }
                    running.append(start(job, (requests_w, results_r, verdict_w)))
            finally:
                os.close(verdict_w)
            return self._verdict(verdict_r)
        finally:
            for process in running:
                end(process)
            os.close(verdict_r)

    def _verdict(self, fd: int) -> Verdict:
        """Read the verdict (``jail/examiner.py``)."""
        first = read_message(fd, time.monotonic() + START_S)
        if first is None or first[:1] != b"R":
            why = "not ready in time" if first is None else first[1:].decode("utf-8", "replace")
            raise SandboxError(
                f"the sandbox cannot be had, so no code is run: {why or 'its process ended'}. "
                "Containers can forbid what it needs (the system calls prctl and seccomp)."
            )
        last = read_message(fd, time.monotonic() + self.limits.wall_s)
        if last is None:
            return Verdict(False, f"no verdict within {self.limits.wall_s:g} s")
        reason = last[1:].decode("utf-8", "replace")
        if last[:1] == b"B":
            raise BrokenTestsError(reason)
        if last == b"P":
            return Verdict(True)
        return Verdict(False, reason or "the tests did not come to an end")


@functools.lru_cache(1024)
def _said(answer: Answer, preamble: str) -> dict[str, Any]:
    """Return what a task says of the names and objects of its answers, for the examiner.

    Returns:
        "provides": names that an answer has to define; None: not known.
        "can": names that plain data has (``__len__``, ``count`` ...) and the task's objects have,
        too; None: all.
        "words": of the tests, names of exceptions that they expect among them.
    """
    words = sorted(set(re.findall(r"[^\W\d]\w*", f"{preamble}\n{answer.value}")))
    source = f"{preamble}\n{answer.reference}"
    defined = re.findall(r"^(?:def|class|async def)\s+(\w+)", source, re.MULTILINE)
    provides = [answer.entry_point, *defined] if answer.entry_point or defined else None
    if not source.strip():
        made = set(re.findall(r"(?<![\w.])[A-Z]\w*(?=\()", answer.value))
        lines = re.findall(r"^\s*(?:import|from|class)\b.*", answer.value, re.MULTILINE)
        made -= {*dir(builtins), *re.findall(r"\w+", " ".join(lines))}
        return {"provides": provides, "can": None if made else [], "words": words}
    can: set[str] = set()
    for bases in re.findall(r"^[ \t]*class\s+\w+(?:\((.*)\))?", source, re.MULTILINE):
        can.update(re.findall(r"\w+", source), ("__str__", "__repr__", "__format__"))
        for base in re.findall(r"\w+", bases):
            can.update(_INHERITED.get(base, ()))
    return {"provides": provides, "can": sorted(can), "words": words}


@functools.lru_cache(1024)
def _imports(reference: str) -> str:
    """Return the import statements of a reference: tests can count on them (MBPP's do)."""
    try:
        body = ast.parse(reference).body
    except SyntaxError:
        return ""
    return "\n".join(ast.unparse(s) for s in body if isinstance(s, (ast.Import, ast.ImportFrom)))


@functools.lru_cache(1024)
def _is_python(text: str) -> bool:
    """Return whether a question is a Python module that defines something."""
    if "def " not in text:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.FunctionDef) for node in tree.body)
