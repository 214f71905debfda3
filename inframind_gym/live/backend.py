"""Live servers: lasting connections to a pool, and one episode on it as a `Backend`.

    with VllmServers(load_pool("cpu-tiny"), log="requests.jsonl") as servers:
        servers.watcher.wait_up(60.0)
        backend = servers.open(prompts, judge, scheduler="edf")  # for one episode

Calls are made on the servers' loop; the driver's thread only hands them over and waits for
completions. The answers of a query are kept until its deciding call has ended: later calls have
them in their prompts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import queue
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.chat import ChatClient, ChatResult
from inframind_gym.live.client import LoopThread, allow_files, cancel_all
from inframind_gym.live.config import LiveSettings, ServerAddress, addresses, require_live
from inframind_gym.live.prompts import Prompts
from inframind_gym.live.request_log import RequestLogWriter, log_record
from inframind_gym.live.watcher import Beginning, MetricsWatcher, OnChange
from inframind_gym.simulator.server.pool import PoolConfig, Scheduler
from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry
from inframind_gym.simulator.workflow.topology import CUSTOM, FINAL, STRATEGIES, TOPOLOGIES

_log = logging.getLogger(__name__)
_PAUSE_S: Final = 2.0  # at most, after a call that failed
_SPARE_FILES: Final = 256  # for everything but requests
_PHASES: Final = ("first", "second", "final")

Judge = Callable[[int, str], bool]  # task (index into the run's tasks), answer -> right


class Connections(ChatClient):
    """A client of M servers on a `LoopThread`; arguments as of `MetricsWatcher`."""

    def __init__(
        self,
        servers: Sequence[ServerAddress],
        settings: LiveSettings,
        loop: LoopThread,
        *,
        poll_s: float,
        on_change: OnChange = lambda *_: None,
    ) -> None:
        self.settings, self.loop, self._closed = settings, loop, False
        watcher = MetricsWatcher(servers, settings, poll_s=poll_s, on_change=on_change, loop=loop)
        super().__init__(watcher, settings.max_in_flight)
        watcher.open()
        loop.run(self.connect())

    def close(self) -> None:
        """Stop watching, and disconnect. May be called twice, from any thread but the loop's."""
        if not self._closed:
            self._closed = True
            self.watcher.close()
            with contextlib.suppress(RuntimeError):  # the loop was stopped
                self.loop.run(self.disconnect())

    async def chat(
        self,
        server: int,
        messages: Sequence[Mapping[str, object]],
        max_tokens: int,
        limit_s: float,
        *,
        priority: int | None = None,
        request_id: str | None = None,
    ) -> ChatResult:
        """Send a chat completion, and wait for the whole answer, `limit_s` at most; on the loop.

        Never raises: failure, the time limit and being cancelled are results. `priority` is for the
        server's queue; `request_id` is the header X-Request-Id.
        """
        body: dict[str, Any] = {
            "model": self.servers[server].model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": self.settings.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.settings.sampling,
        }
        if priority is not None:
            body["priority"] = priority
        result = ChatResult(time.monotonic(), max_tokens)
        try:
            await self.send(server, body, result, limit_s, request_id=request_id)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # a bug must not end a run
            _log.exception("request %s failed", request_id)
            result.end("fault", type(error).__name__, str(error))
        return result


def completion_of(
    call: Call, result: ChatResult, right: bool | None, at_s: Callable[[float], float]
) -> Completion:
    """Return the completion of a call that has ended.

    Args:
        call: the call.
        result: of its request.
        right: the answer's grade; None: not graded.
        at_s: converts a time of the monotonic clock to the backend's.
    """
    tokens = result.pieces if result.output_tokens is None else result.output_tokens
    first_s, admitted_s = (
        math.nan if time_s is None else at_s(time_s)
        for time_s in (result.first_token_s, result.scheduled_s)
    )
    return Completion(
        call=call.id,
        submit_s=at_s(result.submit_s),
        first_token_s=first_s,
        finish_s=at_s(result.finish_s or time.monotonic()),
        output_tokens=tokens if result.answered else 0,
        truncated=result.status == "truncated",
        failed=not result.answered,
        retryable=result.retryable,
        text=result.text,
        right=right if result.answered else False,
        prompt_tokens=result.prompt_tokens,
        admitted_s=admitted_s,
    )


class VllmServers(Connections):
    """Connections to a pool that outlive an episode.

    Args:
        config: the pool; every model has a port or a url.
        settings: of client, watcher and grading.
        log: file to which a line is appended for every call (`request_log.py`); None: no log.
    """

    def __init__(
        self,
        config: PoolConfig,
        settings: LiveSettings | None = None,
        *,
        log: str | Path | None = None,
    ) -> None:
        require_live()
        servers, settings = addresses(config), settings or LiveSettings()
        allow_files(settings.max_in_flight + _SPARE_FILES)  # a socket for each request in flight
        self.config = config
        self.epoch_s = time.time() - time.monotonic()
        self.episodes = self.ungraded = 0
        self.run_id = f"{int(time.time() * 1e3):x}-{os.getpid():x}"  # prefix of request ids
        self.log = None if log is None else RequestLogWriter(log)
        self.judges = ThreadPoolExecutor(os.cpu_count(), "vllm-judge")
        self._backend: VllmBackend | None = None
        loop, poll_s = LoopThread("vllm-pool"), config.metrics_poll_s
        super().__init__(servers, settings, loop, poll_s=poll_s, on_change=self._changed)

    def open(
        self,
        prompts: Prompts,
        judge: Judge | None = None,
        *,
        scheduler: Scheduler | None = None,
        call_timeout_s: float | None = None,
    ) -> VllmBackend:
        """Open the backend of an episode; its clock starts now.

        Polls every server's metrics first, so that the episode's leave out what happened before.
        The backend that was opened before is closed.

        Args:
            prompts: makes a call's messages.
            judge: grades an answer, on a thread of its own; None: they are not graded.
            scheduler: of the episode; "fcfs" sends no priorities. Without it the pool's.
            call_timeout_s: time limit of a call, after which it may be sent again; None: that of
                the settings, after which it has failed.

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
        """Log that a server went up or down, and end requests to a sleeping one; on the loop."""
        alias = self.config.models[server].alias
        level = logging.INFO if up else logging.WARNING
        _log.log(level, "%s is %s", alias, "up" if up else f"down: {why}")
        if asleep:
            self.give_up(server, f"{alias} is down: {why}")


@dataclass(eq=False)
class VllmBackend:
    """The M servers of a pool during one episode; made by `VllmServers.open`."""

    servers: VllmServers
    beginning: Beginning
    prompts: Prompts
    judge: Judge | None
    episode: int
    priorities: bool
    call_timeout_s: float | None = None
    # On the loop: answers by query and node; calls under way; failures by query, node and phase.
    _answers: dict[int, dict[int, str]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _failures: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _open: dict[int, tuple[Call, float]] = field(default_factory=dict)  # in flight; when submitted
    _done: queue.SimpleQueue[Completion] = field(default_factory=queue.SimpleQueue)
    _closed: bool = False

    # The protocol, for the driver's thread

    def now_s(self) -> float:
        """Return the seconds since the backend was opened."""
        return time.monotonic() - self.beginning.at_s

    def submit(self, call: Call) -> None:
        """Hand a call over; a failure is part of its completion."""
        if not self._closed:
            self._open[call.id] = call, time.monotonic()
            if not self.servers.loop.call(self._start, call):
                self._finish(call, ChatResult(time.monotonic(), error="the pool is closed"), None)

    def wait(self, until_s: float | None) -> list[Completion]:
        """Wait for a completion, or until the time.

        KeyboardInterrupt leaves everything as it is. Returns at once without a time if no call is
        in flight.
        """
        done, left_s = [], None if until_s is None else max(until_s - self.now_s(), 0.0)
        blocks = until_s is not None or bool(self._open)  # a call is in `_done`, then not `_open`
        with contextlib.suppress(queue.Empty):
            done.append(self._done.get(blocks, left_s))
            while True:
                done.append(self._done.get_nowait())
        return sorted(done, key=lambda c: (c.finish_s, c.call))

    def telemetry(self) -> Telemetry:
        """Return the metrics of the last poll in this episode."""
        return self.servers.watcher.telemetry(self.beginning)

    def models_up(self) -> int:
        """Return the mask of the servers that answer and do not sleep."""
        return self.servers.watcher.up

    def close(self) -> None:
        """Cancel the calls in flight, and wait until each of them has ended and is in the log."""
        if self._closed:
            return
        self._closed = True
        self.servers.loop.run(cancel_all(self._tasks))
        for call, submit_s in list(self._open.values()):  # never begun
            self._finish(call, ChatResult(submit_s), None)

    # On the loop

    def _start(self, call: Call) -> None:
        task = asyncio.ensure_future(self._serve(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, call: Call) -> None:
        """Serve one call from its beginning to its completion."""
        _, submit_s = self._open[call.id]
        result, right = ChatResult(submit_s), None
        try:
            result = await self._ask(call, submit_s)
            if result.answered and call.phase != FINAL:
                self._answers.setdefault(call.query, {})[call.node] = result.text or ""
            elif result.answered:
                self._answers.pop(call.query, None)
                right = await self._grade(call, result.text or "")
        except asyncio.CancelledError:
            pass  # while it was graded: the answer is in the log
        except Exception as error:  # of the prompts, most likely: a bug must not end a run
            _log.exception("call %d failed", call.id)
            result.end("fault", type(error).__name__, str(error))
            result.text = None
        # The driver sends a failed call again, to another server if its own is down: after a pause,
        # which doubles.
        key = (call.query, call.node, call.phase)
        failures = self._failures.pop(key, 0)
        if self._retryable(result) and not result.answered:
            self._failures[key] = failures + 1
            pause_s = self.servers.settings.retry_wait_s * 2.0**failures * random.uniform(0.5, 1.5)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(min(pause_s, _PAUSE_S))
        self._finish(call, result, right)

    async def _ask(self, call: Call, submit_s: float) -> ChatResult:
        """Ask the server of a call, which was submitted at `submit_s` of the monotonic clock."""
        model, settings = self.servers.config.models[call.model], self.servers.settings
        texts = self._answers.get(call.query, {})
        answers = {node: texts[node] for node in call.sources or call.reads if node in texts}
        over_s = submit_s + (self.call_timeout_s or settings.call_s)
        try:
            room = model.server.max_model_len - call.max_tokens
            messages = self.prompts.messages(call, answers, room)
        except InfraMindError as error:
            return ChatResult(submit_s, status="too_long", error=str(error))
        left_s = max(over_s - time.monotonic(), 0.001)
        priority, name = self._priority(call), self._request_id(call)
        result = await self.servers.chat(
            call.model, messages, call.max_tokens, left_s, priority=priority, request_id=name
        )
        result.submit_s = submit_s
        return result

    async def _grade(self, call: Call, text: str) -> bool | None:
        """Return whether the answer is right; None: it could not be graded."""
        if self.judge is None:
            return None
        loop, judges = asyncio.get_running_loop(), self.servers.judges
        try:
            return await loop.run_in_executor(judges, self.judge, call.task, text)
        except Exception as error:
            _log.warning("call %d, task %d: not graded: %r", call.id, call.task, error)
        self.servers.ungraded += 1
        return None

    def _priority(self, call: Call) -> int | None:
        """Return a deadline in epoch microseconds, comparable between all clients of a server."""
        deadline_s = self.servers.epoch_s + self.beginning.at_s + call.priority
        return round(deadline_s * 1e6) if self.priorities else None

    def _request_id(self, call: Call) -> str:
        return f"{self.servers.run_id}-{self.episode}-{call.id}"

    def _retryable(self, result: ChatResult) -> bool:
        """Return whether another attempt at a call makes sense."""
        return result.retryable or (result.status == "timeout" and self.call_timeout_s is not None)

    def _finish(self, call: Call, result: ChatResult, right: bool | None) -> None:
        """Log and complete a call; it is completed even if logging fails."""
        result.finish_s = result.finish_s or time.monotonic()
        completion = completion_of(call, result, right, lambda at_s: at_s - self.beginning.at_s)
        completion = replace(completion, retryable=self._retryable(result))
        try:
            if self.servers.log is not None:
                record = log_record(
                    self._request_id(call),
                    self.servers.config.models[call.model].alias,
                    result,
                    self.servers.epoch_s,
                    error=result.reason,
                    priority=self._priority(call),
                    strategy=STRATEGIES[call.strategy],
                    max_tokens=call.max_tokens,
                    episode=self.episode,
                    call=call.id,
                    query=call.query,
                    task=call.task,
                    topology=(*TOPOLOGIES, CUSTOM)[min(call.topology, len(TOPOLOGIES))],
                    node=call.node,
                    phase=_PHASES[call.phase],
                    right=right,
                )
                self.servers.log.write(record)
        except Exception:
            _log.exception("call %d cannot be logged", call.id)
        if not self._closed:
            self._done.put(completion)
        self._open.pop(call.id, None)
