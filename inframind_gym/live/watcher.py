"""Watcher of servers: reads their metrics in the background, and tracks which are up.

    settings = LiveSettings()
    with MetricsWatcher(addresses(pool), settings, poll_s=pool.metrics_poll_s) as watcher:
        watcher.wait_checked()
        for server in watcher.status():
            print(server.alias, server.up, server.reason, server.reading)

A server is up when `/health` and `/metrics` give valid answers, it serves the wanted model, and it
does not sleep: a sleeper reports that it is healthy, but requests to it hang. No answer is trusted:
each is a reading or an error, and none ends the watching.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.loop import LoopThread, cancel_all
from inframind_gym.live.settings import LiveSettings, ServerAddress, open_session, require_live
from inframind_gym.simulator.workflow.backend import Telemetry

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)
SIMULATED: Final = "inframind-simulated"  # whom models of simulated servers are owned by
_CHECKED_S: Final = 10.0  # for all servers to be checked once
_ASK_S: Final = 2.0
_MOST_BYTES: Final = 1 << 23  # of an answer
_SHOWN: Final = 80  # characters of an answer that makes no sense
_NONSENSE: Final = (ValueError, LookupError, TypeError, RecursionError)  # of an answer in JSON

# Arguments: a server that goes up or down, whether it is up, whether it sleeps, why.
OnChange = Callable[[int, bool, bool, str], None]


class DownError(InfraMindError):
    """A server cannot be sent to.

    Attributes:
        asleep: it sleeps.
        at_once: it is down as soon as this is seen once; an answer that fails to come may be late.
        listens: something takes connections at its address.
        status: HTTP status of an error; None: no answer.
    """

    def __init__(
        self,
        reason: str,
        *,
        asleep: bool = False,
        at_once: bool = True,
        listens: bool = True,
        status: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.asleep, self.at_once, self.listens, self.status = asleep, at_once, listens, status


# Metrics of a server

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
_SLEEP: Final = "vllm:engine_sleep_state"
_KV: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")  # now, before 0.10
_E2E: Final = "vllm:e2e_request_latency_seconds"
_TIMES: Final = {  # histograms: name here, name of vLLM
    "ttft_s": "vllm:time_to_first_token_seconds",
    "itl_s": "vllm:inter_token_latency_seconds",
    "queue_s": "vllm:request_queue_time_seconds",
    "inference_s": "vllm:request_inference_time_seconds",
}
# When the process, or its first counter, was made: another one means another process.
_STARTED: Final = ("process_start_time_seconds", f"{_E2E}_created")
_WANTED: Final = frozenset(
    [RUNNING, WAITING, _SLEEP, *_KV, *_STARTED]
    + [f"{name}_{end}" for name in (_E2E, *_TIMES.values()) for end in ("sum", "count")]
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One server's metrics at one instant.

    Values are summed over the engines of a server. Counters and histograms count since the server
    was started: the difference between two readings is of interest.
    """

    taken_s: float  # on the monotonic clock
    running_req: float
    waiting_req: float
    kv_frac: float  # 0..1, mean over engines
    asleep: bool | None  # None: the server does not report it
    e2e_s: float  # latencies of the requests that finished since its start, summed
    finished_req: float  # their number
    started: float  # identifies the process; NaN: unknown
    sums: dict[str, tuple[float, float]]  # sum and count of ttft_s, itl_s, queue_s, inference_s


def parse_metrics(text: str, taken_s: float) -> Reading:
    """Read a server's answer to `/metrics`, in the Prometheus text format.

    Args:
        text: the answer.
        taken_s: its time, on the monotonic clock.

    Raises:
        DownError: a line cannot be read, a number is none, or the numbers of running and waiting
            requests are missing.
    """
    from prometheus_client.parser import text_string_to_metric_families

    # Most lines are buckets of histograms, which are not used: not worth parsing.
    lines = [line for line in text.split("\n") if re.split("[{ ]", line, maxsplit=1)[0] in _WANTED]
    values: dict[str, list[float]] = {}
    awake: list[float] = []
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                values.setdefault(sample.name, []).append(float(sample.value))
                if sample.name == _SLEEP and sample.labels.get("sleep_state") == "awake":
                    awake.append(float(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise DownError(f"the answer to /metrics cannot be read: {error}") from None
    for name, found in values.items():
        for value in found:
            if not math.isfinite(value) or value < 0.0:
                raise DownError(f"{name} is {value}")
    for name in (RUNNING, WAITING):
        if name not in values:
            raise DownError(f"the answer to /metrics has no {name}: is this a vLLM server?")
    cache = next((values[name] for name in _KV if name in values), [0.0])

    def total(name: str) -> tuple[float, float]:
        sums, counts = values.get(f"{name}_sum"), values.get(f"{name}_count")
        return (0.0, 0.0) if sums is None or counts is None else (sum(sums), sum(counts))

    e2e_s, finished = total(_E2E)
    return Reading(
        taken_s=taken_s,
        running_req=sum(values[RUNNING]),
        waiting_req=sum(values[WAITING]),
        kv_frac=sum(cache) / len(cache),
        asleep=min(awake) < 1.0 if awake else None,
        e2e_s=e2e_s,
        finished_req=finished,
        started=max((max(values[name]) for name in _STARTED if name in values), default=math.nan),
        sums={name: total(theirs) for name, theirs in _TIMES.items()},
    )


class MeanLatency:
    """Mean latency of the requests that finished between two readings of one server.

    A server that was restarted counts from 0 again: the difference is all that it has counted.

    Attributes:
        mean_s: mean latency, the last one where nothing finished since; NaN before there is any.
        taken_s: time of the mean, on the monotonic clock; -inf before there is any.
    """

    def __init__(self) -> None:
        self.mean_s, self.taken_s = math.nan, -math.inf
        self._last: Reading | None = None

    def update(self, reading: Reading) -> None:
        """Take the next reading; the first one is where counting starts."""
        last, self._last = self._last, reading
        if last is None:
            return
        known = not math.isnan(reading.started + last.started)
        restarted = (known and reading.started != last.started) or (
            reading.e2e_s < last.e2e_s or reading.finished_req < last.finished_req
        )
        before_s, before = (0.0, 0.0) if restarted else (last.e2e_s, last.finished_req)
        if reading.finished_req > before:
            self.mean_s = (reading.e2e_s - before_s) / (reading.finished_req - before)
            self.taken_s = reading.taken_s


# One question to one server


async def fetch(
    session: aiohttp.ClientSession, url: str, path: str = "", *, method: str = "GET"
) -> tuple[int, str]:
    """Fetch a path of a server; the time limit is the session's. Redirects are not followed.

    Returns:
        HTTP status, and the text.

    Raises:
        DownError: there is no answer, or one without end.
    """
    import aiohttp

    what = f" to {path}" if path else ""
    try:
        async with session.request(method, url + path, allow_redirects=False) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise DownError(f"the answer{what} has no end")
            return response.status, data.decode("utf-8", "replace")
    except TimeoutError:
        reason = f"no answer{what} in {session.timeout.total:g} s"
        raise DownError(reason, at_once=False) from None
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno  # None: of several addresses, as localhost has them
        why = os.strerror(number) if number and number > 0 else str(error.os_error) or "OSError"
        refused = number in (errno.ECONNREFUSED, None)
        raise DownError(f"no connection ({why})", listens=not refused) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise DownError(f"no HTTP answer{what} ({type(error).__name__}: {error})") from None


def ask(url: str, *, method: str = "GET", limit_s: float = _ASK_S) -> str:
    """Send a request to a server and wait for its answer, with $VLLM_API_KEY where it is set.

    Raises:
        DownError: there is none, or another status than 200.
    """

    async def answer() -> tuple[int, str]:
        async with open_session(limit_s) as session:
            return await fetch(session, url, method=method)

    loop = LoopThread("ask")  # the caller's thread may run a loop of its own
    try:
        status, text = loop.run(answer())
    except DownError as error:
        error.args = (f"{url}: {error}",)
        raise
    finally:
        loop.stop()
    if status != 200:
        raise DownError(f"{url} says {status}: {text[:300].strip()}", status=status)
    return text


def unusable(url: str, model: str) -> str:
    """Return why a server cannot be sent requests to a model; "" if it can."""
    try:
        ask(f"{url}/health")
        wrong = wrong_model(ask(f"{url}/v1/models"), model)
    except DownError as error:
        return str(error)
    return wrong and f"{url} {wrong}"


def is_simulated(url: str) -> bool:
    """Return whether a server answers that it is a simulated one (`simulated/`)."""
    try:
        return bool(json.loads(ask(f"{url}/v1/models"))["data"][0]["owned_by"] == SIMULATED)
    except (DownError, *_NONSENSE):
        return False


def is_dead(url: str) -> bool:
    """Return whether a server refuses connections, or reports that it has no engine."""
    try:
        ask(f"{url}/health")
    except DownError as error:
        return not error.listens or error.status == 503
    return False


def is_asleep(text: str) -> bool:
    """Read what a server answered to `/is_sleeping`.

    Raises:
        DownError: it makes no sense.
    """
    try:
        return bool(json.loads(text)["is_sleeping"])
    except _NONSENSE:
        raise DownError(f"/is_sleeping answers {text[:_SHOWN]!r}") from None


def wrong_model(text: str, wanted: str) -> str:
    """Return why what a server answered to `/v1/models` lacks a model; "" if it does not."""
    try:
        served = [str(model["id"]) for model in json.loads(text)["data"]]
    except _NONSENSE:
        return f"/v1/models answers no list of models: {text[:_SHOWN]!r}: is this a vLLM server?"
    return "" if wanted in served else f"serves {', '.join(served) or 'nothing'}, not {wanted}"


# All servers, all the time


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
    """One server, as it was seen. One look at a time: a late answer never undoes a later one."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.told: object = None  # what was reported last
        self.error: DownError | None = DownError("not checked yet")  # why it is down; None: it's up
        self.held: str | None = None  # why nothing is to be sent to it, whatever it reports
        self.reports_sleep = True  # /is_sleeping: only in vLLM's developer mode
        self.misses = {"check": 0, "poll": 0}  # in a row
        self.reading: Reading | None = None
        self.latency = MeanLatency()
        self.look_now = asyncio.Event()  # not when it is due
        self.lock = asyncio.Lock()

    def take(self, reading: Reading) -> None:
        if self.reading is None or self.reading.taken_s < reading.taken_s:
            self.latency.update(reading)
            self.reading = reading


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
        require_live()
        self.up = self.polls = 0
        self._poll_s, self._settings = poll_s, settings
        self._on_change = on_change
        self._checked = threading.Event()
        self._closed = False
        self._servers = tuple(map(_Server, servers))
        self._again = asyncio.Event()  # the time of the next poll has changed
        self._next_s = time.monotonic() + poll_s
        self._own_loop = loop is None
        self._loop = loop or LoopThread("vllm-watcher")
        self._session, self._tasks = self._loop.run(self._open())

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
        states = []
        for server in self._servers:
            error = server.error
            states.append(
                ServerStatus(
                    alias=server.address.alias,
                    url=server.address.url,
                    up=error is None and server.held is None,
                    asleep=error is not None and error.asleep,
                    listens=error is None or error.listens,
                    reason=server.held or str(error or ""),
                    reading=server.reading,
                )
            )
        return states

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
        self._loop.call(self._servers[server].look_now.set)

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
        with contextlib.suppress(RuntimeError):  # the loop was stopped
            self._loop.run(self._close())
        if self._own_loop:
            self._loop.stop()

    def __enter__(self) -> MetricsWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On the loop

    async def _open(self) -> tuple[aiohttp.ClientSession, list[asyncio.Task[None]]]:
        session = self._session = open_session(self._settings.answer_s)
        forever = [*map(self._watch, range(len(self._servers))), self._poll_forever()]
        return session, [asyncio.ensure_future(coroutine) for coroutine in forever]

    async def _close(self) -> None:
        await cancel_all(self._tasks)
        await self._session.close()
        await asyncio.sleep(0)

    async def _begin(self) -> Beginning:
        await asyncio.gather(*(self._look(m, "check") for m in range(len(self._servers))))
        await self._poll()  # what finished until here belongs to the time before
        beginning = Beginning(time.monotonic(), self.polls)
        self._next_s = beginning.at_s + self._poll_s
        self._again.set()
        return beginning

    async def _hold(self, m: int, reason: str | None) -> None:
        self._servers[m].held = reason
        if reason is None:
            await self._look(m, "check")
        self._publish(m)

    async def _watch(self, m: int) -> None:
        server = self._servers[m]
        while True:
            await self._look(m, "check")
            server.look_now.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(server.look_now.wait(), self._settings.health_s)

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
        up = [m for m, server in enumerate(self._servers) if server.error is None]
        readings = await asyncio.gather(*(self._look(m, "poll") for m in up))
        for m, reading in zip(up, readings, strict=True):
            if reading is not None:
                self._servers[m].take(reading)
        self.polls += 1

    async def _look(self, m: int, kind: str) -> Reading | None:
        """Find out by a check or a poll whether a server is up; return what a poll has read."""
        server = self._servers[m]
        async with server.lock:
            if kind == "poll" and server.error is not None:
                return None
            try:
                found = await (self._metrics if kind == "poll" else self._check)(server)
            except Exception as caught:
                self._failed(m, kind, caught)
                return None
            server.misses[kind] = 0
            if kind == "poll":
                return found
            if found is not None:
                server.take(found)
            server.error = None
            self._publish(m)
            return None

    async def _check(self, server: _Server) -> Reading | None:
        """Ask a server whether it is up; one that comes up also for its metrics and its model.

        Raises:
            DownError: it isn't.
        """
        await self._get(server, "/health")
        if server.reports_sleep:
            status, text = await fetch(self._session, server.address.url, "/is_sleeping")
            server.reports_sleep = status == 200
            if status == 200 and is_asleep(text):
                raise DownError("asleep", asleep=True)
        if server.error is None:
            return None
        reading = await self._metrics(server)
        if wrong := wrong_model(await self._get(server, "/v1/models"), server.address.model):
            raise DownError(wrong)
        return reading

    async def _metrics(self, server: _Server) -> Reading:
        """Read the metrics.

        Raises:
            DownError: there are none, or they report that the server sleeps.
        """
        reading = parse_metrics(await self._get(server, "/metrics"), time.monotonic())
        if reading.asleep:
            raise DownError("asleep", asleep=True)
        return reading

    async def _get(self, server: _Server, path: str) -> str:
        status, text = await fetch(self._session, server.address.url, path)
        if status != 200:
            raise DownError(f"{path} says {status}", status=status)
        return text

    def _failed(self, m: int, kind: str, error: Exception) -> None:
        """Count a check or a poll that has failed, for whatever reason; the next will be made."""
        server = self._servers[m]
        if not isinstance(error, DownError):  # a bug, said once
            reason = f"cannot be checked: {type(error).__name__}: {error}"
            if reason != str(server.error):
                _log.error("%s: %s", server.address.alias, reason, exc_info=error)
            error = DownError(reason)
        server.misses[kind] += 1
        if error.at_once or server.error or server.misses[kind] >= self._settings.misses:
            server.misses["poll"] = 0
            server.reports_sleep = True
            server.error = error
            self._publish(m)

    def _publish(self, m: int) -> None:
        """Set the mask, and report a server that has changed."""
        states = self.status()
        self.up = sum(each.up << i for i, each in enumerate(states))
        server, state = self._servers[m], states[m]
        now = (server.error is None, state.asleep, server.held)
        changed, server.told = now != server.told, now
        if all(each.told is not None for each in self._servers):
            self._checked.set()
        if changed:
            try:
                self._on_change(m, state.up, state.asleep, state.reason)
            except Exception:
                _log.exception("%s: on_change failed", state.alias)
