"""One model on one block of GPUs: the phases that it goes through.

    LOADING    start the process, connect        fails: nothing is left of it   → ABSENT
    WAKING     POST /wake_up, send to it again   fails: put to sleep again      → SLEPT
                                                 if that fails too: stopped     → ABSENT
    SLEEPING   POST /sleep, after it was drained fails, or hangs: stopped       → ABSENT
    VANISHING  disconnect, end the process                                      → ABSENT

Phases run on threads, one at a time for an instance, and always end with an `Outcome`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatRequest, ChatResult
from inframind_gym.live.placement.events import AS_MEANT, ASLEEP, GONE
from inframind_gym.live.servers import Connections
from inframind_gym.live.settings import ServerAddress
from inframind_gym.simulator.placement.state import LOADING, SLEEPING, VANISHING, WAKING

if TYPE_CHECKING:
    from inframind_gym.live.placement.server import VllmServer

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.1
_DEAD_S: Final = 2.0  # a server that seems dead is watched so long before that is believed
_SEEN_UP_S: Final = 60.0  # for a server that says it is up to be seen to be


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a phase."""

    how: int  # AS_MEANT, ASLEEP or GONE
    took_s: float
    why: str = ""  # it failed


class Instance:
    """One model on one block of GPUs.

    Args:
        name: for people: "llama-8b on GPU 1".
        server: its server.
        connect: makes the connections to a server that is up.

    Attributes:
        link: the connections; None: there is no server. Made when it is up, closed before it is
            stopped; while it sleeps it is held, and nothing is sent whatever the server reports.
        busy: a phase is under way.
        drains_since_s: on the monotonic clock; None: it does not drain.
        closed_until_s: it failed to come up, and is not tried again before.
    """

    def __init__(
        self, name: str, server: VllmServer, connect: Callable[[ServerAddress], Connections]
    ) -> None:
        self.name = name
        self.server = server
        self.link: Connections | None = None
        self.busy = False
        self.drains_since_s: float | None = None
        self.closed_until_s = 0.0
        self._connect = connect
        self._one_ends = threading.Lock()

    def run(self, phase: int, cancelled: Callable[[], bool]) -> Outcome:
        """Go through a phase; never raises."""
        began_s = time.monotonic()
        try:
            if phase == LOADING:
                self.link = self._connect(self.server.start(cancelled))
                self.link.watcher.wait_up(_SEEN_UP_S)
            elif phase == WAKING:
                self.server.wake()
                assert self.link is not None
                self.link.watcher.release(0)
                self.link.watcher.wait_up(_SEEN_UP_S)
            elif phase == SLEEPING:
                self.hold("is put to sleep")
                self.server.sleep()
            elif phase == VANISHING:
                self._end()
        except Exception as error:  # a bug must not leave a phase without an end
            return self._failed(phase, time.monotonic() - began_s, self._reason(error))
        return Outcome(AS_MEANT, time.monotonic() - began_s)

    def send(self, request: ChatRequest, on_result: Callable[[ChatResult], object]) -> None:
        """Send a call to the server, which is up; `on_result` is called on the loop."""
        assert self.link is not None
        client = self.link.client

        async def chat() -> None:
            on_result(await client.chat(request))

        asyncio.run_coroutine_threadsafe(chat(), self.link.loop.loop)

    def hold(self, why: str) -> None:
        """Send nothing more to the server, if there is one."""
        if self.link is not None:
            self.link.watcher.hold(0, why)

    def give_up(self, why: str) -> None:
        """End what is in flight to the server, if there is one: vLLM drops it."""
        if self.link is not None:
            client = self.link.client
            self.link.loop.call(lambda: client.server_down(0, why, give_up=True))

    def seems_gone(self) -> bool:
        """Return whether it is dead or does not answer for a while, after it was seen down."""
        over_s = time.monotonic() + _DEAD_S
        while (link := self.link) is None or not link.watcher.is_up(0):
            if time.monotonic() > over_s:
                return True
            if link is not None:
                link.watcher.suspect(0)
            time.sleep(_POLL_S)
        return False

    def is_dead(self) -> bool:
        """Return whether its process has ended, or refuses connections."""
        over_s = time.monotonic() + _DEAD_S
        while not self.server.is_alive():
            if time.monotonic() > over_s:
                return True
            time.sleep(_POLL_S)
        return False

    def _end(self) -> None:
        with self._one_ends:  # a phase that fails while everything is stopped ends it, too
            link, self.link = self.link, None
            if link is not None:
                link.close()
            self.server.stop()

    def _failed(self, phase: int, took_s: float, why: str) -> Outcome:
        """Roll back: to sleep if it was asleep, else to nothing."""
        if phase == WAKING:
            try:
                self.hold("could not be woken up")
                self.server.sleep()
                return Outcome(ASLEEP, took_s, why)
            except InfraMindError as error:
                why = f"{why}; nor does it go on sleeping: {error}"
        try:
            self._end()
        except Exception as error:
            why = f"{why}; {self._reason(error)}"
        return Outcome(GONE, took_s, why)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, InfraMindError):
            return str(error)
        _log.error("%s", self.name, exc_info=error)
        return f"{type(error).__name__}: {error}"
