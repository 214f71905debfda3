"""Watcher of servers: reads their metrics in the background, and tracks which are up.

    settings = LiveSettings()
    with MetricsWatcher(addresses(pool), settings, poll_s=pool.metrics_poll_s) as watcher:
        watcher.wait_checked()
        for server in watcher.status():
            print(server.alias, server.up, server.reason, server.reading)

`probe.py` asks one server. No answer of a server ends the watching.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.loop import LoopThread, cancel_all
from inframind_gym.live.metrics import MeanLatency, Reading
from inframind_gym.live.probe import DownError, Probe, fetch
from inframind_gym.live.settings import LiveSettings, ServerAddress, open_session, require_live
from inframind_gym.simulator.workflow.backend import Telemetry

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)
_UNCHECKED: Final = "not checked yet"
_CHECKED_S: Final = 10.0  # for all servers to be checked once

# Arguments: a server that goes up or down, whether it is up, whether it sleeps, why.
OnChange = Callable[[int, bool, bool, str], None]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """State of one server."""

    alias: str
    url: str
    up: bool
    asleep: bool
    listens: bool  # something takes connections at its address
    reason: str  # why it is down, in words; empty where it is up
    reading: Reading | None  # the last one


@dataclass(frozen=True, slots=True)
class Beginning:
    """Start of an episode: telemetry is counted from there."""

    at_s: float  # on the monotonic clock
    polls: int


class _Server:
    """One server, as it was seen."""

    def __init__(self, address: ServerAddress, probe: Probe) -> None:
        self.address = address
        self.probe = probe
        self.up = False
        self.changes = 0  # how often it went up or down: see `_check`
        self.asleep = False
        self.listens = True
        self.reason = _UNCHECKED
        self.held: str | None = None  # why nothing is to be sent to it, whatever it reports
        self.misses = {"check": 0, "poll": 0}  # in a row
        self.reading: Reading | None = None
        self.latency = MeanLatency()
        self.check_now = asyncio.Event()  # not when it is due

    @property
    def usable(self) -> bool:
        return self.up and self.held is None

    def take(self, reading: Reading) -> None:
        self.latency.update(reading)
        self.reading = reading

    def status(self) -> ServerStatus:
        return ServerStatus(
            alias=self.address.alias,
            url=self.address.url,
            up=self.usable,
            asleep=self.asleep,
            listens=self.listens,
            reason=self.held or self.reason,
            reading=self.reading,
        )


class MetricsWatcher:
    """Watches M servers from a thread.

    Args:
        servers: addresses and models.
        settings: `health_s`, `answer_s` and `misses` are read. A server that refuses the connection
            or answers nonsense is down at once.
        poll_s: interval at which the metrics are read.
        on_change: called on the watcher's thread.
        loop: a thread that runs already; without it the watcher has its own.

    Attributes:
        up: bit mask of the servers that can be sent to.
        polls: how often the metrics were read.
    """

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        settings: LiveSettings,
        *,
        poll_s: float,
        on_change: OnChange = lambda *_: None,
        loop: LoopThread | None = None,
    ) -> None:
        self.up = self.polls = 0
        self._poll_s, self._settings = poll_s, settings
        self._on_change = on_change
        self._checked = threading.Event()
        self._closed = False
        self._session: aiohttp.ClientSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._servers = tuple(
            _Server(address, Probe(address, partial(self._get, address.url))) for address in servers
        )
        self._again = asyncio.Event()  # the time of the next poll has changed
        self._polling = asyncio.Lock()
        self._next_s = time.monotonic() + poll_s
        self._own_loop = loop is None
        self._loop = loop or LoopThread("vllm-watcher")
        try:
            require_live()
            self._loop.run(self._open())
        except BaseException:
            self.close()
            raise

    # For any thread

    def is_up(self, server: int) -> bool:
        """Return whether a server can be sent to."""
        return bool(self.up >> server & 1)

    def wait_checked(self) -> None:
        """Wait until every server was checked once."""
        self._checked.wait(_CHECKED_S)

    def wait_up(self, timeout_s: float) -> None:
        """Wait until all servers are up.

        Raises:
            InfraMindError: they are not, in time; the message says which, and why.
        """
        over_s = time.monotonic() + timeout_s
        while self.up != (1 << len(self._servers)) - 1:
            if time.monotonic() >= over_s:
                down = (server for server in self.status() if not server.up)
                lines = "".join(f"\n  {each.alias} ({each.url}): {each.reason}" for each in down)
                raise InfraMindError(f"not up in {timeout_s:g} s:{lines}")
            time.sleep(0.05)

    def status(self) -> list[ServerStatus]:
        """Return the state of each server."""
        return [server.status() for server in self._servers]

    def begin(self) -> Beginning:
        """Check all servers now, and let the polls count from here.

        The next poll is due `poll_s` from now.
        """
        return self._loop.run(self._begin())

    def telemetry(self, beginning: Beginning) -> Telemetry:
        """Return the metrics of the last poll since the beginning; does not block."""
        count = len(self._servers)
        polls = self.polls - beginning.polls
        depth, e2e = [0.0] * count, [math.nan] * count
        kv, taken = [0.0] * count, [0.0] * count
        for m, server in enumerate(self._servers if polls > 0 else ()):
            reading = server.reading
            if reading is None or reading.taken_s < beginning.at_s:
                continue
            depth[m] = reading.running_req + reading.waiting_req
            kv[m] = reading.kv_frac
            taken[m] = reading.taken_s - beginning.at_s
            if server.latency.taken_s > beginning.at_s:
                e2e[m] = server.latency.mean_s
        return Telemetry(polls, taken, depth, e2e, kv)

    def suspect(self, server: int) -> None:
        """Check a server now: a request could not reach it."""
        self._loop.call(self._servers[server].check_now.set)

    def hold(self, server: int, reason: str) -> None:
        """Send nothing to a server, whatever it reports: it will be put to sleep, or stopped.

        Returns when it is so. Requests in flight are not touched.
        """
        self._loop.run(self._hold(server, reason))

    def release(self, server: int) -> None:
        """Undo `hold`; the server is used again once a check finds it up.

        Returns when it was checked.
        """
        self._loop.run(self._hold(server, None))

    def close(self) -> None:
        """Stop watching. May be called twice."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(RuntimeError):
            self._loop.run(self._close())
        if self._own_loop:
            self._loop.stop()

    def __enter__(self) -> MetricsWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On the loop

    async def _open(self) -> None:
        self._session = open_session(self._settings.answer_s)
        forever = [*map(self._watch, range(len(self._servers))), self._poll_forever()]
        self._tasks = [asyncio.ensure_future(coroutine) for coroutine in forever]

    async def _close(self) -> None:
        await cancel_all(self._tasks)
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)

    async def _begin(self) -> Beginning:
        await asyncio.gather(*(self._check(m) for m in range(len(self._servers))))
        await self._poll()  # what finished until here belongs to the time before
        beginning = Beginning(time.monotonic(), self.polls)
        self._next_s = beginning.at_s + self._poll_s
        self._again.set()
        return beginning

    async def _hold(self, m: int, reason: str | None) -> None:
        self._servers[m].held = reason
        self._publish()
        if reason is None:
            await self._check(m)
        else:
            self._notify(m, False, False, reason)

    async def _watch(self, m: int) -> None:
        server = self._servers[m]
        while True:
            await self._check(m)
            server.check_now.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(server.check_now.wait(), self._settings.health_s)

    async def _poll_forever(self) -> None:
        while True:
            left_s = self._next_s - time.monotonic()
            if left_s > 0:
                self._again.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._again.wait(), left_s)
                continue
            self._next_s += self._poll_s
            await self._poll()

    async def _poll(self) -> None:
        """Read the metrics of the servers that are up, and publish them all at once."""
        async with self._polling:
            up = [(server, server.changes) for server in self._servers if server.up]
            readings = await asyncio.gather(
                *(self._read(m) for m, server in enumerate(self._servers) if server.up)
            )
            for (server, changes), reading in zip(up, readings, strict=True):
                if reading is not None and server.changes == changes:
                    server.take(reading)
            self.polls += 1

    async def _read(self, m: int) -> Reading | None:
        """Read the metrics of a server; one that went down meanwhile counts as in `_check`."""
        server = self._servers[m]
        changes = server.changes
        try:
            reading = await server.probe.metrics()
        except Exception as error:
            if server.changes == changes:
                self._failed(m, error, "poll")
            return None
        if server.changes == changes:
            server.misses["poll"] = 0
        return reading

    async def _check(self, m: int) -> None:
        """Find out whether a server is up.

        A check or poll counts for nothing where the server has gone up or down since it began:
        that is newer, and the next check goes by it.
        """
        server = self._servers[m]
        changes = server.changes
        reading: Reading | None = None
        failure: Exception | None = None
        try:
            if server.up:
                await server.probe.check()
            else:
                reading = await server.probe.meet()
        except Exception as error:
            failure = error
        if server.changes != changes:
            server.probe.reset()  # what it has just learnt may be of the server before
        elif failure is not None:
            self._failed(m, failure, "check")
        else:
            server.misses["check"] = 0
            if reading is not None:
                server.take(reading)
            self._change(m, True, False, "")

    async def _get(self, url: str, path: str) -> tuple[int, str]:
        assert self._session is not None
        return await fetch(self._session, url, path)

    def _failed(self, m: int, error: Exception, kind: str) -> None:
        """Count a check or a poll that has failed, for whatever reason; the next will be made."""
        server = self._servers[m]
        if not isinstance(error, DownError):
            reason = f"cannot be checked: {type(error).__name__}: {error}"
            if reason != server.reason:
                _log.error("%s: %s", server.address.alias, reason, exc_info=error)
            error = DownError(reason)
        server.misses[kind] += 1
        if error.at_once or not server.up or server.misses[kind] >= self._settings.misses:
            server.misses["poll"] = 0
            server.probe.reset()
            server.listens = error.listens
            self._change(m, False, error.asleep, str(error))

    def _change(self, m: int, up: bool, asleep: bool, reason: str) -> None:
        server = self._servers[m]
        changed = (up, asleep) != (server.up, server.asleep) or server.reason == _UNCHECKED
        server.changes += up != server.up
        server.up, server.asleep, server.reason = up, asleep, reason
        server.listens = server.listens or up
        self._publish()
        if all(each.reason != _UNCHECKED for each in self._servers):
            self._checked.set()
        if changed:
            self._notify(m, server.usable, asleep, server.held or reason)

    def _notify(self, m: int, up: bool, asleep: bool, reason: str) -> None:
        try:
            self._on_change(m, up, asleep, reason)
        except Exception:
            _log.exception("%s: on_change failed", self._servers[m].address.alias)

    def _publish(self) -> None:
        self.up = sum(1 << m for m, server in enumerate(self._servers) if server.usable)
