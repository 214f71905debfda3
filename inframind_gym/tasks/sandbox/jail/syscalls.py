"""The system calls that a locked process may still make, and the filter that refuses the others.

Whatever is not listed is refused with EPERM: making processes or threads, running programs,
sockets, signals to others, changing files, namespaces, io_uring, and what future kernels add.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from typing import Final

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


class Machine:
    """System calls of a processor, as the filter needs them.

    Attributes:
        audit: its AUDIT_ARCH constant.
        allowed: names and numbers of the calls that are always allowed.
        opens: number of an opening call and the index of its argument of flags.
        listing: getdents64, which reads a directory.
        fcntl, clone3, capset: their numbers.
    """

    def __init__(
        self,
        audit: int,
        allowed: dict[str, int],
        opens: tuple[tuple[int, int], ...],
        listing: int,
        fcntl: int,
        capset: int,
    ) -> None:
        self.audit = audit
        self.allowed = allowed
        self.opens = opens
        self.listing = listing
        self.fcntl = fcntl
        self.clone3 = 435
        self.capset = capset


MACHINES: Final = {
    "x86_64": Machine(0xC000003E, _X86_64, ((2, 1), (257, 2)), 217, 72, 126),
    "aarch64": Machine(0xC00000B7, _AARCH64, ((56, 2),), 61, 25, 91),
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


def this_machine() -> Machine | None:
    """Return what is known of this processor, or None where no filter can be built."""
    if sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
        return None
    return MACHINES.get(os.uname().machine)


def seccomp_program(machine: Machine, may_open: bool) -> bytes:
    """Return the filter as an array of struct sock_filter.

    Args:
        machine: the processor.
        may_open: files may be opened for reading (what can be read is not decided here).
    """
    code = [
        _step(_LOAD, 0, 0, _ARCH),
        _step(_JEQ, 1, 0, machine.audit),
        _step(_RETURN, 0, 0, _KILL),
        _step(_LOAD, 0, 0, _NUMBER),
    ]
    always = list(machine.allowed.values()) + ([machine.listing] if may_open else [])
    for number in always:
        code += [_step(_JEQ, 0, 1, number), _step(_RETURN, 0, 0, _ALLOW)]
    # glibc and musl fall back to clone where there is no clone3; that is refused in its turn.
    code += [_step(_JEQ, 0, 1, machine.clone3), _step(_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    commands = [_step(_JEQ, len(_FCNTL_ALLOWED) - i, 0, c) for i, c in enumerate(_FCNTL_ALLOWED)]
    code += [
        _step(_JEQ, 0, len(commands) + 3, machine.fcntl),
        _step(_LOAD, 0, 0, _ARGUMENTS + 8),
        *commands,
        _step(_RETURN, 0, 0, _ERRNO | errno.EPERM),
        _step(_RETURN, 0, 0, _ALLOW),
    ]
    for number, flags in machine.opens if may_open else ():
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
