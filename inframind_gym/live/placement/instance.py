"""One model on one block of GPUs: the connections to its server, and the phases it goes through.

    LOADING    start the process, connect        fails: nothing is left of it   → ABSENT
    WAKING     POST /wake_up, send to it again   fails: put to sleep again      → SLEPT
                                                 if that fails too: stopped     → ABSENT
    SLEEPING   POST /sleep, after it was drained fails, or hangs: stopped       → ABSENT
    VANISHING  disconnect, end the process                                      → ABSENT

Phases run on threads, one at a time for an instance, and always end with an `Outcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatRequest, ChatResult, Client
from inframind_gym.live.config import LiveLimits
from inframind_gym.live.loop import LoopThread
from inframind_gym.live.placement.events import AS_MEANT, ASLEEP, GONE
from inframind_gym.live.settings import LiveSettings, ServerAddress
from inframind_gym.live.watcher import MetricsWatcher
from inframind_gym.simulator.placement.state import LOADING, SLEEPING, VANISHING, WAKING

if TYPE_CHECKING:
    from inframind_gym.live.placement.server import LiveServer

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.1
_DEAD_S: Final = 2.0  # a server that seems dead is watched so long before that is believed
_SEEN_UP_S: Final = 60.0  # for a server that says it is up to be seen to be


class Link:
    """Watcher and client of one server.

    Made when the server is up, closed before it is stopped. While it sleeps the link is held, and
    nothing is sent whatever the server reports.

    Args:
        loop: runs both.
        address: of the server.
        limits: intervals of the checks.
        settings: of the client, without its retries: the cluster sends calls again.
        poll_s: interval at which metrics are read.
        on_change: called on the loop with whether the server is up, when that changes.
    """

    def __init__(
        self,
        loop: LoopThread,
        address: ServerAddress,
        limits: LiveLimits,
        settings: LiveSettings,
        *,
        poll_s: float,
        on_change: Callable[[bool], None],
    ) -> None:
        self._loop = loop
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = Client(
            (address,),
            settings.model_copy(update={"retries": 0}),
            is_up=lambda _: self.is_up,
            suspect=lambda _: self._watcher.suspect(0),
        )
        loop.run(self._client.open())
        self._watcher = MetricsWatcher(
            (address,),
            poll_s=poll_s,
            health_s=limits.health_s,
            answer_s=limits.answer_s,
            misses=limits.misses,
            on_change=lambda _, up, *__: on_change(up),
            loop=loop,
        )

    @property
    def is_up(self) -> bool:
        """True if it can be sent to."""
        return self._watcher.is_up(0)

    @property
    def is_asleep(self) -> bool:
        """True if it was asleep at the last check."""
        return self._watcher.status()[0].asleep

    def wait_up(self) -> None:
        """Wait until it can be sent to.

        Raises:
            InfraMindError: it cannot, in time.
        """
        self._watcher.wait_up(_SEEN_UP_S)

    def hold(self, why: str) -> None:
        """Send nothing more. What is in flight goes on."""
        self._watcher.hold(0, why)

    def release(self) -> None:
        """Send again, once a check finds it up; it is checked now."""
        self._watcher.release(0)

    def check(self) -> None:
        """Check soon whether it is up."""
        self._watcher.suspect(0)

    def send(self, request: ChatRequest, on_result: Callable[[ChatResult], None]) -> None:
        """Send a call; `on_result` is called on the loop, or never, once the link is closed."""
        self._loop.call(self._start, request, on_result)

    def give_up(self, why: str) -> None:
        """End what is in flight: vLLM drops a call whose client is gone."""
        self._loop.call(lambda: self._client.server_down(0, why, give_up=True))

    def close(self) -> None:
        """Stop watching, end what is in flight. May be called twice, from any thread."""
        if self._closed:
            return
        self._closed = True
        self._watcher.close()
        with contextlib.suppress(RuntimeError):
            self._loop.run(self._close())

    def _start(self, request: ChatRequest, on_result: Callable[[ChatResult], None]) -> None:
        async def chat() -> None:
            on_result(await self._client.chat(request))

        task = asyncio.ensure_future(chat())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()


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
        link: the connections; None: there is no server.
        busy: a phase is under way.
        drains_since_s: on the monotonic clock; None: it does not drain.
        closed_until_s: it failed to come up, and is not tried again before.
    """

    def __init__(
        self, name: str, server: LiveServer, connect: Callable[[ServerAddress], Link]
    ) -> None:
        self.name = name
        self.server = server
        self.link: Link | None = None
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
                self.link.wait_up()
            elif phase == WAKING:
                self.server.wake()
                assert self.link is not None
                self.link.release()
                self.link.wait_up()
            elif phase == SLEEPING:
                self.hold("is put to sleep")
                self.server.sleep()
            elif phase == VANISHING:
                self._end()
        except Exception as error:  # a bug must not leave a phase without an end
            return self._failed(phase, time.monotonic() - began_s, self._reason(error))
        return Outcome(AS_MEANT, time.monotonic() - began_s)

    def hold(self, why: str) -> None:
        """Send nothing more to the server, if there is one."""
        if self.link is not None:
            self.link.hold(why)

    def give_up(self, why: str) -> None:
        """End what is in flight to the server, if there is one."""
        if self.link is not None:
            self.link.give_up(why)

    def seems_gone(self) -> bool:
        """Return whether it is dead or does not answer for a while, after it was seen down."""
        over_s = time.monotonic() + _DEAD_S
        while not (self.link is not None and self.link.is_up):
            if time.monotonic() > over_s:
                return True
            if self.link is not None:
                self.link.check()
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
