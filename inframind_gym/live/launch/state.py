"""What `inframind pool up` started: a folder for each pool, which outlives the command.

    STATE/POOL/state.json   the servers: process, port, log
    STATE/POOL/ALIAS.log    what a server says; ALIAS.log.old: what the one before it said

STATE is `--state`, $INFRAMIND_STATE, $XDG_STATE_HOME/inframind_gym or ~/.local/state/inframind_gym.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from inframind_gym.configs import StrictModel
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.files import replace_text
from inframind_gym.live.launch.processes import Family, Process, boot_id

STATE_ENV: Final = "INFRAMIND_STATE"
_PLAIN: Final = re.compile(r"[^\w.-]")


class StartedServer(StrictModel):
    """A server that was started."""

    alias: str
    pid: int
    started: int  # of the process, in clock ticks since boot
    started_at: float  # epoch s
    ready: bool = False  # it has answered once
    url: str
    log: str
    settings: str  # digest of its command line and environment
    members: tuple[tuple[int, int], ...] = ()  # of its session, as seen: pid and start

    def family(self) -> Family:
        """Its processes."""
        known = tuple(Process(*member) for member in self.members)
        return Family(Process(self.pid, self.started), known)


class _Content(StrictModel):
    pool: str
    boot: str
    servers: tuple[StartedServer, ...]


def state_folder(state: str | Path | None = None) -> Path:
    """Where state is kept."""
    if state is None and not os.environ.get(STATE_ENV):
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(base).absolute() / "inframind_gym"
    return Path(state or os.environ[STATE_ENV]).expanduser().absolute()


class PoolState:
    """What is known of one pool's servers.

    Args:
        pool: its name.
        state: the folder of all pools; None: the default.
    """

    def __init__(self, pool: str, state: str | Path | None = None) -> None:
        self.pool = pool
        self.folder = state_folder(state) / _PLAIN.sub("_", pool)
        self._file = self.folder / "state.json"

    def read(self) -> dict[str, StartedServer]:
        """The servers that were started and not stopped, by alias.

        Raises:
            InfraMindError: the file is damaged.
        """
        try:
            content = _Content.model_validate_json(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError, ValueError) as error:
            raise InfraMindError(
                f"{self._file}: cannot be read: {error}. See with ps which servers run, stop them, "
                "and remove the file."
            ) from None
        if content.boot != boot_id():
            return {}  # the machine was started anew: nothing of it runs
        return {server.alias: server for server in content.servers}

    def write(self, servers: dict[str, StartedServer]) -> None:
        """Keep this instead."""
        if not servers:
            self._file.unlink(missing_ok=True)
            return
        content = _Content(pool=self.pool, boot=boot_id(), servers=tuple(servers.values()))
        replace_text(self._file, content.model_dump_json(indent=1) + "\n")

    def log(self, alias: str) -> Path:
        """Where a server's output goes."""
        return self.folder / f"{_PLAIN.sub('_', alias)}.log"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from starting or stopping servers of this pool meanwhile.

        Raises:
            InfraMindError: another one is at it, or the folder cannot be written.
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
            yield
        finally:
            os.close(handle)


def known_pools(state: str | Path | None = None) -> list[str]:
    """Names of the pools of which something was started and not stopped."""
    names = []
    for file in sorted(state_folder(state).glob("*/state.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            names.append(str(json.loads(file.read_text(encoding="utf-8"))["pool"]))
    return names
