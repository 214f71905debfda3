"""The kernel at the pace of the wall clock: requests enter and leave on an asyncio loop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

from numpy.typing import NDArray

from inframind_gym.simulator.server.open_loop import OpenLoop

MOST_REQUESTS: Final = 16_384  # that run and wait on all servers
TOGETHER_S: Final = 0.01  # tokens that come within it are handed on together


@dataclass(slots=True, eq=False)
class Flight:
    """A request on a server. Times are the wall clock's, in s since the engine's start."""

    server: int
    prompt_tokens: int
    output_tokens: int
    priority: float = 0.0
    streams: bool = False  # wants its tokens as they come
    entered_s: float = 0.0
    request: int = -1  # of the kernel; -1: the server sleeps
    tokens: int = 0  # that have come
    over: bool = False
    aborted: bool = False  # by the server
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0  # or when it was aborted
    evictions: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)  # tokens, or the end


class Engine:
    """The servers of a pool. To be used on one loop.

    Between two calls nothing is computed: the kernel catches up with the clock when a request comes
    or goes, and when something is due. It is therefore never late in its own time; what is told to
    clients is late by what the loop is.

    Args:
        card: (M,) server cards; a copy is made.
        speed: virtual seconds a second.
    """

    def __init__(self, card: NDArray[Any], speed: float) -> None:
        self.card = card.copy()
        self.speed = speed
        self._kernel = OpenLoop(self.card, MOST_REQUESTS)
        self._began_s = time.monotonic()
        self._flights: dict[int, Flight] = {}  # by request of the kernel
        self._streams: set[Flight] = set()
        self._asleep: dict[int, list[Flight]] = {}  # by server: those that came since
        self._handed_s = 0.0
        self._due: asyncio.TimerHandle | None = None

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    def load(self, server: int) -> tuple[int, int, float]:
        """Return requests that run and wait, and the share of the KV cache that they hold."""
        self._catch_up()
        return self._kernel.load(server)

    def evictions(self, server: int) -> int:
        """Return how often requests that are on a server were evicted."""
        return self._kernel.evictions(
            [r for r, flight in self._flights.items() if flight.server == server]
        )

    def enter(self, flight: Flight) -> bool:
        """Put a request into its server's queue; False: there are too many."""
        if len(self._flights) + sum(map(len, self._asleep.values())) >= MOST_REQUESTS:
            return False
        flight.entered_s = self.now_s
        if flight.server in self._asleep:
            self._asleep[flight.server].append(flight)
        else:
            self._submit(flight)
        return True

    def leave(self, flight: Flight) -> None:
        """Take a request out: its client has gone. Nothing happens to one that is over."""
        if flight.over:
            return
        self._catch_up()
        if flight.over:
            return
        if flight.request < 0:
            self._asleep[flight.server].remove(flight)
        else:
            self._kernel.look()
            flight.tokens = int(self._kernel.tokens[flight.request])
            self._kernel.abort(flight.request)
            del self._flights[flight.request]
            self._soon()
        self._over(flight, aborted=True)

    def abort(self, server: int) -> None:
        """End all requests of a server."""
        on = [flight for flight in self._flights.values() if flight.server == server]
        for flight in on + self._asleep.get(server, []):
            self.leave(flight)

    def sleep(self, server: int) -> None:
        """Put a server to sleep: requests that come wait until it is woken up."""
        self._asleep.setdefault(server, [])

    def wake(self, server: int) -> None:
        """Wake a server up."""
        for flight in self._asleep.pop(server, []):
            self._submit(flight)

    def close(self) -> None:
        """Do nothing more."""
        if self._due is not None:
            self._due.cancel()

    def _submit(self, flight: Flight) -> None:
        self._catch_up()
        flight.request = self._kernel.submit(
            flight.server, flight.priority, flight.prompt_tokens, flight.output_tokens
        )
        self._flights[flight.request] = flight
        if flight.streams:
            self._streams.add(flight)
        self._soon()

    def _soon(self) -> None:
        """Plan anew once all that comes at this instant is here."""
        if self._due is not None:
            self._due.cancel()
        self._due = asyncio.get_running_loop().call_later(0.0, self._hand_on)

    def _catch_up(self) -> None:
        """Let virtual time run to now."""
        now_s = self.now_s * self.speed
        while len(ended := self._kernel.advance(now_s)):
            for record in ended:
                flight = self._flights.pop(int(record["request"]))
                flight.admitted_s = float(record["admitted_s"]) / self.speed
                flight.first_token_s = float(record["first_token_s"]) / self.speed
                flight.last_token_s = self._kernel.now_s / self.speed
                flight.evictions = int(record["evictions"])
                flight.tokens = flight.output_tokens
                self._over(flight)

    def _hand_on(self) -> None:
        """Hand on what has come, and return when there is more."""
        self._catch_up()
        event_s, token_s = self._kernel.look()
        if self._streams:
            tokens = self._kernel.tokens
            for flight in self._streams:
                if (count := int(tokens[flight.request])) > flight.tokens:
                    flight.tokens = count
                    flight.news.set()
            self._handed_s = self.now_s
            event_s = min(event_s, max(token_s, self.speed * (self._handed_s + TOGETHER_S)))
        self._due = None
        if event_s < float("inf"):
            delay_s = event_s / self.speed - self.now_s
            self._due = asyncio.get_running_loop().call_later(max(delay_s, 0.0), self._hand_on)

    def _over(self, flight: Flight, *, aborted: bool = False) -> None:
        flight.over, flight.aborted = True, aborted
        if aborted:
            flight.last_token_s = self.now_s
        self._streams.discard(flight)
        flight.news.set()
