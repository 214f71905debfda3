"""Servers of a pool that were started and not stopped, also by an earlier process.

    STATE/POOL/state.json   the servers: process, port, log
    STATE/POOL/ALIAS.log    output of a server; ALIAS.log.old: of the one before it

STATE is `--state`, $INFRAMIND_STATE, $XDG_STATE_HOME/inframind_gym or ~/.local/state/inframind_gym.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.files import replace_text
from inframind_gym.live.processes import Family, Identity, boot_id, is_running, stop

STATE_ENV: Final = "INFRAMIND_STATE"
GRACE_S: Final = 20.0  # from SIGTERM to SIGKILL


class StartedServer(StrictModel):
    """A server that was started."""

    alias: str
    process: Identity
    started_at: float  # epoch s
    ready: bool = False  # it has answered once
    url: str
    log: str
    settings: str  # digest of its command line and environment
    simulated: bool = False  # by a process that it shares with others of its pool
    members: tuple[Identity, ...] = ()  # of its session, as seen so far

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self.process[0]

    @property
    def runs(self) -> bool:
        """True if its process has not ended."""
        return is_running(self.process)

    def family(self) -> Family:
        """Return its processes."""
        return Family(self.process, set(self.members))


class _Content(StrictModel):
    pool: str
    boot: str
    servers: tuple[StartedServer, ...]


@dataclass(slots=True)
class Stopped:
    """Outcome of stopping one server."""

    alias: str
    pid: int
    processes: int  # before it was stopped
    killed: bool = False  # it did not end by itself
    left: list[int] = field(default_factory=list)  # processes that still run


def state_folder(state: str | Path | None = None) -> Path:
    """Return the folder of all pools' states."""
    if state is None and not os.environ.get(STATE_ENV):
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(base).absolute() / "inframind_gym"
    return Path(state or os.environ[STATE_ENV]).expanduser().absolute()


def known_pools(state: str | Path | None = None) -> list[str]:
    """Return the names of the pools of which servers were started and not stopped."""
    return sorted(file.parent.name for file in state_folder(state).glob("*/state.json"))


def require_linux() -> None:
    """Check that processes can be identified here.

    Raises:
        InfraMindError: this is not Linux.
    """
    if not boot_id():
        raise InfraMindError(
            "servers are started and stopped on Linux only; elsewhere start them by hand (or with "
            "docker/compose.*.yaml) and give their `url` in the pool"
        )


class StartedServers:
    """The servers of one pool that were started, in a folder that outlives the process.

    Args:
        pool: name of the pool.
        state: the folder of all pools; None: the default.

    Attributes:
        folder: of this pool.
        servers: by alias; as of the last `read` or `locked`.
        children: processes that this process has started itself.
    """

    def __init__(self, pool: str, state: str | Path | None = None) -> None:
        self.pool = pool
        self.folder = state_folder(state) / pool
        self.servers: dict[str, StartedServer] = {}
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self._file = self.folder / "state.json"

    def log(self, alias: str) -> Path:
        """Return the file that takes a server's output."""
        return self.folder / f"{alias}.log"

    def read(self) -> dict[str, StartedServer]:
        """Read `servers`; none after a reboot: no process has survived it.

        Raises:
            InfraMindError: the file is damaged.
        """
        self.servers = {}
        try:
            content = _Content.model_validate_json(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return self.servers
        except (OSError, ValueError) as error:
            raise InfraMindError(
                f"{self._file}: cannot be read: {error}. See with ps which servers run, stop them, "
                "and remove the file."
            ) from None
        if content.boot == boot_id():
            self.servers = {server.alias: server for server in content.servers}
        return self.servers

    def write(self, *changed: StartedServer) -> None:
        """Write `servers`, after adding or replacing some."""
        self.servers |= {server.alias: server for server in changed}
        if not self.servers:
            self._file.unlink(missing_ok=True)
            return
        servers = tuple(self.servers.values())
        content = _Content(pool=self.pool, boot=boot_id(), servers=servers)
        replace_text(self._file, content.model_dump_json(indent=1) + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Read `servers`, and keep other commands from changing them meanwhile.

        Raises:
            InfraMindError: another command is at it, or the folder cannot be written.
        """
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

    def note_members(self, server: StartedServer) -> StartedServer:
        """Record a server's processes: they identify it once its leader has ended."""
        family = server.family()
        family.running()
        if family.known - set(server.members):
            server = server.model_copy(update={"members": tuple(sorted(family.known))})
            self.write(server)
        return server

    def end(self, servers: Iterable[StartedServer], grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop servers, and drop those that are gone from `servers`."""
        families = {server.alias: self.note_members(server).family() for server in servers}
        ended = [
            Stopped(alias, family.leader[0], len(family.running()))
            for alias, family in families.items()
        ]
        killed = stop(list(families.values()), grace_s)
        for each in ended:
            each.killed = each.pid in killed
            each.left = [process.pid for process in families[each.alias].running()]
            if each.alias in self.children:
                self.children[each.alias].poll()  # takes its status from the kernel
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
        require_linux()
        with self.locked():
            return self.end(list(self.servers.values()), grace_s)
