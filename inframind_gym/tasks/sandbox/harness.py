"""The locked process: an answer's code, and a task's tests.

Every process of the sandbox starts here, with a job; it imports nothing of the package. Messages
leave through the pipe that was standard output, as lines behind a nonce that the harness alone has.
"""

from __future__ import annotations

import builtins
import json
import os
import sys

from . import lockdown

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ANSWER = "answer"  # name of the module that an answer's code runs as
MAX_REASON = 300  # characters
MAX_DEPTH = 60  # of a result
MAX_ITEMS = 1_000_000
MAX_BITS = 200_000  # of an integer: arithmetic with more could take minutes outside


class Failure(BaseException):
    """The end of the tests: no ``except Exception`` of theirs can swallow it."""


class ResultError(Exception):
    """An answer's function raised what would end tests in silence."""


class NotPlainError(Exception):
    """A value is too large to be sent."""


def main(job: dict[str, Any]) -> None:
    """Lock the process and do its job (see `process.Process`); the process ends with it."""
    sys.path[:] = [path for path in sys.path if path]
    readable = lockdown.stdlib_paths() if job["landlock"] else []
    sys.path += job["folders"]
    write, dumps, out, nonce = os.write, json.dumps, os.dup(1), job.pop("nonce")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1) if "tests" in job else (1,):  # requests come over standard input
        os.dup2(nothing, stream)
    os.close(nothing)

    def send(*message: Any) -> None:
        data = f"{nonce} {dumps(message)}\n".encode()
        while data:
            data = data[write(out, data) :]

    try:
        same = None if "tests" in job else _load_math_verify()
        for name in job["packages"]:
            __import__(name)
        if job["packages"] and len(os.listdir("/proc/self/task")) > 1:
            raise lockdown.LockError(f"threads were started by {' or '.join(job['packages'])}")
        if not job["landlock"]:
            for name in lockdown.COMMON_MODULES:
                try:
                    __import__(name)
                except ImportError:  # not every interpreter has every module
                    continue
        lockdown.set_limits(job["cpu_s"], job["memory_mb"])
        lockdown.lock([*readable, *job["readable"]], job["landlock"], job["parent"])
    except Exception as error:
        send("unlocked", str(error) or type(error).__name__)
        os._exit(1)
    send("ready")
    if same is not None:
        compare_formulas(same, job["timeout_s"], send)
    try:
        run_tests(job, send)
    except BaseException as error:
        send("failed", str(error) if isinstance(error, Failure) else _text(error))
    os._exit(0)  # nothing that an answer left for the end is run


def run_tests(job: dict[str, Any], send: Callable[..., None]) -> None:
    """Load the answer, run the tests and send what the lifted asserts ask for.

    Messages: "broken" (the tests cannot be run), "value" (number of a lifted assert and what its
    calls returned), "raised" (an error before the answer was first called: text, line, missing
    name, names of the answer), "failed", "done". Failure: the tests failed.

    The job has "sources" of the answer, "preamble" of the tests, "tests" (with lifted asserts),
    "entry_point", "plain" (results are plain data: the task has no classes), "words" of the tests.
    """
    names: dict[str, Any] = {"__name__": "tests", "__builtins__": dict(vars(builtins))}
    try:
        code = compile(job.pop("tests"), "<tests>", "exec", dont_inherit=True)
        exec(compile(job.pop("preamble"), "<question>", "exec", dont_inherit=True), names)
    except Exception as error:
        send("broken", _text(error))
        return
    plain, calls = encode, [0]
    module = type(sys)(ANSWER)
    sys.modules[ANSWER] = module
    try:
        for source in job["sources"]:
            exec(compile(source, f"<{ANSWER}>", "exec", dont_inherit=True), module.__dict__)
        offered = {name: value for name, value in vars(module).items() if callable(value)}
    except BaseException as error:
        raise Failure(_text(error)) from None

    def lifted(number: int, *values: Any) -> None:
        calls[0] += 1
        try:
            content = [plain(value) for value in values]
        except NotPlainError as error:
            raise Failure(f"AssertionError: {error}") from None
        send("value", number, content)

    for name, value in offered.items():
        # Nothing of the answer's takes the place of what the tests are made of.
        if not (name in names or hasattr(builtins, name) or name.startswith("__")):
            names[name] = _guarded(value, calls, job)
    entry_point = job["entry_point"]
    if entry_point:
        if entry_point not in offered:
            raise Failure(f"the answer defines no function {entry_point}")
        names[entry_point] = _guarded(offered[entry_point], calls, job)
    names["__lifted__"] = lifted
    try:
        exec(code, names)
    except BaseException as error:
        if isinstance(error, Failure):
            raise
        lines, inside, trace = [], False, error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            lines += [trace.tb_lineno] if file == "<tests>" else []
            inside, trace = inside or file == f"<{ANSWER}>", trace.tb_next
        if calls[0] or inside:
            raise Failure(_text(error)) from None
        missing = error.name if isinstance(error, NameError) else None
        send("raised", _text(error), lines[-1] if lines else 0, missing, [*offered])
        return
    classes = any(isinstance(offered.get(word), type) for word in job["words"])
    if not calls[0] and not classes:
        raise Failure("the tests never called the answer")
    send("done")


def _guarded(value: Any, calls: list[int], job: dict[str, Any]) -> Any:
    """Return a callable of the answer as the tests see it: it counts calls.

    An error that ends loops or programs in silence (StopIteration, SystemExit, SkipTest) becomes an
    ordinary one, unless the tests name it.
    """
    if isinstance(value, type) and not (job["plain"] and value.__name__[:1].islower()):
        return value  # tests may derive from it, catch it, and ask for its instances

    def guarded(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        try:
            return value(*arguments, **named)
        except BaseException as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            silent = not isinstance(error, Exception) or isinstance(error, StopIteration)
            homes = {str(kind.__module__).partition(".")[0] for kind in type(error).__mro__}
            if homes & {"unittest", "bdb"} or (silent and not kinds & set(job["words"])):
                raise ResultError(f"the answer raised {type(error).__name__}") from None
            raise

    public = [name for name in dir(value) if name[:1] != "_"]
    for attribute in ("__name__", "__qualname__", "__doc__", "__annotations__", *public):
        try:
            setattr(guarded, attribute, getattr(value, attribute))
        except (AttributeError, TypeError):
            continue
    guarded.__wrapped__ = value  # type: ignore[attr-defined]
    return guarded


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}".rstrip(": ")[:MAX_REASON]
    except BaseException:  # an exception that cannot be shown
        return type(error).__name__[:MAX_REASON]


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any, depth: int = MAX_DEPTH) -> Any:
    """Return plain data as what `json` writes; NotPlainError: too deep, too many items or digits.

    Content of built-in types travels, also that of subclasses, whose methods are not asked. Of any
    other object its truth alone travels, and it equals nothing. JSON's own types stand for
    themselves but for objects, which hold one name of a type and its content (`lift.decode`).
    """
    kind = type(value)
    bases = type.__dict__["__mro__"].__get__(kind)
    if value is None or kind is bool:
        return value
    if depth == 0:
        raise NotPlainError("it is nested too deeply")
    if int in bases:
        number = int.__pos__(value)
        if number.bit_length() > MAX_BITS:
            raise NotPlainError("an integer has too many digits")
        return {"int": hex(number)}
    if float in bases:
        real = float.__pos__(value)
        # `json` reads every NaN as one object, and lists that share an object are equal.
        return real if real - real == 0 else {"float": float.hex(real)}
    if complex in bases:
        both = complex.__pos__(value)
        return {"complex": [both.real, both.imag]}
    if str in bases:
        return str.__getitem__(value, slice(None))
    if bytes in bases:
        return {"bytes": bytes.hex(value)}
    if list in bases:
        return _all(list.__iter__(value), depth)
    for name, base in _SEQUENCES.items():
        if base in bases:
            return {name: _all(base.__iter__(value), depth)}  # type: ignore[attr-defined]
    if dict in bases:
        pairs = [(key, dict.__getitem__(value, key)) for key in dict.__iter__(value)]
        return {"dict": _all((part for pair in pairs for part in pair), depth)}
    if kind.__module__ == "builtins" and hasattr(kind, "__iter__"):  # iterators, ranges and views
        return {"items": _all(iter(value), depth)}
    if kind.__module__ == "numpy" and hasattr(kind, "item") and not getattr(value, "shape", 1):
        return encode(value.item(), depth - 1)
    return {"object": bool(value)}


def _all(values: Any, depth: int) -> list[Any]:
    items: list[Any] = []
    for value in values:
        items.append(encode(value, depth - 1))
        if len(items) > MAX_ITEMS:
            raise NotPlainError("it has too many items")
    return items


def _load_math_verify() -> Callable[[str, str], bool]:
    """Import math-verify, which needs files, and warm it up."""
    import logging

    logging.disable(logging.CRITICAL)
    from math_verify import LatexExtractionConfig, parse, verify

    # Only LaTeX: the extraction of plain expressions evaluates them as Python.
    settings = [LatexExtractionConfig()]

    def same(expected: str, candidate: str) -> bool:
        first, second = (
            parse(f"${text}$", settings, fallback_mode="no_fallback", parsing_timeout=None)
            for text in (expected, candidate)
        )
        if not first or not second:
            return False
        return bool(verify(first, second, timeout_seconds=None, allow_set_relation_comp=True))

    same(r"\frac{1}{2}x + \sqrt{2}", r"x/2 + 2^{0.5}")
    return same


def compare_formulas(
    same: Callable[[str, str], bool], timeout_s: int, send: Callable[..., None]
) -> None:
    """Answer pairs of formulas, a line of JSON each, with "same" until the other side hangs up.

    Formulas that a model wrote can keep SymPy busy for ever. math-verify's own time limits are
    Python signals, which do not interrupt long steps; here the kernel ends the process.
    """
    import signal

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin:
        expected, candidate = json.loads(line)
        signal.alarm(timeout_s)
        try:
            result = same(expected, candidate)
        except Exception:  # what math-verify cannot read is not shown to be equal
            result = False
        signal.alarm(0)
        send("same", result)
    os._exit(0)
