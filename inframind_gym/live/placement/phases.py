"""What the phases of an instance do to its server, and what is done when that fails.

    LOADING    start the process, connect        fails: nothing is left of it   → ABSENT
    WAKING     POST /wake_up, send to it again   fails: put to sleep again      → SLEPT
                                                 if that fails too: stopped     → ABSENT
    SLEEPING   POST /sleep, after it was drained fails, or hangs: stopped       → ABSENT
    VANISHING  disconnect, end the process                                      → ABSENT

Phases run on threads, one at a time for an instance, and end with an `Outcome`, whatever happens.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.placement.events import AS_MEANT, ASLEEP, GONE
from inframind_gym.live.placement.link import Link
from inframind_gym.live.placement.server import LiveServer
from inframind_gym.live.vllm.settings import ServerAddress
from inframind_gym.simulator.placement.state import LOADING, SLEEPING, VANISHING, WAKING

_log = logging.getLogger(__name__)
_LOOK_S: Final = 0.1
_DEAD_S: Final = 2.0  # for which one that seems to be dead is watched before it is believed


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a phase ended."""

    how: int  # AS_MEANT, ASLEEP or GONE
    took_s: float
    why: str = ""  # it failed


class Instance:
    """One model on one block of GPUs: its server, and the connections to it.

    Args:
        name: for people: "llama-8b on GPU 1".
        server: its server.
        connect: makes the connections to a server that is up.
        wake_s: for it to be seen to be up.
    """

    def __init__(
        self,
        name: str,
        server: LiveServer,
        connect: Callable[[ServerAddress], Link],
        wake_s: float,
    ) -> None:
        self.name = name
        self.server = server
        self.link: Link | None = None
        self._connect = connect
        self._wake_s = wake_s
        self._one_ends = threading.Lock()
        # Of whoever drives it
        self.busy = False  # a phase is under way
        self.drains_since_s: float | None = None
        self.closed_until_s = 0.0  # it failed to come up

    def run(self, phase: int, cancelled: Callable[[], bool]) -> Outcome:
        """Go through a phase; never raises."""
        began_s = time.monotonic()
        try:
            if phase == LOADING:
                self._load(cancelled)
            elif phase == WAKING:
                self._wake()
            elif phase == SLEEPING:
                self._sleep()
            elif phase == VANISHING:
                self._end()
        except InfraMindError as error:
            return self._failed(phase, began_s, str(error))
        except Exception as error:  # a bug must not leave a phase without an end
            _log.exception("%s", self.name)
            return self._failed(phase, began_s, f"{type(error).__name__}: {error}")
        return Outcome(AS_MEANT, time.monotonic() - began_s)

    def seems_gone(self) -> bool:
        """Whether it is dead or does not answer for a while; asked when it was seen to be down."""
        over_s = time.monotonic() + _DEAD_S
        while not (self.link is not None and self.link.is_up):
            if time.monotonic() > over_s:
                return True
            if self.link is not None:
                self.link.look()
            time.sleep(_LOOK_S)
        return False

    def is_dead(self) -> bool:
        """Whether its process has ended, or lets nobody connect."""
        over_s = time.monotonic() + _DEAD_S
        while not self.server.is_alive():
            if time.monotonic() > over_s:
                return True
            time.sleep(_LOOK_S)
        return False

    def _load(self, cancelled: Callable[[], bool]) -> None:
        self.link = self._connect(self.server.start(cancelled))
        self.link.wait_up(self._wake_s)

    def _wake(self) -> None:
        self.server.wake()
        assert self.link is not None
        self.link.release()
        self.link.wait_up(self._wake_s)

    def _sleep(self) -> None:
        if self.link is not None:
            self.link.hold("is put to sleep")
        self.server.sleep()

    def _end(self) -> None:
        with self._one_ends:  # a phase that fails while everything is stopped ends it, too
            link, self.link = self.link, None
            if link is not None:
                link.close()
            self.server.stop()

    def _failed(self, phase: int, began_s: float, why: str) -> Outcome:
        """Roll back: to sleep if it was asleep, else to nothing."""
        took_s = time.monotonic() - began_s
        if phase == WAKING:
            try:
                if self.link is not None:
                    self.link.hold("could not be woken up")
                self.server.sleep()
                return Outcome(ASLEEP, took_s, why)
            except InfraMindError as error:
                why = f"{why}; nor does it go on sleeping: {error}"
        try:
            self._end()
        except InfraMindError as error:
            why = f"{why}; {error}"
        except Exception as error:
            _log.exception("%s", self.name)
            why = f"{why}; {error}"
        return Outcome(GONE, took_s, why)
