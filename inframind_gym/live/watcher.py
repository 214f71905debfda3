"""Watcher of servers: reads their metrics in the background, and tracks which are up.

    with MetricsWatcher(addresses(pool), poll_s=pool.metrics_poll_s) as watcher:
        watcher.wait_checked()
        for server in watcher.status():
            print(server.alias, server.up, server.reason, server.age_s, server.waiting_req)

`probe.py` asks one server. No answer of a server ends the watching.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.loop import LoopThread
from inframind_gym.live.metrics import Means, Reading
from inframind_gym.live.probe import DownError, Probe, fetch
from inframind_gym.live.settings import ServerAddress, require_live
from inframind_gym.simulator.workflow.backend import Telemetry

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)
_UNCHECKED: Final = "not checked yet"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """State of one server, for people and exporters.

    Times in s are means over the requests that finished between the last two readings between which
    any did; NaN: none yet.
    """

    alias: str
    url: str
    up: bool
    asleep: bool
    listens: bool  # something takes connections at its address
    reason: str  # why it is down, in words; empty where it is up
    age_s: float  # of the metrics; inf: never read
    running_req: float
    waiting_req: float
    kv_frac: float  # 0..1
    mean_s: Mapping[str, float]  # e2e, ttft, itl, queue, prefill, decode, inference
    counters: Mapping[str, float]  # since its start: preemptions, prompt_tokens, generation_tokens
    finished: Mapping[str, float]  # requests since its start, by reason


@dataclass(frozen=True, slots=True)
class Beginning:
    """Start of an episode: telemetry is counted from there."""

    at_s: float  # on the monotonic clock
    polls: int


class _Server:
    """State of one server."""

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
        self.means = Means()
        self.check_now = asyncio.Event()  # not when it is due

    @property
    def usable(self) -> bool:
        return self.up and self.held is None

    def status(self) -> ServerStatus:
        reading = self.reading
        return ServerStatus(
            alias=self.address.alias,
            url=self.address.url,
            up=self.usable,
            asleep=self.asleep,
            listens=self.listens,
            reason=self.held or self.reason,
            age_s=time.monotonic() - reading.taken_s if reading else math.inf,
            running_req=reading.running_req if reading else 0.0,
            waiting_req=reading.waiting_req if reading else 0.0,
            kv_frac=reading.kv_frac if reading else 0.0,
            mean_s=dict(self.means.of),
            counters=dict(reading.counters) if reading else {},
            finished=dict(reading.finished) if reading else {},
        )


# Arguments: a server that goes up or down, whether it is up, whether it sleeps, why.
OnChange = Callable[[int, bool, bool, str], None]


class MetricsWatcher:
    """Watches M servers from a thread.

    Args:
        servers: addresses and models.
        poll_s: interval at which the metrics are read.
        health_s: interval of the checks whether they are up.
        answer_s: to wait for an answer.
        misses: missing answers in a row until a server that was up counts as down. One that
            refuses the connection or answers nonsense is down at once.
        on_change: called on the watcher's thread.
        api_key: sent as a bearer token.
        loop: a thread that runs already; without it the watcher has its own.
    """

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        *,
        poll_s: float = 5.0,
        health_s: float = 1.0,
        answer_s: float = 2.0,
        misses: int = 3,
        on_change: OnChange | None = None,
        api_key: str | None = None,
        loop: LoopThread | None = None,
    ) -> None:
        self._poll_s = poll_s
        self._health_s = health_s
        self._answer_s = answer_s
        self._most_misses = misses
        self._on_change = on_change
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._polls = 0
        self._up = 0
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

    @property
    def up(self) -> int:
        """Bit mask of the servers that can be sent to."""
        return self._up

    @property
    def polls(self) -> int:
        """How often the metrics were read."""
        return self._polls

    def is_up(self, server: int) -> bool:
        """Whether a server can be sent to."""
        return bool(self._up >> server & 1)

    def wait_checked(self, timeout_s: float = 30.0) -> int:
        """Wait until every server was checked once; return the mask of those that are up."""
        self._checked.wait(timeout_s)
        return self._up

    def wait_up(self, timeout_s: float, *, everyone: bool = True) -> int:
        """Wait until all servers are up, or any.

        Raises:
            InfraMindError: they are not, in time; the message says which, and why.
        """
        over_s = time.monotonic() + timeout_s
        everything = (1 << len(self._servers)) - 1
        while True:
            if self._up == everything or (self._up and not everyone):
                return self._up
            if time.monotonic() >= over_s:
                break
            time.sleep(0.05)
        down = [
            f"{s.address.alias} ({s.address.url}): {s.held or s.reason}"
            for s in self._servers
            if not s.usable
        ]
        lines = "".join(f"\n  {line}" for line in down)
        raise InfraMindError(f"not up in {timeout_s:g} s:{lines}")

    def status(self) -> list[ServerStatus]:
        """Return the state of each server."""
        return [server.status() for server in self._servers]

    def begin(self) -> Beginning:
        """Look at all servers now, and let the polls count from here.

        The next poll is due `poll_s` from now.
        """
        return self._loop.run(self._begin())

    def telemetry(self, beginning: Beginning) -> Telemetry:
        """The metrics as they were polled last since the beginning; doesn't block."""
        count = len(self._servers)
        polls = self._polls - beginning.polls
        depth, e2e = [0.0] * count, [math.nan] * count
        kv, taken = [0.0] * count, [0.0] * count
        for m, server in enumerate(self._servers if polls > 0 else ()):
            reading, means = server.reading, server.means
            if reading is None or reading.taken_s < beginning.at_s:
                continue
            depth[m] = reading.running_req + reading.waiting_req
            kv[m] = reading.kv_frac
            taken[m] = reading.taken_s - beginning.at_s
            if means.taken_s["e2e"] > beginning.at_s:
                e2e[m] = means.of["e2e"]
        return Telemetry(polls, taken, depth, e2e, kv)

    def suspect(self, server: int) -> None:
        """A request could not reach the server: look whether it is up, now."""
        self._loop.call(self._servers[server].check_now.set)

    def hold(self, server: int, reason: str) -> None:
        """Send nothing to the server, whatever it says: for whoever puts it to sleep or stops it.

        Returns when it is so. Requests in flight are not touched.
        """
        self._loop.run(self._hold(server, reason))

    def release(self, server: int) -> None:
        """Undo `hold`; the server is used again when it is seen to be up, which is looked at now.

        Returns when that is done.
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
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=self._answer_s),
            headers=self._headers,
        )
        forever = [*map(self._watch, range(len(self._servers))), self._poll_forever()]
        self._tasks = [asyncio.ensure_future(coroutine) for coroutine in forever]

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)

    async def _begin(self) -> Beginning:
        await asyncio.gather(*(self._check(m) for m in range(len(self._servers))))
        await self._poll()  # what finished until here belongs to the time before
        beginning = Beginning(time.monotonic(), self._polls)
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
        """Look after one server for ever."""
        server = self._servers[m]
        while True:
            await self._check(m)
            server.check_now.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(server.check_now.wait(), self._health_s)

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
        """Read the metrics of the servers that are up, and show them all at once."""
        async with self._polling:
            up = [(m, server.changes) for m, server in enumerate(self._servers) if server.up]
            readings = await asyncio.gather(*(self._polled(m) for m, _ in up))
            for (m, changes), reading in zip(up, readings, strict=True):
                if reading is not None and self._servers[m].changes == changes:
                    self._take(self._servers[m], reading)
            self._polls += 1

    async def _polled(self, m: int) -> Reading | None:
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

    @staticmethod
    def _take(server: _Server, reading: Reading) -> None:
        server.means.update(reading)
        server.reading = reading

    async def _check(self, m: int) -> None:
        """Look whether a server is up.

        What a look or a poll finds counts for nothing where the server has gone up or down since
        it began: that is newer, and the next look goes by it.
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
                self._take(server, reading)
            self._change(m, True, False, "")

    async def _get(self, url: str, path: str) -> tuple[int, str]:
        assert self._session is not None
        return await fetch(self._session, url, path)

    def _failed(self, m: int, error: Exception, kind: str) -> None:
        """A look or a poll has failed; whatever the reason, the next one will be made."""
        server = self._servers[m]
        if not isinstance(error, DownError):
            reason = f"cannot be looked at: {type(error).__name__}: {error}"
            if reason != server.reason:
                _log.error("%s: %s", server.address.alias, reason, exc_info=error)
            error = DownError(reason)
        server.misses[kind] += 1
        if error.at_once or not server.up or server.misses[kind] >= self._most_misses:
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
        if all(s.reason != _UNCHECKED for s in self._servers):
            self._checked.set()
        if changed:
            self._notify(m, server.usable, asleep, server.held or reason)

    def _notify(self, m: int, up: bool, asleep: bool, reason: str) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(m, up, asleep, reason)
        except Exception:
            _log.exception("%s: of a change nobody could be told", self._servers[m].address.alias)

    def _publish(self) -> None:
        self._up = sum(1 << m for m, server in enumerate(self._servers) if server.usable)
