"""Breakers: servers that fail request after request while they report that they are well."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from inframind_gym.live.gateway.config import BreakerConfig


@dataclass(slots=True)
class _State:
    failures: int = 0  # in a row
    opened: int = 0  # times since it last answered
    until_s: float = 0.0  # closed to all before, to all but one request after
    trying: bool = False


class Breakers:
    """One for each of M servers.

    After `failures` in a row a server is left alone for `open_s`. Then one request is let through:
    if it is answered the server is used again, else the time doubles.

    Args:
        servers: M.
        config: limits.
        clock: seconds.
    """

    def __init__(
        self, servers: int, config: BreakerConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._clock = config, clock
        self._states = [_State() for _ in range(servers)]

    def closed(self) -> int:
        """Return the bit mask of the servers that may be tried now."""
        now_s = self._clock()
        mask = 0
        for m, state in enumerate(self._states):
            if not state.opened or (now_s >= state.until_s and not state.trying):
                mask |= 1 << m
        return mask

    def begin(self, server: int) -> None:
        """A request is sent."""
        state = self._states[server]
        state.trying = state.opened > 0

    def end(self, server: int, ok: bool | None) -> None:
        """A request was answered, failed, or (None) says nothing of the server."""
        state = self._states[server]
        was_trying, state.trying = state.trying, False
        if ok:
            state.failures = state.opened = 0
        elif ok is not None:
            state.failures += 1
            if was_trying or (not state.opened and state.failures >= self._config.failures):
                pause_s = self._config.open_s * 2.0 ** min(state.opened, 30)
                state.until_s = self._clock() + min(pause_s, self._config.open_most_s)
                state.opened += 1
