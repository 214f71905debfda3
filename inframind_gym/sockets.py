"""Addresses that servers of this package listen on."""

from __future__ import annotations

import socket

from inframind_gym.errors import ConfigError


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Args:
        host: name or number of this machine; a name stands for its IPv4 address.
        port: 0 takes one that is free.

    Raises:
        ConfigError: The port is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0].lower()
        raise ConfigError(
            f"{host}:{port}: {reason}. Stop what listens there, or take another address by --host "
            "and --port."
        ) from None
