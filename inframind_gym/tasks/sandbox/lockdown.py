"""Giving up, for good, everything that a process does not need to compute.

Works as root and as an ordinary user, in a container or out of it: nothing here asks for
privileges. After :func:`lock` the process cannot make processes or threads, run programs, open a
socket, signal another process, or change, create or remove a file. It can read the files under the
given paths only, or none at all where the kernel has no Landlock. System calls that are not listed
are refused with EPERM. The module runs inside of the locked process and imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import errno
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
    attributes, size = (
        ctypes.create_string_buffer(struct.pack("<Q", handled), 8),
        ctypes.c_size_t(8),
    )
    rules = ctypes.c_int(
        syscall("files: rules", _LANDLOCK_CREATE_RULESET, attributes, size, nothing)
    )
    for path in readable:
        at = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
        access = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        beneath = ctypes.create_string_buffer(struct.pack("<Qi", access, at), 12)
        kind = ctypes.c_int(_RULE_PATH_BENEATH)
        syscall(f"files: {path}", _LANDLOCK_ADD_RULE, rules, kind, beneath, nothing)
        os.close(at)
    syscall("files", _LANDLOCK_RESTRICT_SELF, rules, nothing)
    os.close(rules.value)
