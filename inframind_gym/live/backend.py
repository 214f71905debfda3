"""Live vLLM servers as a `Backend`: one sweep over `VllmServers`, on the wall clock.

Calls are made on the servers' loop; the driver's thread only hands them over and waits for what
comes back. The answers of a query are kept until its deciding call has ended: they are in the
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
from typing import TYPE_CHECKING, Any, Final, Protocol

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatRequest, ChatResult
from inframind_gym.simulator.workflow.backend import Call, Completion, Telemetry
from inframind_gym.simulator.workflow.graphs import FINAL
from inframind_gym.simulator.workflow.topology import ROLES, STRATEGIES, TOPOLOGIES

if TYPE_CHECKING:
    from inframind_gym.live.servers import VllmServers
    from inframind_gym.live.watcher import Beginning

_log = logging.getLogger(__name__)
_ASK_S: Final = 0.2  # how often it is asked whether to go on waiting
_PHASES: Final = ("first", "second", "final")
# Shares of a model's room for prompts: estimates of a text's tokens can be too low.
_ROOM: Final = (1.0, 0.75, 0.5)

Judge = Callable[[int, str], bool]  # task (index into the run's tasks), answer -> right
CountTokens = Callable[[str], int]


class PromptMaker(Protocol):
    """Makes the messages of a call."""

    def messages(
        self,
        call: Call,
        answers: Mapping[int, str],
        limit_tokens: int,
        count_tokens: CountTokens | None,
    ) -> Sequence[Mapping[str, Any]]:
        """Messages of a call, of at most `limit_tokens` in all.

        Args:
            call: what is asked.
            answers: what the nodes have answered that wrote what the call reads (`call.sources`);
                without those that gave no answer.
            limit_tokens: room for the prompt.
            count_tokens: counts a text's tokens; None: estimate.

        Raises:
            InfraMindError: the prompt cannot be made so short.
        """
        ...


class VllmBackend:
    """Servers of M models for the length of one sweep; made by `VllmServers.open`."""

    def __init__(
        self,
        servers: VllmServers,
        beginning: Beginning,
        prompts: PromptMaker,
        judge: Judge | None,
        *,
        sweep: int,
        priorities: bool,
        judge_agents: bool,
        count_tokens: Sequence[CountTokens | None],
        on_answer: Callable[..., None] | None,
    ) -> None:
        self._servers = servers
        self._beginning = beginning
        self._prompts = prompts
        self._judge = judge
        self._sweep = sweep
        self._priorities = priorities
        self._judge_agents = judge_agents
        self._count_tokens = tuple(count_tokens)
        self._on_answer = on_answer
        self._answers: dict[int, dict[int, str]] = {}  # by query and node; on the loop
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by call; on the loop
        # Attempts at calls that failed, by query, node and phase.
        self._attempts: dict[tuple[int, int, int], int] = {}
        self._changed = threading.Condition()
        self._done: list[Completion] = []
        self._open: dict[int, tuple[Call, float]] = {}  # calls in flight and when they were made
        self._closed = False

    # The protocol, for the driver's thread

    def now_s(self) -> float:
        """Seconds since the backend was opened."""
        return time.monotonic() - self._beginning.at_s

    def submit(self, call: Call) -> None:
        """Hand a call over; what can be wrong with it is its completion's matter."""
        with self._changed:
            if self._closed:
                return
            self._open[call.id] = call, self.now_s()
        if not self._servers.loop.call(self._start, call):
            self._finish(call, ChatResult(time.monotonic(), error="the pool is closed"), None)

    def wait(self, until_s: float | None) -> list[Completion]:
        """Wait for a completion, or until the time.

        KeyboardInterrupt, and what the servers' `on_wait` raises, leave everything as it is.

        Without a time and with no call in flight there is nothing to wait for: returns at once.
        """
        while not self._wait_a_little(until_s):
            if self._servers.on_wait is not None:
                self._servers.on_wait()
        with self._changed:
            done, self._done = sorted(self._done, key=lambda c: (c.finish_s, c.call)), []
            return done

    def _wait_a_little(self, until_s: float | None) -> bool:
        """Wait, for `_ASK_S` at most; whether there is nothing more to wait for."""
        with self._changed:
            left_s = math.inf if until_s is None else until_s - self.now_s()
            if self._done or left_s <= 0 or (until_s is None and not self._open):
                return True
            self._changed.wait(min(left_s, _ASK_S))
            return False

    def telemetry(self) -> Telemetry:
        """The metrics as they were polled last in this sweep."""
        return self._servers.watcher.telemetry(self._beginning)

    def models_up(self) -> int:
        """The servers that answer and don't sleep."""
        return self._servers.watcher.up

    def close(self) -> None:
        """Cancel what is in flight and wait until it is: each of those calls is in the log."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        try:
            self._servers.loop.run(self._cancel())
        except RuntimeError:  # the servers' loop was stopped
            return
        for call, submit_s in list(self._open.values()):  # never begun
            self._finish(call, ChatResult(submit_s + self._beginning.at_s), None)

    # On the loop

    def _start(self, call: Call) -> None:
        task = asyncio.ensure_future(self._serve(call))
        self._tasks[call.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(call.id, None))

    async def _cancel(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, call: Call) -> None:
        """One call from its beginning to its completion."""
        _, submit_s = self._open[call.id]
        result = ChatResult(submit_s + self._beginning.at_s)
        right = None
        try:
            result = await self._ask(call, submit_s)
            if result.answered:
                self._remember(call, result.text or "")
                if self._on_answer is not None:
                    self._on_answer(call, result)
                if call.phase == FINAL or self._judge_agents:
                    right = await self._grade(call, result.text or "")
        except asyncio.CancelledError:
            pass  # while it was graded: the answer is in the log
        except Exception as error:  # of the prompts, most likely: a bug must not end a run
            _log.exception("call %d failed", call.id)
            result.status, result.error = "fault", f"{type(error).__name__}: {error}"
            result.text = None
        self._finish(call, result, right)

    async def _ask(self, call: Call, submit_s: float) -> ChatResult:
        """Ask its server; a prompt that turns out to be too long is cut further."""
        model, settings = self._servers.config.models[call.model], self._servers.settings
        room = model.server.max_model_len - call.max_tokens
        known = self._answers.get(call.query, {})
        writers = call.sources or call.reads
        answers = {node: known[node] for node in writers if node in known}
        over_s = submit_s + settings.limit_s(call.deadline_s - submit_s)
        result = ChatResult(submit_s + self._beginning.at_s)
        for share in _ROOM:
            try:
                messages = self._prompts.messages(
                    call, answers, int(share * room), self._count_tokens[call.model]
                )
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
                priority=self._priority(call) if self._priorities else None,
                seed=self._seed(call),
                request_id=self._request_id(call),
            )
            attempts = result.attempts
            result = await self._servers.client.chat(request)
            result.submit_s = submit_s + self._beginning.at_s
            result.attempts += attempts
            if result.status != "too_long":
                break
        return result

    def _priority(self, call: Call) -> int:
        """A deadline in epoch microseconds: comparable between all who use the servers."""
        return round((self._servers.epoch_s + self._beginning.at_s + call.priority) * 1e6)

    def _seed(self, call: Call) -> int | None:
        """A seed of its own for every call: those of one query would else answer alike."""
        base = self._servers.settings.seed
        if base is None:
            return None
        return zlib.crc32(f"{base}/{call.query}/{call.node}/{call.phase}".encode())

    def _request_id(self, call: Call) -> str:
        return f"{self._servers.run_id}-{self._sweep}-{call.id}"

    def _remember(self, call: Call, text: str) -> None:
        if call.phase == FINAL:
            self._answers.pop(call.query, None)
        else:
            self._answers.setdefault(call.query, {})[call.node] = text

    async def _grade(self, call: Call, text: str) -> bool | None:
        """Whether the answer is right; None where that cannot be told."""
        if self._judge is None:
            return None
        settings, began = self._servers.settings, asyncio.Event()
        verdict: asyncio.Future[bool] | None = None
        try:
            verdict = asyncio.get_running_loop().run_in_executor(
                self._servers.judges, self._judged, call.task, text, began
            )
            # Others may be graded before it; judges that never come to an end grade nothing.
            await asyncio.wait_for(began.wait(), settings.cap_s)
            return bool(await asyncio.wait_for(verdict, settings.judge_s))
        except TimeoutError:
            _log.warning("call %d: not graded in %g s", call.id, settings.judge_s)
        except Exception:
            _log.exception("call %d: its answer cannot be graded", call.id)
        finally:
            if verdict is not None:
                verdict.cancel()  # of no interest any more, if it has not begun
        self._servers.ungraded += 1
        return None

    def _judged(self, task: int, text: str, began: asyncio.Event) -> bool:
        """Ask the judge; on a thread of its own."""
        assert self._judge is not None
        self._servers.loop.call(began.set)
        return self._judge(task, text)

    def _finish(self, call: Call, result: ChatResult, right: bool | None) -> None:
        """Log the call and complete it, whatever comes of the logging."""
        completion = self._completion(call, result, right)
        try:
            if self._servers.log is not None:
                self._servers.log.write(self._record(call, result, right))
        except Exception:
            _log.exception("call %d cannot be logged", call.id)
        with self._changed:
            self._open.pop(call.id, None)
            if not self._closed:
                self._done.append(completion)
                self._changed.notify_all()

    def _retryable(self, call: Call, result: ChatResult) -> bool:
        """Whether the driver should send a call again; counts how often it was sent."""
        key = (call.query, call.node, call.phase)
        if result.answered or not result.retryable:
            self._attempts.pop(key, None)
            return result.retryable
        attempts = self._attempts.get(key, 0) + result.attempts
        self._attempts[key] = attempts
        return attempts < self._servers.settings.most_attempts

    def _completion(self, call: Call, result: ChatResult, right: bool | None) -> Completion:
        began_s = self._beginning.at_s
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
        """A line of the log (`log.py`)."""
        sent_s = result.sent_s
        return {
            "request_id": self._request_id(call),
            "model": self._servers.config.models[call.model].alias,
            "status": result.status,
            "input_toks": result.prompt_tokens,
            "output_toks": result.output_tokens,
            "arrival_time": None if sent_s is None else round(sent_s + self._servers.epoch_s, 6),
            "submit_ts": round(result.submit_s, 6),
            "sent_ts": _rounded(sent_s),
            "queued_ts": _rounded(result.queued_s),
            "scheduled_ts": _rounded(result.scheduled_s),
            "first_token_ts": _rounded(result.first_token_s),
            "last_token_ts": _rounded(result.last_token_s),
            "end_ts": round(result.finish_s or time.monotonic(), 6),
            "attempts": result.attempts,
            "priority": self._priority(call) if self._priorities else None,
            "error": result.error,
            "sweep": self._sweep,
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


def _rounded(time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s, 6)


def _name(names: Sequence[str], index: int) -> str | None:
    return names[index] if 0 <= index < len(names) else None
