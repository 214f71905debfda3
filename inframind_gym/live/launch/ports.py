"""Whether a port of this machine is free, and who has it if not."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Final

from inframind_gym.live.launch.processes import command_line

_LISTEN: Final = "0A"
_TIME_WAIT: Final = "06"


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server can listen on a port.

    A vLLM server that is starting has bound its port and doesn't listen yet, and another vLLM can
    bind the same one beside it (SO_REUSEPORT): both would come up and share the requests. What is
    left of connections that ended a moment ago keeps no server away.
    """
    if _can_bind(port, host, reuse=False):
        return True
    return _can_bind(port, host, reuse=True) and any(
        state == _TIME_WAIT for state, _ in _sockets(port)
    )


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """So many different ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def who_listens(port: int) -> str:
    """The process that listens on a port, in words; "" where it is not to be seen."""
    wanted = {f"socket:[{inode}]" for state, inode in _sockets(port) if state == _LISTEN}
    for folder in Path("/proc").iterdir() if wanted else ():
        if not folder.name.isdigit():
            continue
        try:
            for name in os.listdir(folder / "fd"):
                if os.readlink(folder / "fd" / name) in wanted:
                    return f"process {folder.name}: {command_line(int(folder.name))[:100]}"
        except OSError:
            continue  # another user's, or it has ended
    return ""


def _can_bind(port: int, host: str, *, reuse: bool) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        if reuse:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _sockets(port: int) -> list[tuple[str, str]]:
    """State and inode of the TCP sockets that have this local port."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                found.append((fields[3], fields[9]))
    return found
