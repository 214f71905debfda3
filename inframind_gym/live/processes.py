"""Server processes that outlive the command that started them: state, members, end, ports.

    STATE/POOL/state.json   the servers: process, address, log
    STATE/POOL/ALIAS.log    output of a server

STATE is `--state`, $INFRAMIND_STATE, $XDG_STATE_HOME/inframind_gym or ~/.local/state/inframind_gym.

A process is identified by its id and its start since boot: ids are reused. Every server leads a
session of its own, and its members belong to it after it has ended: vLLM's engine outlives an API
server that is killed. Linux only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from pydantic import RootModel, ValidationError

from inframind_gym.configs import StrictModel
from inframind_gym.errors import InfraMindError
from inframind_gym.files import replace_text

GRACE_S: Final = 20.0  # from SIGTERM to SIGKILL
_SAME_START_S: Final = 1.0  # two readings of one start differ by less
_ORPHAN_S: Final = 3.0  # grace of processes whose leader has ended: they have nothing left to do
_KILL_S: Final = 10.0  # from SIGKILL until a process counts as unkillable


class StartedServer(StrictModel):
    """A server that was started and not stopped."""

    alias: str
    pid: int
    start_s: float  # since boot
    url: str
    log: str
    settings: str  # digest of its command line and environment
    simulated: bool = False  # one process simulates all servers of the pool

    @property
    def runs(self) -> bool:
        """True if its process has not ended."""
        return any(process.pid == self.pid for process in self.members())

    def members(self) -> list[psutil.Process]:
        """Return its processes that run, the leader first; they can be left without it."""
        members = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                dead = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
                if dead or os.getsid(process.pid) != self.pid:
                    continue
                is_leader = process.pid == self.pid
                if is_leader and abs(start_of(process) - self.start_s) >= _SAME_START_S:
                    return []  # another program has the id: none of our session is left
                members.append(process)
        return sorted(members, key=lambda process: (process.pid != self.pid, process.pid))


class _State(RootModel[tuple[StartedServer, ...]]):
    """Content of state.json."""


class Stopped(NamedTuple):
    """Outcome of stopping one server."""

    alias: str
    pid: int
    processes: int  # before it was stopped
    killed: bool  # it did not end by itself


def start_of(process: psutil.Process) -> float:
    """Return when a process began, in s since boot: changes of the clock do not matter."""
    return float(process.create_time() - psutil.boot_time())


def state_folder(state: str | Path | None = None) -> Path:
    """Return the folder of all pools' states."""
    if chosen := state or os.environ.get("INFRAMIND_STATE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base).absolute() / "inframind_gym"


class StartedServers:
    """The servers of one pool that were started, in a folder that outlives the process."""

    def __init__(self, pool: str, state: str | Path | None = None) -> None:
        self.pool = pool
        self.folder = state_folder(state) / pool
        self.servers: dict[str, StartedServer] = {}  # by alias; as of the last `read` or `locked`
        self._file = self.folder / "state.json"

    def read(self) -> dict[str, StartedServer]:
        """Read `servers`; an InfraMindError where the file is damaged."""
        try:
            content = _State.model_validate_json(self._file.read_bytes()).root
        except FileNotFoundError:
            content = ()
        except (OSError, ValidationError) as error:
            if isinstance(error, ValidationError):  # damaged, or of another version
                first = error.errors()[0]
                why = f"it is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            else:
                why = str(error.strerror)
            words = "See with ps which servers run, stop them, and remove the file."
            raise InfraMindError(f"{self._file}: cannot be read: {why}. {words}") from None
        self.servers = {server.alias: server for server in content}
        return self.servers

    def write(self, *changed: StartedServer) -> None:
        """Write `servers`, after adding or replacing some."""
        self.servers |= {server.alias: server for server in changed}
        if self.servers:
            content = _State(tuple(self.servers.values()))
            replace_text(self._file, content.model_dump_json(indent=1) + "\n")
        else:
            self._file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Read `servers`, and keep other commands from changing them meanwhile.

        Raises:
            InfraMindError: another command is at it, or the folder cannot be written.
        """
        if not sys.platform.startswith("linux"):
            raise InfraMindError(
                "servers are started and stopped on Linux only; elsewhere start them by hand (or "
                "with docker/compose.*.yaml) and give their `url` in the pool"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.folder / "lock").open("w", encoding="ascii")
        except OSError as error:
            raise InfraMindError(f"{self.folder}: cannot be written: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InfraMindError(
                    f"another command is starting or stopping pool {self.pool!r}: wait for it, or "
                    "interrupt it"
                ) from None
            self.read()
            yield

    def end(self, servers: Iterable[StartedServer], grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop servers, and drop those that are gone from `servers`.

        SIGTERM to each leader, which ends its members, and to members without one; SIGKILL to what
        is left after `grace_s`, or at once on a KeyboardInterrupt, which is raised in the end.
        Processes of other users, or that hang in the kernel, can survive.
        """
        interrupt: KeyboardInterrupt | None = None
        servers = list(servers)
        members = {server.alias: server.members() for server in servers}
        everything = [process for running in members.values() for process in running]
        leaders = {server.pid for server in servers}
        try:
            for running in members.values():
                led = bool(running) and running[0].pid in leaders
                _signal(running[:1] if led else running, signal.SIGTERM)
            psutil.wait_procs([each for each in everything if each.pid in leaders], grace_s)
            psutil.wait_procs(everything, min(grace_s, _ORPHAN_S))
        except KeyboardInterrupt as pressed:
            interrupt = pressed
        stubborn = {server.alias: server.members() for server in servers}
        killed = [process for running in stubborn.values() for process in running]
        _signal(killed, signal.SIGKILL)
        psutil.wait_procs(killed, _KILL_S)
        for server in servers:
            if not server.members():
                self.servers.pop(server.alias, None)
        self.write()
        if interrupt is not None:
            raise interrupt
        return [
            Stopped(each.alias, each.pid, len(members[each.alias]), bool(stubborn[each.alias]))
            for each in servers
        ]

    def down(self, grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop all servers with all their processes, and nothing else; see `locked` and `end`."""
        with self.locked():
            return self.end(self.servers.values(), grace_s)


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.send_signal(number)


def free_ports(count: int) -> list[int]:
    """Return distinct free ports of 127.0.0.1."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
