"""Threads that run compiled code side by side: it holds no lock of the interpreter.

Work is handed over through a word of memory, in machine code: a thread that has nothing to do looks
for more for tens of microseconds before it goes to sleep, since waking it takes as long as dozens
of rows.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.native import Bound, aligned

MOST_THREADS: Final = 256
_LEAST_ROWS: Final = 16  # of a thread: handing over a share takes as long as a dozen rows


class Crew:
    """Threads that run an entry point, each on a share of the work.

    The caller's thread takes the first share; the others start when they are first needed, and end
    with the crew. Not to be called by two threads at a time.

    Args:
        entry: an entry point.
        num_threads: T, the caller's included.

    Attributes:
        own: the entry point as the caller's thread runs it.
    """

    def __init__(self, entry: Any, num_threads: int) -> None:
        self._entry = entry
        self.num_threads = num_threads
        self.own = Bound(entry)
        self._members: list[_Member] = []
        self._process = 0  # that the members are threads of
        self._rows: NDArray[np.int64] | None = None
        self._slices: list[slice] = []
        self._shares: list[NDArray[np.int64]] = []

    def __reduce__(self) -> tuple[type[Crew], tuple[Any, int]]:
        return Crew, (self._entry, self.num_threads)

    def split(self, rows: NDArray[np.int64]) -> tuple[list[slice], list[NDArray[np.int64]]]:
        """Return equal shares of rows, at most T, as slices and as arrays."""
        if rows is not self._rows:
            count = max(1, min(self.num_threads, len(rows) // _LEAST_ROWS))
            ends = np.linspace(0, len(rows), count + 1).astype(int).tolist()
            self._rows = rows
            self._slices = [slice(a, b) for a, b in pairwise(ends)]
            self._shares = [rows[part] for part in self._slices]
        return self._slices, self._shares

    def run(self, shares: Sequence[tuple[Any, ...]]) -> None:
        """Call the entry point with each of these arguments, and wait for all.

        Raises:
            RuntimeError: The compiled code has failed.
        """
        others = shares[1:]
        if others:
            self._call_up(len(others))
        members = self._members[: len(others)]
        for member, share in zip(members, others, strict=True):
            member.prepare(share)
        for member in members:
            member.begin()
        try:
            self.own(*shares[0])
        finally:
            failed = [member.wait() for member in members]
        if any(failed):
            raise RuntimeError("the compiled code of a thread has failed")

    def _call_up(self, count: int) -> None:
        """Start threads up to that number; a forked process has none of its parent's."""
        if self._process != os.getpid():
            self._members, self._process = [], os.getpid()
        while len(self._members) < count:
            member = _Member(Bound(self._entry))
            member.start()
            weakref.finalize(self, member.dismiss)
            self._members.append(member)


# Words of a thread's desk. The state is IDLE while the thread looks for work, WORK from when it is
# given some until it is done, ASLEEP once it has found none for long.
_STATE, _CODE, _ARGUMENTS, _RESULT = range(4)
_IDLE, _WORK, _ASLEEP = range(3)
_DESK: Final = 8  # words: a line of the processor's cache, so that no two threads share one
_LOOKS: Final = 1_500  # about 50 µs
_PAUSE: Final = {  # LLVM's name of a processor's hint that it only looks, by machine
    **dict.fromkeys(("x86_64", "AMD64"), "llvm.x86.sse2.pause()"),
    **dict.fromkeys(("aarch64", "arm64"), "llvm.aarch64.hint(i32 1)"),
}
_HANDOVER: Final = """
declare i32 @sched_yield()
{declared}

define i32 @crew_serve(ptr %desk) {{
begin:
  %code_word = getelementptr i64, ptr %desk, i64 {code}
  %arguments_word = getelementptr i64, ptr %desk, i64 {arguments}
  %result_word = getelementptr i64, ptr %desk, i64 {result}
  br label %look
look:
  %left = phi i64 [ {looks}, %begin ], [ {looks}, %run ], [ %less, %pause ], [ 1, %sleep ]
  %state = load atomic i64, ptr %desk acquire, align 8
  %has_work = icmp eq i64 %state, {work}
  br i1 %has_work, label %take, label %pause
take:
  %address = load i64, ptr %code_word
  %ends = icmp eq i64 %address, 0
  br i1 %ends, label %end, label %run
run:
  %function = inttoptr i64 %address to ptr
  %words = load i64, ptr %arguments_word
  %status = call i32 %function(i64 %words)
  %result = zext i32 %status to i64
  store i64 %result, ptr %result_word
  store atomic i64 {idle}, ptr %desk release, align 8
  br label %look
pause:
  {pause}
  %less = sub i64 %left, 1
  %is_tired = icmp sle i64 %less, 0
  br i1 %is_tired, label %sleep, label %look
sleep:
  %pair = cmpxchg ptr %desk, i64 {idle}, i64 {asleep} acq_rel acquire
  %sleeps = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %sleeps, label %asleep, label %look
asleep:
  ret i32 1
end:
  ret i32 0
}}

define i32 @crew_begin(ptr %desk) {{
  %before = atomicrmw xchg ptr %desk, i64 {work} acq_rel
  %is_asleep = icmp eq i64 %before, {asleep}
  %answer = zext i1 %is_asleep to i32
  ret i32 %answer
}}

define i32 @crew_wait(ptr %desk) {{
begin:
  br label %look
look:
  %left = phi i64 [ {looks}, %begin ], [ %less, %pause ], [ %less, %yield ]
  %state = load atomic i64, ptr %desk acquire, align 8
  %works = icmp eq i64 %state, {work}
  br i1 %works, label %again, label %done
again:
  %less = sub i64 %left, 1
  %is_long = icmp sle i64 %less, 0
  br i1 %is_long, label %yield, label %pause
pause:
  {pause}
  br label %look
yield:
  call i32 @sched_yield()
  br label %look
done:
  ret i32 0
}}
"""


class _Handover(NamedTuple):
    """Machine code on a desk's address.

    Attributes:
        serve: do the work that is put there; returns 1 to sleep, 0 to end.
        begin: put work there; returns whether the thread has to be woken.
        wait: until it is done.
    """

    serve: Callable[[int], int]
    begin: Callable[[int], int]
    wait: Callable[[int], int]


@cache
def _handover() -> _Handover:
    from inframind_gym.simulator.programs import assembled

    words = {"code": _CODE, "arguments": _ARGUMENTS, "result": _RESULT, "looks": _LOOKS}
    states = {"idle": _IDLE, "work": _WORK, "asleep": _ASLEEP}
    hint = _PAUSE.get(platform.machine())
    code = {
        "declared": f"declare void @{hint.replace(' 1', '')}" if hint else "",
        "pause": f"call void @{hint}" if hint else "",
    }
    engine = assembled(_HANDOVER.format(**words, **states, **code))
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    names = [f"crew_{name}" for name in _Handover._fields]
    return _Handover._make(prototype(engine.get_function_address(name)) for name in names)


class _Member(threading.Thread):
    """A thread of a crew.

    Args:
        call: what it runs.
    """

    def __init__(self, call: Bound) -> None:
        super().__init__(daemon=True)
        self._call, self._handover = call, _handover()
        self._desk = aligned((_DESK,), np.int64)
        self._address = self._desk.ctypes.data
        self._awake = threading.Lock()
        self._awake.acquire()

    def prepare(self, share: tuple[Any, ...]) -> None:
        """Write the arguments of its work."""
        self._desk[_CODE], self._desk[_ARGUMENTS] = self._call.prepare(*share)

    def begin(self) -> None:
        """Let it work."""
        if self._handover.begin(self._address):
            self._awake.release()

    def wait(self) -> bool:
        """Wait until it is done; return whether its code has failed."""
        self._handover.wait(self._address)
        return bool(self._desk[_RESULT])

    def dismiss(self) -> None:
        """Let the thread end."""
        self._desk[_CODE] = 0
        self.begin()

    def run(self) -> None:
        """Work until there is none to come."""
        while self._handover.serve(self._address):
            self._awake.acquire()
