"""Watcher of servers: reads their metrics in the background, and tracks which are up.

    with MetricsWatcher(addresses(pool), LiveSettings(), poll_s=pool.metrics_poll_s) as watcher:
        for server in watcher.status():
            print(server.alias, server.up, server.reason, server.reading)

A server is up when `/health` and `/metrics` give valid answers, it serves the wanted model, and it
does not sleep: a sleeper reports that it is healthy, but requests to it hang. No answer is trusted:
each is a reading or an error, and none ends the watching.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.client import DownError, LoopThread, ask, cancel_all, fetch, open_session
from inframind_gym.live.config import LiveSettings, ServerAddress, require_live
from inframind_gym.simulator.workflow.backend import Telemetry

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)
SIMULATED: Final = "inframind-simulated"  # `owned_by` of the models of simulated servers
_NONSENSE: Final = (ValueError, LookupError, TypeError, RecursionError)  # from malformed JSON

# Arguments: a server that goes up or down, whether it is up, whether it sleeps, why.
OnChange = Callable[[int, bool, bool, str], None]

# Metrics of a server

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_SLEEP: Final = "vllm:engine_sleep_state"
_KV: Final = "vllm:kv_cache_usage_perc"
_E2E: Final = "vllm:e2e_request_latency_seconds"
TIMES: Final = {  # histograms: name here, name of vLLM
    "e2e_s": _E2E,
    "ttft_s": "vllm:time_to_first_token_seconds",
    "itl_s": "vllm:inter_token_latency_seconds",
    "queue_s": "vllm:request_queue_time_seconds",
    "inference_s": "vllm:request_inference_time_seconds",
}
# Time at which the process, or its first counter, was made: a change means another process.
_STARTED: Final = ("process_start_time_seconds", f"{_E2E}_created")
_WANTED: Final = frozenset(
    [_RUNNING, _WAITING, _SLEEP, _KV, *_STARTED]
    + [f"{name}_{end}" for name in TIMES.values() for end in ("sum", "count")]
)
_NAMES: Final = tuple(_WANTED)


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
    sums: dict[str, tuple[float, float]]  # sum and count of each of TIMES


def parse_metrics(text: str, taken_s: float) -> Reading:
    """Parse an answer to `/metrics`, in Prometheus' text format; a DownError: it is malformed."""
    from prometheus_client.parser import text_string_to_metric_families

    # Most lines are buckets of histograms, which are not used: skip them before parsing.
    lines = [
        line
        for line in text.split("\n")
        if line.startswith(_NAMES) and re.split("[{ ]", line, maxsplit=1)[0] in _WANTED
    ]
    values: dict[str, list[float]] = {}
    awake: list[float] = []
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                value = float(sample.value)
                if not 0.0 <= value < math.inf:
                    raise DownError(f"{sample.name} is {value}")
                values.setdefault(sample.name, []).append(value)
                if sample.name == _SLEEP and sample.labels.get("sleep_state") == "awake":
                    awake.append(value)
    except (ValueError, LookupError, OverflowError) as error:
        raise DownError(f"the answer to /metrics cannot be read: {error}") from None
    for name in (_RUNNING, _WAITING):
        if name not in values:
            raise DownError(f"the answer to /metrics has no {name}: is this a vLLM server?")
    cache, sums = values.get(_KV, [0.0]), {}
    for name, theirs in TIMES.items():
        totals, counts = values.get(f"{theirs}_sum"), values.get(f"{theirs}_count")
        sums[name] = (sum(totals), sum(counts)) if totals and counts else (0.0, 0.0)
    e2e_s, finished = sums["e2e_s"]
    return Reading(
        taken_s=taken_s,
        running_req=sum(values[_RUNNING]),
        waiting_req=sum(values[_WAITING]),
        kv_frac=sum(cache) / len(cache),
        asleep=min(awake) < 1.0 if awake else None,
        e2e_s=e2e_s,
        finished_req=finished,
        started=max((max(values[name]) for name in _STARTED if name in values), default=math.nan),
        sums=sums,
    )


class Means:
    """Mean times of the requests that finished between two readings of one server.

    After a restart a server counts from 0: the difference is then its whole count.
    """

    def __init__(self) -> None:
        self.mean_s: dict[str, float] = {}  # by name, the last mean
        self.taken_s = -math.inf  # time of the mean "e2e_s", on the monotonic clock
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
        for name, (total_s, count) in reading.sums.items():
            before_s, before = (0.0, 0.0) if restarted else last.sums[name]
            if count > before:
                self.mean_s[name] = (total_s - before_s) / (count - before)
                if name == "e2e_s":
                    self.taken_s = reading.taken_s


# One server, once


def is_simulated(url: str) -> bool:
    """Return whether a server reports that it is a simulated one (`simulated/`)."""
    try:
        return bool(json.loads(ask(f"{url}/v1/models"))["data"][0]["owned_by"] == SIMULATED)
    except (DownError, *_NONSENSE):
        return False


def facts_of(url: str) -> dict[str, Any]:
    """Return `name`, `url` and the known part of the card (`server`) of a vLLM server.

    They follow from its answers to /v1/models and /metrics; a ConfigError: it does not answer, or
    its answers are malformed.
    """
    try:
        models, metrics = (ask(f"{url}/{path}", limit_s=10.0) for path in ("v1/models", "metrics"))
    except DownError as error:
        raise ConfigError(f"--url: {error}") from None
    line = re.search(r"^vllm:cache_config_info\{.*", metrics, re.MULTILINE)
    cache = dict(re.findall(r'(\w+)="([^"]*)"', line[0])) if line else {}
    try:
        model = json.loads(models)["data"][0]
        card: dict[str, Any] = {"max_model_len": int(model["max_model_len"])}
        name = str(model["id"])
    except _NONSENSE:
        words = f"no list of models with their lengths: {models[:80]!r}"
        raise ConfigError(f"--url: {url}/v1/models answers {words}.") from None
    for theirs, ours in (("num_gpu_blocks", "num_kv_blocks"), ("block_size", "block_size")):
        if cache.get(theirs, "").isdecimal():
            card[ours] = int(cache[theirs])
    card["prefix_caching"] = cache.get("enable_prefix_caching") == "True"
    return {"name": name, "url": url, "server": card}


# All servers, all the time


class WatchedServer:
    """State of one server, as it was seen last."""

    def __init__(self, address: ServerAddress) -> None:
        self.alias, self.url, self.model = address.alias, address.url, address.model
        self.error: DownError | None = DownError("not checked yet")  # None: it is up
        self.reading: Reading | None = None
        self.polled: Reading | None = None  # as of the last poll
        self.means = Means()  # between polls
        self.published: tuple[bool, bool] | None = None  # up, asleep: as reported last
        self.misses = 0  # missing answers, in a row
        self.check_now = asyncio.Event()
        self.lock = asyncio.Lock()  # one check at a time: a late answer never undoes a later one

    @property
    def up(self) -> bool:
        """True if it can be sent to."""
        return self.error is None

    @property
    def asleep(self) -> bool:
        """True if it sleeps."""
        return self.error is not None and self.error.asleep

    @property
    def reason(self) -> str:
        """Why it is down, in words; empty where it is up."""
        return str(self.error or "")


class Beginning(NamedTuple):
    """Start of an episode: telemetry is counted from there."""

    at_s: float  # on the monotonic clock
    polls: int


class MetricsWatcher:
    """Watcher of M servers on a thread, from `open` or the beginning of a `with` block on.

    Args:
        servers: addresses and models.
        settings: `health_s`, `answer_s` and `misses` are read. A server that refuses the connection
            or answers nonsense is down at once.
        poll_s: interval at which the metrics are read.
        on_change: called on the watcher's thread.
        loop: a thread that runs already; without it the watcher has its own.
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
        self.up = 0  # bit mask of the servers that can be sent to
        self.polls = 0  # how often the metrics were read
        self._poll_s, self._settings, self._on_change = poll_s, settings, on_change
        self._closed = True
        self._servers = tuple(map(WatchedServer, servers))
        self._own_loop = loop is None
        if loop is not None:
            self._loop = loop
        self._session: aiohttp.ClientSession
        self._tasks: list[asyncio.Task[None]] = []
        self._polling: asyncio.Task[None] | None = None

    # For any thread

    def open(self) -> None:
        """Check each server once, and begin to watch."""
        if self._own_loop:
            self._loop = LoopThread("vllm-watcher")
        self._closed = False
        try:
            self._loop.run(self._open())
        except BaseException:  # interrupted
            self.close()
            raise

    def is_up(self, server: int) -> bool:
        """Return whether a server can be sent to."""
        return bool(self.up >> server & 1)

    def wait_up(self, timeout_s: float) -> None:
        """Wait until all servers are up; an InfraMindError says which are not, and why."""
        over_s = time.monotonic() + timeout_s
        while self.up != (1 << len(self._servers)) - 1:
            if time.monotonic() >= over_s:
                down = (server for server in self._servers if not server.up)
                lines = "".join(f"\n  {each.alias} ({each.url}): {each.reason}" for each in down)
                raise InfraMindError(f"not up in {timeout_s:g} s:{lines}")
            time.sleep(0.05)

    def status(self) -> tuple[WatchedServer, ...]:
        """Return the servers, whose states change on the watcher's thread."""
        return self._servers

    def begin(self) -> Beginning:
        """Check all servers now, and count polls from here; the next is due in `poll_s`."""

        async def begin() -> Beginning:
            await cancel_all(filter(None, [self._polling]))
            await self._poll(self._servers)  # what finished until here belongs to the time before
            beginning = Beginning(time.monotonic(), self.polls)
            self._polling = asyncio.ensure_future(self._poll_forever())
            return beginning

        return self._loop.run(begin())

    def telemetry(self, beginning: Beginning) -> Telemetry:
        """Return the metrics of the last poll since the beginning; does not block."""
        count, polls = len(self._servers), self.polls - beginning.polls
        depth, e2e = [0.0] * count, [math.nan] * count
        kv, taken = [0.0] * count, [0.0] * count
        for m, server in enumerate(self._servers if polls > 0 else ()):
            reading = server.polled
            if reading is None or reading.taken_s < beginning.at_s:
                continue
            depth[m] = reading.running_req + reading.waiting_req
            kv[m] = reading.kv_frac
            taken[m] = reading.taken_s - beginning.at_s
            if server.means.taken_s > beginning.at_s:
                e2e[m] = server.means.mean_s["e2e_s"]
        return Telemetry(polls, taken, depth, e2e, kv)

    def suspect(self, server: int) -> None:
        """Check a server now, because a request could not reach it."""
        self._loop.call(self._servers[server].check_now.set)

    def close(self) -> None:
        """Stop watching. May be called twice."""
        if self._closed:
            return
        self._closed = True

        async def close() -> None:
            await cancel_all([*self._tasks, *filter(None, [self._polling])])
            await self._session.close()
            await asyncio.sleep(0)

        with contextlib.suppress(RuntimeError):  # the loop was stopped
            self._loop.run(close())
        if self._own_loop:
            self._loop.stop()

    def __enter__(self) -> MetricsWatcher:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On the loop

    async def _open(self) -> None:
        self._session = open_session(self._settings.answer_s)
        await asyncio.gather(*map(self._check, self._servers))
        self._tasks = [asyncio.ensure_future(self._check_forever(s)) for s in self._servers]
        self._polling = asyncio.ensure_future(self._poll_forever())

    async def _check_forever(self, server: WatchedServer) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.health_s):
                    await server.check_now.wait()
            server.check_now.clear()
            await self._check(server)

    async def _poll_forever(self) -> None:
        next_s = time.monotonic()
        while True:
            next_s += self._poll_s
            await asyncio.sleep(next_s - time.monotonic())
            await self._poll([server for server in self._servers if server.error is None])

    async def _poll(self, servers: Sequence[WatchedServer]) -> None:
        """Check servers now, and publish their metrics at once."""
        before_s = time.monotonic()
        await asyncio.gather(*map(self._check, servers))
        for server in servers:
            if server.reading is not None and server.reading.taken_s >= before_s:
                server.polled = server.reading
                server.means.update(server.reading)
        self.polls += 1

    async def _check(self, server: WatchedServer) -> None:
        """Check whether a server is up, read its metrics, and report a change."""
        async with server.lock:
            try:
                await fetch(self._session, server.url, "/health")
                text = await fetch(self._session, server.url, "/metrics")
                reading = parse_metrics(text, time.monotonic())
                if reading.asleep:
                    raise DownError("asleep", asleep=True)
                if server.error is not None:  # it comes up
                    text = await fetch(self._session, server.url, "/v1/models")
                    try:
                        served = [str(model["id"]) for model in json.loads(text)["data"]]
                    except _NONSENSE:
                        words = f"/v1/models answers no list of models: {text[:80]!r}"
                        raise DownError(f"{words}: is this a vLLM server?") from None
                    if server.model not in served:
                        names = ", ".join(served) or "nothing"
                        raise DownError(f"serves {names}, not {server.model}")
                server.misses, server.error, server.reading = 0, None, reading
                if server.polled is None:
                    server.polled = reading
                    server.means.update(reading)  # counting starts here
            except Exception as error:
                if not isinstance(error, DownError):  # a bug, said once
                    reason = f"cannot be checked: {type(error).__name__}: {error}"
                    if reason != str(server.error):
                        _log.error("%s: %s", server.alias, reason, exc_info=error)
                    error = DownError(reason)
                server.misses += 1
                known_down = server.error is not None and not server.asleep
                if error.at_once or known_down or server.misses >= self._settings.misses:
                    server.error = error
            self.up = sum(each.up << m for m, each in enumerate(self._servers))
            before, server.published = server.published, (server.up, server.asleep)
            if server.published != before:
                try:
                    m = self._servers.index(server)
                    self._on_change(m, server.up, server.asleep, server.reason)
                except Exception:
                    _log.exception("%s: on_change failed", server.alias)
