"""The live servers of a pool, for as long as they are used: watcher, connections, log.

Episodes come and go; connections, metrics and the log stay:

    with VllmServers(load_pool("cpu-tiny"), log="requests.jsonl") as servers:
        servers.watcher.wait_up(60.0)
        backend = servers.open(prompts, judge, scheduler="edf")  # for one episode
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import Judge, PromptMaker, VllmBackend
from inframind_gym.live.client import Client
from inframind_gym.live.loop import LoopThread
from inframind_gym.live.request_log import RequestLogWriter
from inframind_gym.live.settings import LiveSettings, ServerAddress, addresses, require_live
from inframind_gym.live.watcher import MetricsWatcher, OnChange
from inframind_gym.simulator.server.pool import PoolConfig, Scheduler

_log = logging.getLogger(__name__)
_SPARE_FILES: Final = 256  # for everything but requests


class Connections:
    """Client and watcher of servers, on one loop.

    Args:
        servers: addresses.
        settings: of both.
        loop: runs both.
        poll_s: interval at which metrics are read.
        on_change: as of `MetricsWatcher`.

    Attributes:
        client: to be used on `loop`.
        watcher: the metrics, and which servers are up.
    """

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        settings: LiveSettings,
        loop: LoopThread,
        *,
        poll_s: float,
        on_change: OnChange,
    ) -> None:
        self.settings, self.loop = settings, loop
        self._closed = False
        self.client = Client(
            servers,
            settings,
            is_up=lambda server: self.watcher.is_up(server),
            suspect=lambda server: self.watcher.suspect(server),
        )
        loop.run(self.client.open())
        try:
            self.watcher = MetricsWatcher(
                servers, settings, poll_s=poll_s, on_change=on_change, loop=loop
            )
        except BaseException:
            loop.run(self.client.close())
            raise

    def close(self) -> None:
        """Stop watching, and end what is in flight. May be called twice, from any thread."""
        if self._closed:
            return
        self._closed = True
        self.watcher.close()
        with contextlib.suppress(RuntimeError):  # the loop was stopped
            self.loop.run(self.client.close())


class VllmServers(Connections):
    """Connections to a pool that outlive an episode.

    Args:
        config: the pool; every model has a port or a url.
        settings: of client, watcher and grading.
        log: file to which a line is appended for every call (`request_log.py`); None: no log.

    Attributes:
        on_wait: called several times a second while a completion is waited for; an error that it
            raises ends the waiting.
        ungraded: answers that could not be graded, of all episodes so far; they count as wrong.
        ungradable: tasks whose answers cannot be graded, as the log has said.
        epoch_s: time of day when the monotonic clock stood at 0.
        on_down: called with a server that went down, and why; on the loop.

    Raises:
        ConfigError: a model has no address.
        InfraMindError: the extra `live` is not installed, or the log cannot be written.
    """

    def __init__(
        self,
        config: PoolConfig,
        settings: LiveSettings | None = None,
        *,
        log: str | Path | None = None,
    ) -> None:
        require_live()
        at, settings = addresses(config), _within_files(settings or LiveSettings())
        self.config = config
        self.epoch_s = time.time() - time.monotonic()
        self.episodes = 0
        self.run_id = f"{int(time.time() * 1e3):x}-{os.getpid():x}"  # begins the requests' ids
        self.log = None if log is None else RequestLogWriter(log)
        self.judges = ThreadPoolExecutor(settings.judges or os.cpu_count() or 1, "vllm-judge")
        self.ungraded = 0
        self.ungradable: set[int] = set()
        self.on_wait: Callable[[], object] | None = None
        self.on_down: Callable[[int, str], object] = lambda *_: None
        self._backend: VllmBackend | None = None
        self._known = 0  # servers that have been up
        loop = LoopThread("vllm-pool")
        try:
            super().__init__(
                at, settings, loop, poll_s=config.metrics_poll_s, on_change=self._changed
            )
        except BaseException:
            loop.stop()
            raise

    def open(
        self,
        prompts: PromptMaker,
        judge: Judge | None = None,
        *,
        scheduler: Scheduler | None = None,
        call_timeout_s: float | None = None,
    ) -> VllmBackend:
        """Open the backend of an episode; its clock begins to run now.

        Waits until every server was asked for its metrics: what happened before the episode is not
        in them. The backend that was opened before is closed.

        Args:
            prompts: makes a call's messages.
            judge: grades an answer, on a thread of its own; None: they are not graded.
            scheduler: of the episode; "fcfs" sends no priorities. Without it the pool's.
            call_timeout_s: limit of every call, which can then be sent again; None: limits follow
                from the budget that is left (`LiveSettings`).

        Raises:
            InfraMindError: the pool is closed.
        """
        if self._closed:
            raise InfraMindError("the pool is closed")
        if self._backend is not None:
            self._backend.close()
        priorities = (scheduler or self.config.scheduler) != "fcfs"
        beginning = self.watcher.begin()
        self._backend = VllmBackend(
            self, beginning, prompts, judge, self.episodes, priorities, call_timeout_s
        )
        self.episodes += 1
        return self._backend

    def close(self) -> None:
        """Close the open episode, all connections and the log. May be called twice.

        Grading that is under way is waited for; it has a time limit of its own.
        """
        if self._backend is not None:
            self._backend.close()
        super().close()
        self.loop.stop()
        self.judges.shutdown(wait=True, cancel_futures=True)
        if self.log is not None:
            self.log.close()

    def __enter__(self) -> VllmServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _changed(self, server: int, up: bool, asleep: bool, why: str) -> None:
        """Take note of a server that went up or down; on the loop."""
        alias = self.config.models[server].alias
        news = self._known >> server & 1  # one that has never been up is waited for
        level = logging.WARNING if news else logging.INFO
        if up:
            self._known |= 1 << server
            _log.log(level, "%s is up%s", alias, " again" * news)
        else:
            _log.log(level, "%s is down: %s", alias, why)
            self.client.server_down(server, f"{alias} is down: {why}", give_up=asleep)
            self.on_down(server, why)


def _within_files(settings: LiveSettings) -> LiveSettings:
    """Make room for a socket for each request in flight, or allow fewer requests."""
    try:
        import resource
    except ImportError:  # no such limit here
        return settings
    needed = settings.max_in_flight + _SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return settings
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if raised > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft >= needed:
        return settings
    most = max(1, soft - _SPARE_FILES)
    _log.warning("at most %d requests in flight: this process may open %d files", most, soft)
    return settings.model_copy(update={"max_in_flight": most})
