"""Places for requests in flight: so many a server, so many in all; the most urgent goes first."""

from __future__ import annotations

import asyncio
import heapq

from inframind_gym.errors import InfraMindError


class ServerDownError(InfraMindError):
    """The server went down while a request waited for a place."""


class Gate:
    """Counts the requests in flight and lets those beyond a limit wait.

    To be used on one loop. Among the requests that wait and whose server has a place, the one with
    the lowest rank goes first; equals in the order of their coming.

    Args:
        servers: M.
        per_server: places of each server.
        total: places of all together.
    """

    def __init__(self, servers: int, per_server: int, total: int) -> None:
        self._free = [per_server] * servers
        self._free_total = total
        self._waiting: list[list[tuple[float, int, asyncio.Future[None]]]] = [
            [] for _ in range(servers)
        ]
        self._came = 0

    async def enter(self, server: int, rank: float) -> None:
        """Wait for a place; whoever gets one must `leave`.

        Raises:
            ServerDownError: `turn_away` was called while this one waited.
        """
        if self._free[server] > 0 and self._free_total > 0:
            self._take(server)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._came += 1
        heapq.heappush(self._waiting[server], (rank, self._came, place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self.leave(server)  # it was given a place and cancelled at the same time
            raise

    def leave(self, server: int) -> None:
        """Give a place back."""
        self._free[server] += 1
        self._free_total += 1
        self._let_in()

    def turn_away(self, server: int, why: str) -> None:
        """Whoever waits for the server is told that it is down."""
        waiting, self._waiting[server] = self._waiting[server], []
        for _, _, place in waiting:
            if not place.done():
                place.set_exception(ServerDownError(why))

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return sum(not place.done() for queue in self._waiting for _, _, place in queue)

    def _take(self, server: int) -> None:
        self._free[server] -= 1
        self._free_total -= 1

    def _let_in(self) -> None:
        while self._free_total > 0:
            best = -1
            for server, queue in enumerate(self._waiting):
                while queue and queue[0][2].done():  # gave up
                    heapq.heappop(queue)
                if queue and self._free[server] > 0:
                    best = server if best < 0 else min(best, server, key=self._first)
            if best < 0:
                return
            _, _, place = heapq.heappop(self._waiting[best])
            self._take(best)
            place.set_result(None)

    def _first(self, server: int) -> tuple[float, int]:
        rank, came, _ = self._waiting[server][0]
        return rank, came
