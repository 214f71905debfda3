"""The process in which a task's tests run: it calls the answer's functions across a pipe.

The values that come back are plain data (see ``wire.py``), so that comparing them is this
process's business alone.
"""

from __future__ import annotations

import builtins

from . import wire
from .lockdown import LockError

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Any

MAX_REASON = 300  # bytes


class Verdict(BaseException):
    """The end of the examination: no ``except Exception`` of a test can swallow it."""


class BrokenTestsError(Exception):
    """The task's tests cannot be run, whatever the answer."""


class AnswerError(Exception):
    """The answer raised an exception that is not one of the built-in ones."""


class Remote:
    """A function or another object of the answer, which stays in its own process."""

    def __init__(self, line: Line, target: str | int) -> None:
        self._line = line
        self._target = target

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Have it called in its process."""
        return self._line.call(self._target, list(arguments), named)


class Line:
    """The line to the answer's process."""

    def __init__(self, requests: int, results: int) -> None:
        self._requests = requests
        self._results = results
        self._remotes: dict[int, Remote] = {}
        self.calls = 0

    def ask(self, request: bytes | None) -> tuple[Any, ...]:
        """Send a message, if any, and return the next that arrives, a tuple of two or three."""
        try:
            if request is not None:
                wire.send(self._requests, request)
            answer = wire.decode(wire.receive(self._results), self._remote)
        except wire.ClosedError:
            raise Verdict("the answer's process ended") from None
        except (wire.WireError, MemoryError) as error:
            raise Verdict(f"the answer's result is unusable: {error}") from None
        if not (isinstance(answer, tuple) and len(answer) >= 2 and isinstance(answer[0], str)):
            raise Verdict("the answer's process broke the protocol")
        return answer

    def call(self, target: str | int, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Call a function of the answer; what it changed in lists, dicts and sets is changed."""
        self.calls += 1
        try:
            request = wire.encode((target, arguments, named), self._number)
        except wire.WireError as error:
            raise Verdict(f"a test's argument cannot be handed over: {error}") from None
        kind, value, *rest = self.ask(request)
        if kind == "raised":
            raised = getattr(builtins, str(value), None)
            text = str(rest[0]) if rest else ""
            if isinstance(raised, type) and issubclass(raised, Exception):
                _raise(raised, text)
            raise AnswerError(f"{value}: {text}")
        if kind != "value" or len(rest) != 1:
            raise Verdict("the answer's process broke the protocol")
        for pair in rest[0] if isinstance(rest[0], list) else ():
            if isinstance(pair, tuple) and len(pair) == 2 and pair[0] in range(len(arguments)):
                _replace(arguments[pair[0]], pair[1])
        return value

    def _remote(self, number: int) -> Remote:
        return self._remotes.setdefault(number, Remote(self, number))

    def _number(self, value: Any) -> int:
        if isinstance(value, Remote) and isinstance(value._target, int):
            return value._target
        raise wire.WireError(f"a value of the type {type(value).__name__} is no plain data")


def _raise(kind: type[Exception], text: str) -> None:
    """Raise a built-in exception, unless it wants more than a text, like UnicodeDecodeError."""
    try:
        exception = kind(text)
    except TypeError:
        return
    raise exception


def _replace(mine: Any, changed: Any) -> None:
    """Give a list, dict or set the contents of another."""
    if type(mine) is not type(changed):
        return
    if isinstance(mine, (list, bytearray)):
        mine[:] = changed
    elif isinstance(mine, (dict, set)):
        mine.clear()
        mine.update(changed)


def examine(job: dict[str, Any], line: Line) -> None:
    """Run the tests; returns if they pass.

    Raises:
        Verdict: they do not.
        BrokenTestsError: they can't be run.
    """
    try:
        tests = compile(job["tests"], "<tests>", "exec")
        names: dict[str, Any] = {"__name__": "tests"}
        if job["preamble"]:
            exec(compile(job["preamble"], "<question>", "exec"), names)
    except Exception as error:
        raise BrokenTestsError(f"{type(error).__name__}: {error}") from None
    kind, text = line.ask(None)[:2]
    if kind != "loaded":
        raise Verdict(str(text) if kind == "broken" else "the answer's process broke the protocol")
    known = text if isinstance(text, list) else []
    entry_point = job["entry_point"]
    for name in known:
        # Nothing of the answer's takes the place of what the tests are made of.
        if not isinstance(name, str) or name.startswith("__"):
            continue
        if name not in names and not hasattr(builtins, name):
            names[name] = Remote(line, name)
    if entry_point:
        if entry_point not in known:
            raise Verdict(f"the answer defines no function {entry_point}")
        names[entry_point] = Remote(line, entry_point)
    try:
        exec(tests, names)
    except BaseException as error:
        if isinstance(error, Verdict):
            raise
        raise Verdict(f"{type(error).__name__}: {error}".rstrip(": ")) from None
    if not line.calls:
        raise Verdict("the tests never called the answer")


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

    line = Line(requests, results)
    try:
        if locked is not None:
            write(b"U", str(locked))
            return
        kind, text = line.ask(None)[:2]
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
