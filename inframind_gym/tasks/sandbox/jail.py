"""The locked process: it gives up what it does not need to compute, then runs an answer and tests.

Locking works as root and as an ordinary user, in a container or out of it: nothing here asks for
privileges. After `lock` the process cannot make processes or threads, run programs, open a socket,
signal another process, or change, create or remove a file. It can read the files under the given
paths only, or none at all where the kernel has no Landlock. System calls that are not listed are
refused with EPERM.

Every process of the sandbox starts in `main`, with a job; the module imports nothing of the
package. Messages leave through the pipe that was standard output, as lines behind a nonce that
`main` alone was given.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import json
import os
import resource
import struct
import sys

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Final

# Numbers by machine, as in the kernel's <asm/unistd.h>.
_X86_64: Final = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
    "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
    "rt_sigreturn": 15, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23,
    "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35, "getitimer": 36, "alarm": 37,
    "setitimer": 38, "getpid": 39, "exit": 60, "uname": 63, "getcwd": 79, "readlink": 89,
    "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110,
    "sigaltstack": 131, "gettid": 186, "futex": 202, "sched_getaffinity": 204,
    "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
    "exit_group": 231, "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270,
    "ppoll": 271, "set_robust_list": 273, "getrandom": 318, "statx": 332, "rseq": 334,
    "faccessat2": 439,
}  # fmt: skip
_AARCH64: Final = {
    "getcwd": 17, "faccessat": 48, "close": 57, "lseek": 62, "read": 63, "write": 64, "readv": 65,
    "writev": 66, "pread64": 67, "pselect6": 72, "ppoll": 73, "readlinkat": 78, "newfstatat": 79,
    "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98, "set_robust_list": 99,
    "nanosleep": 101, "getitimer": 102, "setitimer": 103, "clock_gettime": 113,
    "clock_getres": 114, "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124,
    "restart_syscall": 128, "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "rt_sigreturn": 139, "times": 153, "uname": 160, "getrlimit": 163, "getrusage": 165,
    "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174, "geteuid": 175,
    "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215,
    "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278, "statx": 291,
    "rseq": 293, "faccessat2": 439,
}  # fmt: skip
_CLONE3: Final = 435  # on every machine
# By processor: its AUDIT_ARCH constant; calls that are always allowed; opening calls, and the place
# of their flags; getdents64, which reads a directory; fcntl; capset.
MACHINES: Final = {
    "x86_64": (0xC000003E, _X86_64, ((2, 1), (257, 2)), 217, 72, 126),
    "aarch64": (0xC00000B7, _AARCH64, ((56, 2),), 61, 25, 91),
}

_FCNTL_ALLOWED: Final = (1, 2, 3)  # F_GETFD, F_SETFD, F_GETFL; F_SETOWN could signal others
_WRITING: Final = (
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_TMPFILE", 0)
) & ~getattr(os, "O_DIRECTORY", 0)  # O_TMPFILE holds the bit of O_DIRECTORY, which only lists

# Classic BPF.
_LOAD: Final = 0x20  # A = 32 bits of the data at k
_JEQ: Final = 0x15
_JSET: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL: Final = 0x80000000
# Offsets in struct seccomp_data; both machines are little-endian.
_NUMBER: Final = 0
_ARCH: Final = 4
_ARGUMENTS: Final = 16


def this_machine() -> tuple[Any, ...] | None:
    """Return what is known of this processor, or None where no filter can be built."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    return MACHINES.get(os.uname().machine)


def seccomp_program(machine: tuple[Any, ...], may_open: bool) -> bytes:
    """Return the filter as an array of struct sock_filter.

    With `may_open` files may be opened for reading; which ones is not decided here.
    """
    audit, allowed, opens, listing, fcntl, _ = machine
    code = [
        _step(_LOAD, 0, 0, _ARCH),
        _step(_JEQ, 1, 0, audit),
        _step(_RETURN, 0, 0, _KILL),
        _step(_LOAD, 0, 0, _NUMBER),
    ]
    for number in [*allowed.values(), *([listing] if may_open else [])]:
        code += [_step(_JEQ, 0, 1, number), _step(_RETURN, 0, 0, _ALLOW)]
    # glibc and musl fall back to clone where there is no clone3; that is refused in its turn.
    code += [_step(_JEQ, 0, 1, _CLONE3), _step(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    commands = [_step(_JEQ, len(_FCNTL_ALLOWED) - i, 0, c) for i, c in enumerate(_FCNTL_ALLOWED)]
    code += [
        _step(_JEQ, 0, len(commands) + 3, fcntl),
        _step(_LOAD, 0, 0, _ARGUMENTS + 8),
        *commands,
        _step(_RETURN, 0, 0, _ERRNO | errno.EPERM),
        _step(_RETURN, 0, 0, _ALLOW),
    ]
    for number, flags in opens if may_open else ():
        code += [
            _step(_JEQ, 0, 4, number),
            _step(_LOAD, 0, 0, _ARGUMENTS + 8 * flags),
            _step(_JSET, 0, 1, _WRITING),
            _step(_RETURN, 0, 0, _ERRNO | errno.EACCES),
            _step(_RETURN, 0, 0, _ALLOW),
        ]
    code.append(_step(_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return b"".join(code)


def _step(code: int, if_true: int, if_false: int, k: int) -> bytes:
    """Return one instruction, a struct sock_filter."""
    return struct.pack("<HBBI", code, if_true, if_false, k)


_SIGKILL = 9
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
# Landlock has the same numbers on every machine.
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_CAPABILITY_VERSION_3 = 0x20080522
NOFILE = 64

# What answers of programming tasks import; known beforehand where no file can be opened later.
COMMON_MODULES = (
    "abc", "array", "ast", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "dataclasses", "datetime", "_strptime", "decimal", "enum", "fractions",
    "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math", "numbers",
    "operator", "queue", "random", "re", "statistics", "string", "struct", "textwrap", "time",
    "traceback", "types", "typing", "unicodedata", "warnings", "encodings.latin_1",
    "encodings.ascii",
)  # fmt: skip


class LockError(Exception):
    """The process could not be locked: nothing untrusted may run in it."""


def landlock_version() -> int:
    """Return the version of Landlock that the kernel has, 0 where it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint32(_LANDLOCK_VERSION),
    )
    return max(int(version), 0)


def set_limits(cpu_s: int | None, memory_mb: int) -> None:
    """Bound processor time (the kernel kills at the limit), memory, files and core dumps."""
    mega = 1 << 20
    limits = [
        (resource.RLIMIT_AS, memory_mb * mega),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, NOFILE),
        (resource.RLIMIT_CORE, 0),
    ]
    if cpu_s is not None:
        limits.append((resource.RLIMIT_CPU, cpu_s))
    for which, value in limits:
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(which, (value, value))


def stdlib_paths() -> list[str]:
    """Return the standard library's files and folders, without the packages installed beside it."""
    paths = []
    for folder in sys.path:
        if not os.path.isdir(folder):
            continue
        for entry in os.listdir(folder):
            if entry not in ("site-packages", "dist-packages"):
                paths.append(os.path.join(folder, entry))
        if os.path.basename(folder) == "lib-dynload":
            paths.append(folder)
    machine = os.uname().machine
    libraries = [f"{top}/{machine}-linux-gnu" for top in ("/lib", "/usr/lib")]
    return paths + [path for path in ("/etc/ld.so.cache", *libraries) if os.path.exists(path)]


def lock(readable: Sequence[str], landlock: bool, dies_with_parent: int | None) -> None:
    """Lock this process.

    Args:
        readable: files and folders that may still be read.
        landlock: restrict reading to them with Landlock; False: no file can be opened at all.
        dies_with_parent: process id of the parent with whose thread this process ends; None: it
            may outlive the thread that started it.

    Raises:
        LockError: a step failed. The process must end without running anything untrusted.
    """
    machine = this_machine()
    if machine is None:
        raise LockError(f"no filter of system calls is known for {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)

    def check(step: str, result: int) -> int:
        if result < 0:
            raise LockError(f"{step}: {os.strerror(ctypes.get_errno())}")
        return result

    def syscall(step: str, number: int, *arguments: Any) -> int:
        return check(step, libc.syscall(ctypes.c_long(number), *arguments))

    def prctl(step: str, option: int, *arguments: Any) -> None:
        words = [a if isinstance(a, ctypes.c_void_p) else ctypes.c_ulong(a) for a in arguments]
        words += [ctypes.c_ulong(0)] * (4 - len(words))
        check(step, libc.prctl(ctypes.c_int(option), *words))

    if dies_with_parent is not None:
        prctl("death with the parent", _PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != dies_with_parent:
            raise LockError("the parent has gone")
    prctl("no core dumps", _PR_SET_DUMPABLE, 0)
    prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    if landlock:
        _restrict_files(syscall, readable)
    # All capabilities go, which matters where the process is root's.
    header = ctypes.create_string_buffer(struct.pack("<II", _CAPABILITY_VERSION_3, 0), 8)
    syscall("no capabilities", machine[-1], header, ctypes.create_string_buffer(24))
    steps = seccomp_program(machine, may_open=landlock)
    code = ctypes.create_string_buffer(steps, len(steps))
    program = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(steps) // 8, ctypes.addressof(code)), 16
    )
    address = ctypes.c_void_p(ctypes.addressof(program))
    prctl("filter of system calls", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address)


def _restrict_files(syscall: Callable[..., int], readable: Sequence[str]) -> None:
    """Allow reading beneath `readable`, and nothing else that concerns files."""
    version, nothing = landlock_version(), ctypes.c_uint32(0)
    if version < 1:
        raise LockError("the kernel has no Landlock")
    handled = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # linking across folders, truncating, devices
        handled |= (version >= since) << bit
    attributes = ctypes.create_string_buffer(struct.pack("<Q", handled), 8)
    size = ctypes.c_size_t(len(attributes))
    made = syscall("files: rules", _LANDLOCK_CREATE_RULESET, attributes, size, nothing)
    rules = ctypes.c_int(made)
    for path in readable:
        at = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
        access = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        beneath = ctypes.create_string_buffer(struct.pack("<Qi", access, at), 12)
        kind = ctypes.c_int(_RULE_PATH_BENEATH)
        syscall(f"files: {path}", _LANDLOCK_ADD_RULE, rules, kind, beneath, nothing)
        os.close(at)
    syscall("files", _LANDLOCK_RESTRICT_SELF, rules, nothing)
    os.close(rules.value)


# An answer and its tests

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
    readable = stdlib_paths() if job["landlock"] else []
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
            raise LockError(f"threads were started by {' or '.join(job['packages'])}")
        if not job["landlock"]:
            for name in COMMON_MODULES:
                try:
                    __import__(name)
                except ImportError:  # not every interpreter has every module
                    continue
        set_limits(job["cpu_s"], job["memory_mb"])
        lock([*readable, *job["readable"]], job["landlock"], job["parent"])
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
    "entry_point", "plain" (results are plain data: the task has no classes), "words" (names
    in the tests).
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
    themselves but for objects, which hold one name of a type and its content (`lift.Reader`).
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
