"""Processes that somebody started earlier: still the same ones, with all that they started.

A process id alone says little: ids are given again, and vLLM's engine outlives an API server that
is killed. A process is known by its id and the time of its start; what belongs to a server is the
session that it leads, and whatever descends from that. Linux only (`/proc`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LOOK_S: Final = 0.1
_ORPHANS_S: Final = 3.0  # for those whose leader has ended: they have nothing more to do
_KILL_S: Final = 10.0  # for what was killed to be gone


@dataclass(frozen=True, slots=True)
class Process:
    """A process, whatever may have its id later."""

    pid: int
    started: int  # clock ticks since the machine was booted


@dataclass(frozen=True, slots=True)
class _Stat:
    process: Process
    parent: int
    session: int
    ended: bool  # its parent has not taken its status yet: the id is still its own


@dataclass(frozen=True, slots=True)
class Family:
    """A process that leads a session of its own, and what is known of its members."""

    leader: Process
    known: Sequence[Process] = field(default=())


def boot_id() -> str:
    """What tells this boot of the machine from others; "" where that cannot be told."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_of(pid: int) -> Process | None:
    """The process that has this id now, even if it has ended; None: there is none."""
    stat = _stat(pid)
    return None if stat is None else stat.process


def is_running(process: Process) -> bool:
    """Whether it has not ended."""
    stat = _stat(process.pid)
    return stat is not None and stat.process == process and not stat.ended


def members(family: Family) -> list[Process]:
    """Those of a family that run, the leader first.

    The number of a session is not given to another process while a member of it runs. Where the
    leader's is gone, the session's members are therefore of the family if one that is known is
    still among them; else they can be strangers, and nothing of them is taken.
    """
    table = _table()
    now = table.get(family.leader.pid)
    found = {p.pid for p in family.known if p.pid in table and table[p.pid].process == p}
    if now is not None and now.process == family.leader:
        found.add(family.leader.pid)
    if any(table[pid].session == family.leader.pid for pid in found):
        found |= {pid for pid, stat in table.items() if stat.session == family.leader.pid}
    grown = True
    while grown:  # whoever left the session, but not the family
        children = {pid for pid, stat in table.items() if stat.parent in found and pid not in found}
        found |= children
        grown = bool(children)
    found = {pid for pid in found if not table[pid].ended}
    ordered = sorted(found, key=lambda pid: (pid != family.leader.pid, pid))
    return [table[pid].process for pid in ordered]


def stop(
    families: Sequence[Family],
    grace_s: float,
    on_stopped: Callable[[Family, bool], None] = lambda family, killed: None,
) -> list[Process]:
    """End families: SIGTERM to each leader, which ends its own; after a while SIGKILL to all.

    KeyboardInterrupt while it waits shortens the grace to nothing and is not raised.

    Args:
        families: what to end.
        grace_s: from SIGTERM to SIGKILL.
        on_stopped: told of each family that is gone, and whether one of it had to be killed.

    Returns:
        What still runs: processes of others' that may not be signalled, or that hang in the kernel.
    """
    over_s = time.monotonic() + grace_s
    left = [_Ending(family) for family in families]
    while left:
        try:
            for ending in left:
                ending.press(over_s)
                if not ending.alive:
                    on_stopped(ending.family, bool(ending.killed))
            left = [ending for ending in left if ending.alive]
            if left and time.monotonic() >= over_s + _KILL_S:
                break
            if left:
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            over_s = min(over_s, time.monotonic())
    return [process for ending in left for process in ending.alive]


@dataclass(slots=True)
class _Ending:
    """A family on its way out."""

    family: Family
    alive: list[Process] = field(default_factory=list)
    asked: set[Process] = field(default_factory=set)
    killed: set[Process] = field(default_factory=set)
    alone_s: float | None = None  # since when its leader has ended

    def press(self, over_s: float) -> None:
        """Look who runs, and have them end."""
        self.alive = members(self.family)
        # What was seen once is known, whoever is its parent later.
        known = tuple(dict.fromkeys([*self.family.known, *self.alive]))
        self.family = Family(self.family.leader, known)
        now_s = time.monotonic()
        led = self.family.leader in self.alive
        if not led and self.alone_s is None:
            self.alone_s = now_s
        if self.alone_s is not None:
            over_s = min(over_s, self.alone_s + _ORPHANS_S)
        if now_s >= over_s:
            self.killed.update(p for p in self.alive if send(p, signal.SIGKILL))
            return
        # The leader ends the others, as long as there is one.
        for process in {self.family.leader} if led else set(self.alive):
            if process not in self.asked:
                self.asked.add(process)
                send(process, signal.SIGTERM)


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal to a process and to no other that has its id by then."""
    try:
        handle = os.pidfd_open(process.pid)
    except AttributeError:
        handle = -1
    except OSError as error:
        if error.errno != errno.ENOSYS:
            return False
        handle = -1
    try:
        if not is_running(process):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(process.pid, number)
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def command_line(pid: int) -> str:
    """How a process was called, for people; "" where it is not to be seen."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def resident_bytes(processes: Iterable[Process]) -> int:
    """Memory of processes; what they share is counted once (proportionally)."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in (_PROC / str(process.pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def _stat(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # pid (name) state ppid pgrp session ... starttime is the 22nd; a name may hold anything.
    fields = text[text.rfind(")") + 2 :].split()
    if len(fields) < 20:
        return None
    ended = fields[0] in "ZXx"
    return _Stat(Process(pid, int(fields[19])), int(fields[1]), int(fields[3]), ended)


def _table() -> dict[int, _Stat]:
    """All processes."""
    found = (_stat(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return {stat.process.pid: stat for stat in found if stat is not None}
