"""Live vLLM servers as a `Backend`: one episode over `VllmServers`, on the wall clock.

Calls are made on the servers' loop; the driver's thread only hands them over and waits for
completions. The answers of a query are kept until its deciding call has ended: they are in the
prompts of the calls that follow.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatRequest, ChatResult
from inframind_gym.live.loop import cancel_all
from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.topology import FINAL, STRATEGIES, TOPOLOGIES

if TYPE_CHECKING:
    from inframind_gym.live.servers import VllmServers
    from inframind_gym.live.watcher import Beginning

_log = logging.getLogger(__name__)
_WAIT_S: Final = 0.2  # between two calls of `on_wait`
_PHASES: Final = ("first", "second", "final")
# Shares of a model's room for prompts: estimates of a text's tokens can be too low.
_ROOM: Final = (1.0, 0.75, 0.5)

Judge = Callable[[int, str], bool]  # task (index into the run's tasks), answer -> right


class PromptMaker(Protocol):
    """Makes the messages of a call."""

    def messages(
        self, call: Call, answers: Mapping[int, str], limit_tokens: int
    ) -> Sequence[Mapping[str, Any]]:
        """Return the messages of a call, of at most `limit_tokens` in all.

        Args:
            call: the call.
            answers: by node, of the nodes whose answers the call reads (`call.sources`); without
                those that gave none.
            limit_tokens: room for the prompt.

        Raises:
            InfraMindError: the prompt cannot be made so short.
        """
        ...


@dataclass(eq=False)
class VllmBackend:
    """Servers of M models for the length of one episode; made by `VllmServers.open`.

    Args:
        servers: the connections.
        beginning: of the episode.
        prompts: makes the calls' messages.
        judge: grades answers; None: they are not graded.
        episode: its number, in the log.
        priorities: send priorities.
        call_timeout_s: limit of every call, which can then be sent again; None: limits follow from
            the budget that is left, and a call that has reached its own is not sent again.
    """

    servers: VllmServers
    beginning: Beginning
    prompts: PromptMaker
    judge: Judge | None
    episode: int
    priorities: bool
    call_timeout_s: float | None = None
    _answers: dict[int, dict[int, str]] = field(default_factory=dict)  # by query, node; on the loop
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)  # by call; on the loop
    # Attempts at calls that failed, by query, node and phase.
    _attempts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _done: list[Completion] = field(default_factory=list)
    _open: dict[int, tuple[Call, float]] = field(default_factory=dict)  # in flight; when submitted
    _closed: bool = False

    # The protocol, for the driver's thread

    def now_s(self) -> float:
        """Return the seconds since the backend was opened."""
        return time.monotonic() - self.beginning.at_s

    def submit(self, call: Call) -> None:
        """Hand a call over; a failure is part of its completion."""
        with self._changed:
            if self._closed:
                return
            self._open[call.id] = call, self.now_s()
        if not self.servers.loop.call(self._start, call):
            self._finish(call, ChatResult(time.monotonic(), error="the pool is closed"), None)

    def wait(self, until_s: float | None) -> list[Completion]:
        """Wait for a completion, or until the time.

        KeyboardInterrupt, and errors of the servers' `on_wait`, leave everything as it is.

        Without a time and with no call in flight there is nothing to wait for: returns at once.
        """
        while True:
            with self._changed:
                left_s = math.inf if until_s is None else until_s - self.now_s()
                if self._done or left_s <= 0 or (until_s is None and not self._open):
                    done, self._done = sorted(self._done, key=lambda c: (c.finish_s, c.call)), []
                    return done
                self._changed.wait(min(left_s, _WAIT_S))
            if self.servers.on_wait is not None:
                self.servers.on_wait()

    def telemetry(self) -> Telemetry:
        """Return the metrics of the last poll in this episode."""
        return self.servers.watcher.telemetry(self.beginning)

    def models_up(self) -> int:
        """Return the mask of the servers that answer and do not sleep."""
        return self.servers.watcher.up

    def close(self) -> None:
        """Cancel what is in flight and wait until it is: each of those calls is in the log."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        try:
            self.servers.loop.run(self._cancel())
        except RuntimeError:  # the servers' loop was stopped
            return
        for call, submit_s in list(self._open.values()):  # never begun
            self._finish(call, ChatResult(submit_s + self.beginning.at_s), None)

    # On the loop

    def _start(self, call: Call) -> None:
        task = asyncio.ensure_future(self._serve(call))
        self._tasks[call.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(call.id, None))

    async def _cancel(self) -> None:
        await cancel_all(self._tasks.values())

    async def _serve(self, call: Call) -> None:
        """Serve one call from its beginning to its completion."""
        _, submit_s = self._open[call.id]
        result = ChatResult(submit_s + self.beginning.at_s)
        right = None
        try:
            result = await self._ask(call, submit_s)
            if result.answered:
                text = result.text or ""
                if call.phase == FINAL:
                    self._answers.pop(call.query, None)
                    right = await self._grade(call, text)
                else:
                    self._answers.setdefault(call.query, {})[call.node] = text
        except asyncio.CancelledError:
            pass  # while it was graded: the answer is in the log
        except Exception as error:  # of the prompts, most likely: a bug must not end a run
            _log.exception("call %d failed", call.id)
            result.status, result.error = "fault", f"{type(error).__name__}: {error}"
            result.text = None
        self._finish(call, result, right)

    async def _ask(self, call: Call, submit_s: float) -> ChatResult:
        """Ask its server; a prompt that turns out to be too long is cut further."""
        model, settings = self.servers.config.models[call.model], self.servers.settings
        room = model.server.max_model_len - call.max_tokens
        known = self._answers.get(call.query, {})
        answers = {node: known[node] for node in call.sources or call.reads if node in known}
        over_s = submit_s + (self.call_timeout_s or settings.limit_s(call.deadline_s - submit_s))
        result = ChatResult(submit_s + self.beginning.at_s)
        for share in _ROOM:
            try:
                messages = self.prompts.messages(call, answers, int(share * room))
            except InfraMindError as error:
                result.status, result.error = "too_long", result.error or str(error)
                result.finish_s = time.monotonic()
                break
            request = ChatRequest(
                server=call.model,
                messages=messages,
                max_tokens=call.max_tokens,
                limit_s=max(over_s - self.now_s(), 0.001),
                rank=call.priority,
                priority=self._priority(call),
                # With a common seed the calls of a query would answer alike.
                seed=None
                if settings.seed is None
                else zlib.crc32(f"{settings.seed}/{call.query}/{call.node}/{call.phase}".encode()),
                request_id=self._request_id(call),
            )
            attempts = result.attempts
            result = await self.servers.client.chat(request)
            result.submit_s = submit_s + self.beginning.at_s
            result.attempts += attempts
            if result.status != "too_long":
                break
        return result

    def _priority(self, call: Call) -> int | None:
        """Return a deadline in epoch microseconds: comparable between all users of the servers."""
        if not self.priorities:
            return None
        return round((self.servers.epoch_s + self.beginning.at_s + call.priority) * 1e6)

    def _request_id(self, call: Call) -> str:
        return f"{self.servers.run_id}-{self.episode}-{call.id}"

    async def _grade(self, call: Call, text: str) -> bool | None:
        """Return whether the answer is right; None: it could not be graded."""
        judge, settings, began = self.judge, self.servers.settings, asyncio.Event()
        if judge is None:
            return None

        def graded() -> bool:  # on a thread
            self.servers.loop.call(began.set)
            return judge(call.task, text)

        verdict: asyncio.Future[bool] | None = None
        try:
            verdict = asyncio.get_running_loop().run_in_executor(self.servers.judges, graded)
            # Others may be graded before it; judges that never come to an end grade nothing.
            await asyncio.wait_for(began.wait(), settings.cap_s)
            return bool(await asyncio.wait_for(verdict, settings.judge_s))
        except TimeoutError:
            _log.warning("call %d: not graded in %g s", call.id, settings.judge_s)
        except InfraMindError as error:  # of the task, not of the answer
            if call.task not in self.servers.ungradable:
                self.servers.ungradable.add(call.task)
                _log.error("task %d: its answers cannot be graded: %s", call.task, error)
        except Exception:
            _log.exception("call %d: its answer cannot be graded", call.id)
        finally:
            if verdict is not None:
                verdict.cancel()  # of no interest any more, if it has not begun
        self.servers.ungraded += 1
        return None

    def _finish(self, call: Call, result: ChatResult, right: bool | None) -> None:
        """Complete the call, whatever comes of logging it."""
        completion = self._completion(call, result, right)
        try:
            if self.servers.log is not None:
                self.servers.log.write(self._record(call, result, right))
        except Exception:
            _log.exception("call %d cannot be logged", call.id)
        with self._changed:
            self._open.pop(call.id, None)
            if not self._closed:
                self._done.append(completion)
                self._changed.notify_all()

    def _retryable(self, call: Call, result: ChatResult) -> bool:
        """Return whether the driver should send a call again; count the attempts at it."""
        key = (call.query, call.node, call.phase)
        timed_out = result.status == "timeout" and self.call_timeout_s is not None
        retryable = result.retryable or timed_out
        if result.answered or not retryable:
            self._attempts.pop(key, None)
            return retryable
        self._attempts[key] = self._attempts.get(key, 0) + result.attempts
        return self._attempts[key] < self.servers.settings.most_attempts

    def _completion(self, call: Call, result: ChatResult, right: bool | None) -> Completion:
        began_s = self.beginning.at_s
        tokens = result.output_tokens if result.output_tokens is not None else result.pieces
        return Completion(
            call=call.id,
            submit_s=result.submit_s - began_s,
            first_token_s=_since(result.first_token_s, began_s),
            finish_s=(result.finish_s or time.monotonic()) - began_s,
            output_tokens=tokens if result.answered else 0,
            truncated=result.status == "truncated",
            failed=not result.answered,
            retryable=self._retryable(call, result),
            text=result.text,
            right=right if result.answered else False,
            prompt_tokens=result.prompt_tokens,
            admitted_s=_since(result.scheduled_s, began_s),
        )

    def _record(self, call: Call, result: ChatResult, right: bool | None) -> dict[str, Any]:
        """Return a line of the log (`request_log.py`)."""
        sent_s = result.sent_s
        times_s = {
            "submit_ts": result.submit_s,
            "sent_ts": sent_s,
            "queued_ts": result.queued_s,
            "scheduled_ts": result.scheduled_s,
            "first_token_ts": result.first_token_s,
            "last_token_ts": result.last_token_s,
            "end_ts": result.finish_s or time.monotonic(),
            "arrival_time": None if sent_s is None else sent_s + self.servers.epoch_s,
        }
        return {
            "request_id": self._request_id(call),
            "model": self.servers.config.models[call.model].alias,
            "status": result.status,
            "input_toks": result.prompt_tokens,
            "output_toks": result.output_tokens,
            **{name: None if s is None else round(s, 6) for name, s in times_s.items()},
            "attempts": result.attempts,
            "priority": self._priority(call),
            "error": result.error,
            "episode": self.episode,
            "call": call.id,
            "query": call.query,
            "task": call.task,
            "topology": _name(TOPOLOGIES, call.topology),
            "node": call.node,
            "phase": _PHASES[call.phase],
            "role": _name([role.name for role in ROLES], call.role),
            "strategy": _name(STRATEGIES, call.strategy),
            "max_tokens": call.max_tokens,
            "right": right,
        }


def _since(time_s: float | None, began_s: float) -> float:
    return math.nan if time_s is None else time_s - began_s


def _name(names: Sequence[str], index: int) -> str | None:
    return names[index] if 0 <= index < len(names) else None
