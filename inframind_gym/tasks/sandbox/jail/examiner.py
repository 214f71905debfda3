"""The process in which a task's tests run: it calls the answer's functions across a pipe.

The values that come back are plain data (``wire.py``) or mirrors of the answer's objects, which
are handed nothing that the tests expect (``mirror.py``).
"""

from __future__ import annotations

import builtins
import sys

from . import wire
from .link import Link
from .lockdown import LockError
from .mirror import ATTRIBUTES, SPECIAL, UnsupportedError, is_mirror

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from typing import Any

MAX_REASON = 300  # bytes
MODULE = "tests"


class Verdict(BaseException):
    """The end of the examination: no ``except Exception`` of a test can swallow it."""


class BrokenTestsError(Exception):
    """The task's tests cannot be run, whatever the answer."""


class Line(Link):
    """The examiner's end of the line to the answer.

    Attributes:
        verdict: the first that was reached, which the tests cannot make undone.
    """

    guarded = True

    def __init__(
        self, requests: int, results: int, can: Sequence[str] | None, words: Sequence[str]
    ) -> None:
        super().__init__(results, requests)
        self.verdict: Verdict | None = None
        self._can = None if can is None else frozenset(can)
        self._words = words

    def can(self, name: str) -> bool:
        """Return whether the task says that its objects have something that plain data has."""
        return self._can is None or name in self._can

    def may(self, value: Any, name: str, arguments: Sequence[Any]) -> bool:
        """Return whether the answer may do something with an object of the tests.

        It may call what it is given, draw from iterators, and use special methods and public
        attributes of objects whose class the tests define; so it reaches no frame or namespace.
        """
        if name == "__getattr__" and arguments[0] in ("__name__", "__qualname__", "__doc__"):
            return True
        if isinstance(value, type):
            return name == "__call__" and value.__module__ == MODULE
        if type(value).__module__ == MODULE:
            return name in SPECIAL or (name in ATTRIBUTES and arguments[0][:1] != "_")
        drawing = name in ("__iter__", "__next__") and hasattr(type(value), "__next__")
        return drawing or name == "__call__"

    def named(self, places: Sequence[tuple[str, str]]) -> Any:
        """Return the first of several types that is a built-in one or a known exception."""
        for module, name in places:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and self._is_known(found, module):
                return found
        raise wire.WireError("what is named is no built-in type")

    def _is_known(self, kind: type, module: str) -> bool:
        """Return whether a type of a module is a built-in one or an exception to be expected.

        To the library some exceptions are no errors: unittest skips a test, bdb and profile stop
        in silence. One of the library, or one that is no Exception, is expected where the tests
        have its name; anywhere else a base of it takes its place.
        """
        if not issubclass(kind, BaseException):
            return module == "builtins"
        usual = kind.__module__ == "builtins" and issubclass(kind, Exception)
        if usual or kind is BaseException:
            return True
        if kind.__module__.startswith(("jail", MODULE, "unittest")):
            return False
        there = vars(sys.modules[module])
        return any(there.get(word) is kind for word in self._words)

    def broken(self, why: str) -> Verdict:
        """Return the verdict that the other side has brought about."""
        self.verdict = self.verdict or Verdict(why)
        return self.verdict

    def is_end(self, error: BaseException) -> bool:
        """Return whether the examination is over."""
        return isinstance(error, (Verdict, wire.ClosedError))

    def hear(self) -> tuple[str, Any]:
        """Return the next message about the answer: its kind, and what it says."""
        try:
            kind, said = wire.Decoder(self).decode(wire.receive(self._inward))
        except wire.ClosedError:
            raise self.broken("the answer's process ended") from None
        except (wire.WireError, TypeError, ValueError):
            raise self.broken("the answer's process broke the protocol") from None
        return str(kind), said


def examine(job: dict[str, Any], line: Line) -> None:
    """Run the tests; returns if they pass.

    Raises:
        Verdict: they do not.
        BrokenTestsError: they can't be run: they fail before they first call the answer.
    """
    names: dict[str, Any] = {"__name__": MODULE}
    try:
        tests = compile(job["tests"], "<tests>", "exec", dont_inherit=True)
        exec(compile(job["preamble"], "<question>", "exec", dont_inherit=True), names)
    except Exception as error:
        raise BrokenTestsError(_text(error)) from None
    kind, known = line.hear()
    if kind != "loaded":
        raise Verdict(str(known) if kind == "broken" else "the answer's process broke the protocol")
    entry_point = job["entry_point"]
    own = {wire.exactly(str, name): value for name, value in known}
    for name, value in own.items():
        # Nothing of the answer's takes the place of what the tests are made of.
        if name.startswith("__") or not is_mirror(value):
            continue
        if name not in names and not hasattr(builtins, name):
            names[name] = value
    if entry_point:
        if not is_mirror(own.get(entry_point)):
            raise Verdict(f"the answer defines no function {entry_point}")
        names[entry_point] = own[entry_point]
    try:
        exec(tests, names)
    except BaseException as error:
        if isinstance(error, Verdict):
            raise
        broken = not line.calls and not _is_the_answers(error, job, own)
        if broken or isinstance(error, UnsupportedError):
            raise BrokenTestsError(_text(error)) from None
        raise Verdict(_text(error)) from None
    if line.verdict is not None:
        raise line.verdict
    if not line.calls:
        raise Verdict("the tests never called the answer")


def _is_the_answers(error: BaseException, job: dict[str, Any], own: Container[str]) -> bool:
    """Return whether the tests fail for what an answer defines, or does not.

    It is a name that the task asks for ("provides"; None: any), or the line uses one of the
    answer's names: a function where a class was asked for cannot be iterated over.
    """
    if isinstance(error, NameError):
        return job["provides"] is None or error.name in job["provides"]
    trace, number = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<tests>":
            number = trace.tb_lineno
        trace = trace.tb_next
    line = job["tests"].split("\n")[number - 1] if number else ""
    import re  # takes longer than all else here

    return any(word in own for word in re.findall(r"\w+", line))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def serve(
    job: dict[str, Any], requests: int, results: int, verdict: int, locked: LockError | None
) -> None:
    """Wait for the answer's process, run the tests and write the verdict.

    The verdict is a letter and a text: U the sandbox cannot be had, R ready (the first byte, when
    both processes are locked), then P passed, F failed or B the tests are broken.
    """

    def write(letter: bytes, text: str = "") -> None:
        data = letter + text.encode("utf-8", "replace")[:MAX_REASON]
        wire.send(verdict, data)

    line = Line(requests, results, job["can"], job["words"])
    try:
        if locked is not None:
            write(b"U", str(locked))
            return
        kind, text = line.hear()
        if kind != "ready":
            write(b"U", str(text))
            return
        write(b"R")
        examine(job, line)
    except Verdict as end:
        write(b"F", str(end))
    except BrokenTestsError as error:
        write(b"B", str(error))
    except BaseException as error:
        write(b"F", f"{type(error).__name__}: {error}")
    else:
        write(b"P")
