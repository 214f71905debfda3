"""Time of a query: as it passes, or as a simulation counts it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from inframind_gym.teams.coordination.reports import Report
from inframind_gym.teams.coordination.state import CoordinationState


class Clock(Protocol):
    """Time of a query."""

    def now_ms(self, state: CoordinationState) -> int:
        """Return the milliseconds since the query came; a virtual clock has those of the state."""
        ...

    def begin(self, action: int, state: CoordinationState) -> None:
        """Note that an action begins; a simulated provider draws it now."""
        ...

    def action_ms(self, action: int, reports: Sequence[Report], state: CoordinationState) -> int:
        """Return the milliseconds that an action took."""
        ...

    async def wait(self, seconds: float) -> None:
        """Wait before a retry."""
        ...


class WallClock:
    """Time as it passes; a person's time at a pause does not count."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.paused_s = 0.0

    def now_ms(self, state: CoordinationState) -> int:
        """See `Clock`."""
        return round(1000.0 * (time.monotonic() - self._began_s - self.paused_s))

    def begin(self, action: int, state: CoordinationState) -> None:
        """See `Clock`."""

    def action_ms(self, action: int, reports: Sequence[Report], state: CoordinationState) -> int:
        """See `Clock`: what has passed beyond what the state has counted."""
        return max(self.now_ms(state) - int(state.elapsed_ms[0]) - int(state.setup_ms[0]), 0)

    async def wait(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(seconds)
