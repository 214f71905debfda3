"""Identity, members and end of server processes, and who holds a port.

A process id alone is no identity: ids are reused, and vLLM's engine outlives an API server that is
killed. A process is identified by its id and its start in seconds since boot, which survives
changes of the clock. A server consists of the session that its process leads, and of all
descendants. Linux only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

_POLL_S: Final = 0.1
_SAME_START_S: Final = 0.015  # the kernel counts in hundredths
_ORPHAN_S: Final = 3.0  # grace of processes whose leader has ended: they have nothing left to do
_KILL_S: Final = 10.0  # from SIGKILL until a process counts as unkillable

Identity = tuple[int, float]  # process id, start in s since boot


def boot_id() -> str:
    """Return the identity of this boot of the machine; "" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def identity(process: psutil.Process) -> Identity:
    """Return the identity of a process, valid until the machine is rebooted."""
    return process.pid, round(process.create_time() - psutil.boot_time(), 2)


def find(wanted: Identity) -> psutil.Process | None:
    """Return the process with an identity, also a zombie; None: it is gone."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(wanted[0])
        if abs(identity(process)[1] - wanted[1]) < _SAME_START_S:
            return process
    return None


def is_running(wanted: Identity) -> bool:
    """Return whether a process has not ended."""
    process = find(wanted)
    return process is not None and not _has_ended(process)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return True


@dataclass(slots=True)
class Family:
    """A process that leads a session of its own, and the members that were seen so far."""

    leader: Identity
    known: set[Identity] = field(default_factory=set)

    def running(self) -> list[psutil.Process]:
        """Return the members that run, the leader first; they are added to `known`.

        A session's number is not reused while a member of it runs. If the leader is gone, the
        session is therefore still this family's if a known member is in it; otherwise it can be
        a stranger's, and is left alone.
        """
        known = [find(each) for each in {self.leader, *self.known}]
        found = {process for process in known if process is not None}
        table: dict[psutil.Process, tuple[int, int]] = {}  # parent and session of each process
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                table[process] = process.ppid(), os.getsid(process.pid)
        if any(table[process][1] == self.leader[0] for process in found & table.keys()):
            found |= {process for process, (_, sid) in table.items() if sid == self.leader[0]}
        new = found
        while new:  # descendants that left the session
            pids = {process.pid for process in new}
            new = {process for process, (parent, _) in table.items() if parent in pids} - found
            found |= new
        alive = [process for process in found if not _has_ended(process)]
        for process in alive:
            with contextlib.suppress(psutil.Error):
                self.known.add(identity(process))
        return sorted(alive, key=lambda process: (process.pid != self.leader[0], process.pid))


def stop(families: Sequence[Family], grace_s: float) -> set[int]:
    """End families: SIGTERM to each leader, which ends its members; later SIGKILL to all.

    KeyboardInterrupt meanwhile shortens the grace to 0 and is not raised. Processes of other users,
    or that hang in the kernel, can survive.

    Args:
        families: the families to end.
        grace_s: from SIGTERM to SIGKILL.

    Returns:
        Leaders' ids of the families of which a process had to be killed.
    """
    over_s = time.monotonic() + grace_s
    killed: set[int] = set()
    asked: set[psutil.Process] = set()
    alone_s: dict[int, float] = {}  # since when a family is without its leader
    left = list(families)
    while left:
        try:
            now_s = time.monotonic()
            waiting = []
            for family in left:
                alive = family.running()
                if not alive:
                    continue
                waiting.append(family)
                pid = family.leader[0]
                led = alive[0].pid == pid
                orphan_s = over_s if led else alone_s.setdefault(pid, now_s) + _ORPHAN_S
                if now_s >= min(over_s, orphan_s):
                    sent = [_send(process, signal.SIGKILL) for process in alive]
                    killed |= {pid} if any(sent) else set()
                    continue
                for process in alive[:1] if led else alive:
                    if process not in asked:
                        asked.add(process)
                        _send(process, signal.SIGTERM)
            left = waiting
            if now_s >= over_s + _KILL_S:
                break
            if left:
                time.sleep(_POLL_S)
        except KeyboardInterrupt:
            over_s = min(over_s, time.monotonic())
    return killed


def _send(process: psutil.Process, number: signal.Signals) -> bool:
    """Send a signal; psutil refuses where the id belongs to another process by now."""
    try:
        process.send_signal(number)
    except (psutil.Error, OSError):
        return False
    return True


def resident_bytes(processes: Sequence[psutil.Process]) -> int:
    """Return the memory of processes; shared pages are counted once (proportional set size)."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            total += process.memory_full_info().pss
    return total


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server can listen on a port.

    A vLLM server that is starting has bound its port before it listens, and a second vLLM can bind
    the same one (SO_REUSEPORT): both would come up and share the requests. Connections that have
    just ended (TIME_WAIT) keep no server away.
    """
    if _can_bind(port, host, reuse=False):
        return True
    waits = any(each.status == psutil.CONN_TIME_WAIT for each in _connections(port))
    return waits and _can_bind(port, host, reuse=True)


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def port_holder(port: int) -> str:
    """Return the process that listens on a port, in words; "" where it cannot be seen."""
    for each in _connections(port):
        if each.status == psutil.CONN_LISTEN and each.pid is not None:
            with contextlib.suppress(psutil.Error):
                line = " ".join(psutil.Process(each.pid).cmdline())
                return f"process {each.pid}: {line[:100]}"
    return ""


def _connections(port: int) -> Iterator[Any]:
    """Yield the TCP sockets with this local port."""
    for each in psutil.net_connections("tcp"):
        if each.laddr and each.laddr.port == port:
            yield each


def _can_bind(port: int, host: str, *, reuse: bool) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
