"""The servers of a pool that were started, and how they are stopped."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.launch.processes import Family, boot_id, members, stop
from inframind_gym.live.launch.state import PoolState, StartedServer

GRACE_S: Final = 20.0  # from SIGTERM to SIGKILL


@dataclass(slots=True)
class Stopped:
    """One server that was to be stopped."""

    alias: str
    pid: int
    processes: int  # that it consisted of
    killed: bool = False  # it did not end by itself
    left: list[int] = field(default_factory=list)  # processes that still run


class StartedServers:
    """What was started of one pool, by this process or an earlier one.

    Attributes:
        state: where that is kept.
        servers: by alias; as of the last time that it was `locked`.
        children: those that this process has started itself.
    """

    def __init__(self, state: PoolState) -> None:
        self.state = state
        self.servers: dict[str, StartedServer] = {}
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Read what there is, and keep other commands away meanwhile (`PoolState.locked`)."""
        with self.state.locked():
            self.servers = self.state.read()
            yield

    def down(self, grace_s: float = GRACE_S) -> list[Stopped]:
        """Stop everything: whole families of processes, and nothing else.

        Args:
            grace_s: for a server to end by itself; then it is killed.

        Returns:
            What was stopped; `left` names processes that could not be.

        Raises:
            InfraMindError: another command is at work on this pool.
        """
        require_linux()
        with self.locked():
            return self.end(list(self.servers.values()), grace_s)

    def end(self, servers: Sequence[StartedServer], grace_s: float) -> list[Stopped]:
        """Stop servers, and forget those that are gone."""
        servers = [self.see(server) for server in servers]
        families = [server.family() for server in servers]
        ended = {
            family.leader: Stopped(server.alias, server.pid, len(members(family)))
            for server, family in zip(servers, families, strict=True)
        }

        def note(family: Family, killed: bool) -> None:
            ended[family.leader].killed = killed

        stop(families, grace_s, note)
        for family in families:
            each = ended[family.leader]
            each.left = [process.pid for process in members(family)]
            if each.alias in self.children:
                self.children[each.alias].poll()  # takes its status from the kernel
            if not each.left:
                self.servers.pop(each.alias, None)
        self.state.write(self.servers)
        return list(ended.values())

    def see(self, server: StartedServer) -> StartedServer:
        """Take note of a server's processes: by those it is known when its leader has ended."""
        seen = tuple((process.pid, process.started) for process in members(server.family()))
        if set(seen) - set(server.members):
            server = server.model_copy(update={"members": seen})
            self.keep(server)
        return server

    def keep(self, server: StartedServer) -> None:
        """Keep a server, or what is new of it."""
        self.servers[server.alias] = server
        self.state.write(self.servers)


def require_linux() -> None:
    """Check that processes can be told apart here.

    Raises:
        InfraMindError: they can't.
    """
    if not boot_id():
        raise InfraMindError(
            "servers are started and stopped on Linux only; elsewhere start them by hand (or with "
            "docker/compose.*.yaml) and give their `url` in the pool"
        )
