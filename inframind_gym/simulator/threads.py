"""Threads that run compiled code side by side: it holds no lock of the interpreter.

Work is handed over through a word of memory, in machine code: a thread that has nothing to do looks
for more for a hundred microseconds before it goes to sleep, since waking it takes as long as dozens
of rows. Rows differ in what they cost, so that no share of them is anybody's: whoever is done takes
the next, and the shares become smaller toward the end.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.native import Bound, aligned, words_of

MOST_THREADS: Final = 256
_WORTHWHILE: Final = 16  # rows of a thread: handing work over takes as long as a dozen
_LEAST: Final = 8  # rows of a share: what the first ones need is not fetched ahead


def shares_of(count: int, num_threads: int) -> NDArray[np.int64]:
    """Return the shares of so many rows, as `_HANDOVER` reads them.

    Returns:
        How many of them are taken, how many there are, the first one's start, and where each ends.
    """
    ends = [0]
    while ends[-1] < count:
        left = count - ends[-1]
        fair = left if num_threads == 1 else max(left // (2 * num_threads), _LEAST)
        ends.append(ends[-1] + min(left, fair))
    return np.array([0, len(ends) - 1, *ends])


class Crew:
    """Threads that run an entry point together.

    The caller's thread is one of them; the others start when they are first needed, and end with
    the crew. Not to be called by two threads at a time.

    Args:
        entry: an entry point, whose last two arguments are the first row of a share and the one
            behind its last.
        own: T values of one argument, one a thread: it has scratch space.
        place: which argument that is.
    """

    def __init__(self, entry: Any, own: Sequence[Any], place: int) -> None:
        self._entry, self._own, self._place = entry, own, place
        self._call = Bound(entry)
        self._desk = _Desk(own[0], place)
        self._members: list[_Member] = []
        self._process = 0  # that the members are threads of
        self._count = -1  # rows, which the shares are of

    def __reduce__(self) -> tuple[type[Crew], tuple[Any, Sequence[Any], int]]:
        return Crew, (self._entry, self._own, self._place)

    def run(self, count: int, *arguments: Any) -> None:
        """Work on `count` rows, and wait until all are done.

        Args:
            count: number of rows.
            arguments: the entry point's without the last two, as the caller's thread takes them.

        Raises:
            RuntimeError: The compiled code has failed.
        """
        if len(self._own) == 1:
            self._call(*arguments, 0, count)
            return
        if count != self._count:
            self._count, self._wanted = count, max(1, min(len(self._own), count // _WORTHWHILE))
            self._shares = shares_of(count, self._wanted)
            self._shares_address = self._shares.ctypes.data
        self._call.prepare(*arguments, 0, 0)
        self._shares[0] = 0
        members = self._call_up(self._wanted - 1)
        for desk in (self._desk, *(member.desk for member in members)):
            desk.put(self._call, self._shares_address)
        for member in members:
            member.begin()
        try:
            failed = _handover().work(self._desk.address)
        finally:
            failed_too = [member.wait() for member in members]
        if failed or any(failed_too):
            raise RuntimeError("the compiled code of a thread has failed")

    def _call_up(self, count: int) -> list[_Member]:
        """Return so many threads, started; a forked process has none of its parent's."""
        if self._process != os.getpid():
            self._members, self._process = [], os.getpid()
        while len(self._members) < count:
            member = _Member(_Desk(self._own[len(self._members) + 1], self._place))
            member.start()
            weakref.finalize(self, member.dismiss)
            self._members.append(member)
        return self._members[:count]


# Words of a thread's desk. The state is IDLE while the thread looks for work, WORK from when it is
# given some until it is done, ASLEEP once it has found none for long. The others are addresses, but
# for the result: of the compiled code, of the words that it takes, of the last two of them, which
# are a share's ends, and of the shares.
_STATE, _CODE, _ARGUMENTS, _ENDS, _SHARES, _RESULT = range(6)
_IDLE, _WORK, _ASLEEP = range(3)
_DESK: Final = 8  # words: a line of the processor's cache, so that no two threads share one
_LOOKS: Final = 3_000  # about 100 µs
_PAUSE: Final = {  # LLVM's name of a processor's hint that it only looks, by machine
    **dict.fromkeys(("x86_64", "AMD64"), "llvm.x86.sse2.pause()"),
    **dict.fromkeys(("aarch64", "arm64"), "llvm.aarch64.hint(i32 1)"),
}
_HANDOVER: Final = """
declare i32 @sched_yield()
{declared}

define i32 @crew_work(ptr %desk) {{
begin:
  %code_word = getelementptr ptr, ptr %desk, i64 {code}
  %arguments_word = getelementptr ptr, ptr %desk, i64 {arguments}
  %ends_word = getelementptr ptr, ptr %desk, i64 {ends}
  %shares_word = getelementptr ptr, ptr %desk, i64 {shares}
  %function = load ptr, ptr %code_word
  %arguments = load ptr, ptr %arguments_word
  %first = load ptr, ptr %ends_word
  %last = getelementptr i64, ptr %first, i64 1
  %shares = load ptr, ptr %shares_word
  %count_word = getelementptr i64, ptr %shares, i64 1
  %count = load i64, ptr %count_word
  %starts = getelementptr i64, ptr %shares, i64 2
  br label %next
next:
  %share = atomicrmw add ptr %shares, i64 1 monotonic
  %is_left = icmp slt i64 %share, %count
  br i1 %is_left, label %run, label %done
run:
  %start_word = getelementptr i64, ptr %starts, i64 %share
  %stop_word = getelementptr i64, ptr %start_word, i64 1
  %start = load i64, ptr %start_word
  %stop = load i64, ptr %stop_word
  store i64 %start, ptr %first
  store i64 %stop, ptr %last
  %status = call i32 %function(ptr %arguments)
  %is_fine = icmp eq i32 %status, 0
  br i1 %is_fine, label %next, label %failed
done:
  ret i32 0
failed:
  ret i32 %status
}}

define i32 @crew_serve(ptr %desk) {{
begin:
  %code_word = getelementptr i64, ptr %desk, i64 {code}
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
  %status = call i32 @crew_work(ptr %desk)
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
        work: take shares of the work that is put there until none is left; returns 0, or what
            compiled code that has failed returns.
        serve: do the work that is put there again and again; returns 1 to sleep, 0 to end.
        begin: put work there; returns whether the thread has to be woken.
        wait: until it is done.
    """

    work: Callable[[int], int]
    serve: Callable[[int], int]
    begin: Callable[[int], int]
    wait: Callable[[int], int]


@cache
def _handover() -> _Handover:
    from inframind_gym.simulator.programs import assembled

    words = {"code": _CODE, "arguments": _ARGUMENTS, "ends": _ENDS, "shares": _SHARES}
    states = {"idle": _IDLE, "work": _WORK, "asleep": _ASLEEP, "looks": _LOOKS, "result": _RESULT}
    hint = _PAUSE.get(platform.machine())
    code = {
        "declared": f"declare void @{hint.replace(' 1', '')}" if hint else "",
        "pause": f"call void @{hint}" if hint else "",
    }
    engine = assembled(_HANDOVER.format(**words, **states, **code))
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    names = [f"crew_{name}" for name in _Handover._fields]
    return _Handover._make(prototype(engine.get_function_address(name)) for name in names)


class _Desk:
    """Where a thread's work is put, in the form that `_HANDOVER` reads.

    Args:
        own: the thread's own value of an argument, a NamedTuple of arrays.
        place: which argument that is.

    Attributes:
        address: of its words.
    """

    def __init__(self, own: Any, place: int) -> None:
        self._own = own  # which the block has the addresses of
        self._block = np.array(words_of(own))
        self._word, self._block_address = 1 + place, self._block.ctypes.data
        self._arguments = np.zeros(0, np.int64)
        self._words = aligned((_DESK,), np.int64)
        self.address = self._words.ctypes.data

    def put(self, call: Bound, shares_address: int) -> None:
        """Put a call there that is prepared, and the shares of its rows."""
        if len(self._arguments) != len(call.words):
            self._arguments = np.zeros_like(call.words)
            self._words[_ARGUMENTS] = self._arguments.ctypes.data
            self._words[_ENDS] = self._arguments[-2:].ctypes.data
        self._arguments[:] = call.words
        self._arguments[self._word] = self._block_address
        self._words[_CODE], self._words[_SHARES] = call.address, shares_address

    def put_end(self) -> None:
        """Put there that no work will come any more."""
        self._words[_CODE] = 0

    def has_failed(self) -> bool:
        """Return whether the compiled code of the work has failed."""
        return bool(self._words[_RESULT])


class _Member(threading.Thread):
    """A thread of a crew, with its desk."""

    def __init__(self, desk: _Desk) -> None:
        super().__init__(daemon=True)
        self.desk, self._handover = desk, _handover()
        self._awake = threading.Lock()
        self._awake.acquire()

    def begin(self) -> None:
        """Let it do what is on its desk."""
        if self._handover.begin(self.desk.address):
            self._awake.release()

    def wait(self) -> bool:
        """Wait until it is done; return whether its code has failed."""
        self._handover.wait(self.desk.address)
        return self.desk.has_failed()

    def dismiss(self) -> None:
        """Let the thread end."""
        self.desk.put_end()
        self.begin()

    def run(self) -> None:
        """Work until there is none to come."""
        while self._handover.serve(self.desk.address):
            self._awake.acquire()
