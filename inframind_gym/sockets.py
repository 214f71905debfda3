"""Addresses that servers of this package listen on."""

from __future__ import annotations

import socket

from inframind_gym.errors import ConfigError


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, for a server to listen on.

    Args:
        host: name or number of this machine; of a name that has both, the IPv4 address.
        port: 0 takes one that is free.

    Raises:
        ConfigError: The port is taken, or the address is none of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"{host}:{port}: {(error.strerror or str(error)).lower()}. Stop what listens there, "
            "or take another address by --host and --port."
        ) from None
    return made
