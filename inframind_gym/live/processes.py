"""Server processes that outlive the command that started them: state, members, end, ports.

    STATE/POOL/state.json   the servers: process, address, log
    STATE/POOL/ALIAS.log    output of a server; ALIAS.log.old: of the one before it

STATE is `--state`, $INFRAMIND_STATE, $XDG_STATE_HOME/inframind_gym or ~/.local/state/inframind_gym.

A process is identified by its id and its start since boot: ids are reused. Every server leads a
session of its own, and its members belong to it after it has ended: vLLM's engine outlives an API
server that is killed. Linux only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
from pydantic import RootModel

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.files import replace_text

STATE_ENV: Final = "INFRAMIND_STATE"
GRACE_S: Final = 20.0  # from SIGTERM to SIGKILL
_POLL_S: Final = 0.1
_SAME_START_S: Final = 0.015  # the kernel counts in hundredths
_ORPHAN_S: Final = 3.0  # grace of processes whose leader has ended: they have nothing left to do
_KILL_S: Final = 10.0  # from SIGKILL until a process counts as unkillable


class StartedServer(StrictModel):
    """A server that was started and not stopped."""

    alias: str
    pid: int
    start_s: float  # since boot
    started_at: float  # epoch s
    ready: bool = False  # it has answered once
    url: str
    log: str
    settings: str  # digest of its command line and environment
    simulated: bool = False  # by a process that it shares with others of its pool

    def process(self) -> psutil.Process | None:
        """Return its process, also a zombie; None: it is gone."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            if abs(start_of(process) - self.start_s) < _SAME_START_S:
                return process
        return None

    @property
    def runs(self) -> bool:
        """True if its process has not ended."""
        process = self.process()
        return process is not None and not _has_ended(process)

    def members(self) -> list[psutil.Process]:
        """Return its processes that run, the leader first; they can be left without it."""
        leader = self.process()
        if leader is None and psutil.pid_exists(self.pid):
            return []  # a stranger has the id, which no session of ours can have then
        found = set() if leader is None else {leader}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == self.pid:
                    found.add(process)
        for process in list(found):
            with contextlib.suppress(psutil.Error):
                found.update(process.children(recursive=True))  # those that left the session
        alive = [process for process in found if not _has_ended(process)]
        return sorted(alive, key=lambda process: (process.pid != self.pid, process.pid))


class _State(RootModel[tuple[StartedServer, ...]]):
    """Content of state.json."""


@dataclass(slots=True)
class Stopped:
    """Outcome of stopping one server."""

    alias: str
    pid: int
    processes: int  # before it was stopped
    killed: bool = False  # it did not end by itself
    left: list[int] = field(default_factory=list)  # processes that still run


def start_of(process: psutil.Process) -> float:
    """Return when a process began, in s since boot: changes of the clock do not matter."""
    return round(float(process.create_time() - psutil.boot_time()), 2)


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return True


def state_folder(state: str | Path | None = None) -> Path:
    """Return the folder of all pools' states."""
    if state is None and not os.environ.get(STATE_ENV):
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(base).absolute() / "inframind_gym"
    return Path(state or os.environ[STATE_ENV]).expanduser().absolute()


def known_pools(state: str | Path | None = None) -> list[str]:
    """Return the names of the pools of which servers were started and not stopped."""
    return sorted(file.parent.name for file in state_folder(state).glob("*/state.json"))


class StartedServers:
    """The servers of one pool that were started, in a folder that outlives the process.

    Args:
        pool: name of the pool.
        state: the folder of all pools; None: the default.

    Attributes:
        folder: of this pool.
        servers: by alias; as of the last `read` or `locked`.
    """

    def __init__(self, pool: str, state: str | Path | None = None) -> None:
        self.pool = pool
        self.folder = state_folder(state) / pool
        self.servers: dict[str, StartedServer] = {}
        self._file = self.folder / "state.json"

    def log(self, alias: str) -> Path:
        """Return the file that takes a server's output."""
        return self.folder / f"{alias}.log"

    def read(self) -> dict[str, StartedServer]:
        """Read `servers`.

        Raises:
            InfraMindError: the file is damaged.
        """
        try:
            content = _State.model_validate_json(self._file.read_text(encoding="utf-8")).root
        except FileNotFoundError:
            content = ()
        except (OSError, ValueError) as error:
            raise InfraMindError(
                f"{self._file}: cannot be read: {error}. See with ps which servers run, stop them, "
                "and remove the file."
            ) from None
        self.servers = {server.alias: server for server in content}
        return self.servers

    def write(self, *changed: StartedServer) -> None:
        """Write `servers`, after adding or replacing some."""
        self.servers |= {server.alias: server for server in changed}
        if not self.servers:
            self._file.unlink(missing_ok=True)
            return
        content = _State(tuple(self.servers.values()))
        replace_text(self._file, content.model_dump_json(indent=1) + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Read `servers`, and keep other commands from changing them meanwhile.

        Raises:
            InfraMindError: another command is at it, the folder cannot be written, or this is not
                Linux.
        """
        if not sys.platform.startswith("linux"):
            raise InfraMindError(
                "servers are started and stopped on Linux only; elsewhere start them by hand (or "
                "with docker/compose.*.yaml) and give their `url` in the pool"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{self.folder}: cannot be written: {error.strerror}") from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(handle, 20, 0).decode("ascii", "replace").strip() or "unknown"
                raise InfraMindError(
                    f"another command is starting or stopping pool {self.pool!r} (process "
                    f"{holder}): wait for it, or interrupt it"
                ) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            self.read()
            yield
        finally:
            os.close(handle)

    def end(self, servers: Iterable[StartedServer], grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop servers, and drop those that are gone from `servers`."""
        servers = list(servers)
        ended = [Stopped(each.alias, each.pid, len(each.members())) for each in servers]
        killed = _stop(servers, grace_s)
        for server, each in zip(servers, ended, strict=True):
            each.killed = each.pid in killed
            each.left = [process.pid for process in server.members()]
            if not each.left:
                self.servers.pop(each.alias, None)
        self.write()
        return ended

    def down(self, grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop all servers with all their processes, and nothing else.

        Args:
            grace_s: for a server to end by itself; then it is killed.

        Raises:
            InfraMindError: another command is at work on this pool.
        """
        with self.locked():
            return self.end(self.servers.values(), grace_s)


def _stop(servers: Sequence[StartedServer], grace_s: float) -> set[int]:
    """End servers: SIGTERM to each leader, which ends its members; later SIGKILL to all.

    KeyboardInterrupt meanwhile shortens the grace to 0 and is not raised. Processes of other users,
    or that hang in the kernel, can survive.

    Returns:
        Leaders' ids of the servers of which a process had to be killed.
    """
    over_s = time.monotonic() + grace_s
    alone_s: dict[int, float] = {}  # since when a server is without its leader
    asked: set[psutil.Process] = set()
    killed: set[int] = set()
    left = list(servers)
    while left and time.monotonic() < over_s + _KILL_S:
        try:
            now_s, remaining = time.monotonic(), []
            for server in left:
                if not (alive := server.members()):
                    continue
                remaining.append(server)
                led = alive[0].pid == server.pid
                end_s = over_s if led else alone_s.setdefault(server.pid, now_s) + _ORPHAN_S
                kill = now_s >= min(over_s, end_s)
                for process in alive if kill or not led else alive[:1]:
                    if kill or process not in asked:
                        asked.add(process)
                        with contextlib.suppress(psutil.Error, OSError):
                            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
                            killed |= {server.pid} if kill else set()
            left = remaining
            time.sleep(_POLL_S if left else 0.0)
        except KeyboardInterrupt:
            over_s = min(over_s, time.monotonic())
    return killed


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
    reuses = [0]
    if any(c.status == psutil.CONN_TIME_WAIT and c.laddr.port == port for c in _connections()):
        reuses.append(1)
    for reuse in reuses:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                probe.bind((host, port))
                return True
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
    return False


def port_holder(port: int) -> str:
    """Return the process that listens on a port, in words."""
    for each in _connections():
        if each.laddr.port == port and each.status == psutil.CONN_LISTEN and each.pid is not None:
            with contextlib.suppress(psutil.Error):
                line = " ".join(psutil.Process(each.pid).cmdline())
                return f"process {each.pid}: {line[:100]}"
    return "another program"


def _connections() -> list[Any]:
    return [each for each in psutil.net_connections("tcp") if each.laddr]


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
