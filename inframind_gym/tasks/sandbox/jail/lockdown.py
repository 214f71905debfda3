"""Giving up, for good, everything that a process does not need to compute.

Works as root and as an ordinary user, in a container or out of it: nothing here asks for
privileges. After :func:`lock` the process cannot make processes or threads, run programs, open a
socket, signal another process, or change, create or remove a file; it can read the files under the
given paths only, or none at all where the kernel has no Landlock. Its processor time and memory
are bounded.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

from .syscalls import seccomp_program, this_machine

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def prctl(step: str, option: int, *arguments: object) -> None:
        words = [a if isinstance(a, ctypes.c_void_p) else ctypes.c_ulong(a) for a in arguments]  # type: ignore[arg-type]
        words += [ctypes.c_ulong(0)] * (4 - len(words))
        check(step, libc.prctl(ctypes.c_int(option), *words))

    if dies_with_parent is not None:
        prctl("death with the parent", _PR_SET_PDEATHSIG, _SIGKILL)
        if os.getppid() != dies_with_parent:
            raise LockError("the parent has gone")
    prctl("no core dumps", _PR_SET_DUMPABLE, 0)
    prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)
    if landlock:
        _restrict_files(libc, check, readable)
    # All capabilities go, which matters where the process is root's.
    header = ctypes.create_string_buffer(struct.pack("<II", _CAPABILITY_VERSION_3, 0), 8)
    nothing = ctypes.create_string_buffer(24)
    check("no capabilities", libc.syscall(ctypes.c_long(machine.capset), header, nothing))
    steps = seccomp_program(machine, may_open=landlock)
    code = ctypes.create_string_buffer(steps, len(steps))
    program = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(steps) // 8, ctypes.addressof(code)), 16
    )
    address = ctypes.c_void_p(ctypes.addressof(program))
    prctl("filter of system calls", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, address)


def _restrict_files(libc: ctypes.CDLL, check: object, readable: Sequence[str]) -> None:
    """Allow reading beneath `readable`, and nothing else that concerns files."""
    assert callable(check)
    version = landlock_version()
    if version < 1:
        raise LockError("the kernel has no Landlock")
    handled = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # linking across folders, truncating, devices
        if version >= since:
            handled |= 1 << bit
    attributes = ctypes.create_string_buffer(struct.pack("<Q", handled), 8)
    rules = check(
        "files: rules",
        libc.syscall(
            ctypes.c_long(_LANDLOCK_CREATE_RULESET),
            attributes,
            ctypes.c_size_t(8),
            ctypes.c_uint32(0),
        ),
    )
    for path in readable:
        folder = os.path.isdir(path)
        at = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
        access = _READ_FILE | _READ_DIR if folder else _READ_FILE
        beneath = ctypes.create_string_buffer(struct.pack("<Qi", access, at), 12)
        check(
            f"files: {path}",
            libc.syscall(
                ctypes.c_long(_LANDLOCK_ADD_RULE),
                ctypes.c_int(rules),
                ctypes.c_int(_RULE_PATH_BENEATH),
                beneath,
                ctypes.c_uint32(0),
            ),
        )
        os.close(at)
    restrict = ctypes.c_long(_LANDLOCK_RESTRICT_SELF)
    check("files", libc.syscall(restrict, ctypes.c_int(rules), ctypes.c_uint32(0)))
    os.close(rules)
