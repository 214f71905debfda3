"""A request from admission to its last token: attempts, here and elsewhere, and what is noted.

The log has one line a request, however it ended, as that of the live environments
(`request_log.py`) and more. No text of a question, of an answer or of a key is written. `status` is
"whole" of an answer that was not streamed: its first token has no time. Calibrations of a pool
count it by its end, those of one model leave it out. Requests that were refused before they were
read have no line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
from starlette.types import Send

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatResult, ChatStream, StreamError, end_transfer, plausible
from inframind_gym.live.gateway.gateway import Gateway
from inframind_gym.live.gateway.request import CHAT, Attempt, Query
from inframind_gym.live.guard import RequestError
from inframind_gym.live.request_log import log_record
from inframind_gym.simulator.workflow.topology import STRATEGIES

JSON: Final = {"content-type": "application/json"}
EVENTS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # of nginx, should there be one before us
}
_PAUSE_S: Final = 0.4  # before a server that has failed a request is asked again; doubles
_END_S: Final = 1.0  # for the last event of a stream that broke off
_MOST_BYTES: Final = 64 << 20  # of an answer that is not streamed
_NO_CHOICES: Final = re.compile(b'"choices": ?\\[\\]')  # the event of the usage
_REFUSALS: Final = (400, 404, 413, 422)  # the request's fault, wherever it is sent
_TOO_LONG: Final = (b"maximum context length", b"maximum model length")


class ServerError(InfraMindError):
    """A server gave no answer; the message holds no address, and nothing of the answer."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Exchange:
    """One request on its way; without `send` of ASGI nobody gets the answer, which is in `text`."""

    def __init__(self, gateway: Gateway, query: Query, send: Send | None = None) -> None:
        self.gateway, self.query, self._send = gateway, query, send
        self.attempt: Attempt | None = None  # the last one
        self.text: str | None = None  # of a streamed answer that is whole
        self.http = 0  # status that the client got; 0: nothing yet
        self.complete = False  # the client got all of the answer
        self._attempts = 0
        self._status = "whole"  # of what no server answered
        self._error: str | None = None

    # What the client gets

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send status and headers to the client."""
        self.http = status
        if self._send is not None:
            pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body to the client; waits where it reads slowly."""
        self.complete = not more
        if self._send is not None:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send all of an answer to the client."""
        await self.start(status, headers | JSON | {"content-length": str(len(body))})
        await self.write(body, more=False)

    async def answer(self, play: Callable[[Exchange], Awaitable[None]] | None) -> None:
        """Answer the request, by `play` in place of a server.

        Errors are answers too. What came of it is logged and counted.
        """
        gateway, query = self.gateway, self.query
        try:
            await (self._carry() if play is None else play(self))
        except RequestError as error:
            self._status = "refused" if self._status == "whole" else self._status
            self._error = str(error)
            gateway.metrics.count("refused", error.code)
            if not self.http:
                id_ = {"x-request-id": query.request_id}
                await self.whole(error.status, error.headers | id_, error.content())
            else:  # the last event of an answer that has begun
                with contextlib.suppress(TimeoutError):  # it was the client who did not read
                    async with asyncio.timeout(_END_S):
                        await self.write(b"data: " + error.content() + b"\n\n", more=False)
        except asyncio.CancelledError:
            self._status, self._error, self.http = "cancelled", "the client went away", 499
            raise
        except Exception as fault:
            self._status, self._error, self.http = "fault", type(fault).__name__, 500
            raise
        finally:
            status, metrics = self.log(), gateway.metrics
            latency_s = (time.monotonic() - query.arrived_s) * gateway.config.speed
            answered = status in ("ok", "truncated", "whole")
            outcome = "answered" if answered else "cancelled" if status == "cancelled" else "failed"
            in_budget = "true" if answered and latency_s <= query.budget_s else "false"
            known = query.model if query.model in gateway.models else "unknown"
            metrics.count("queries", outcome, in_budget, query.tenant, known)
            if answered:
                metrics.observe("query_latency_seconds", latency_s)
                metrics.observe("cost_ratio", latency_s / query.budget_s)

    def log(self) -> str:
        """Write the request's line into the log; return what became of it."""
        status, query, attempt = self._status, self.query, self.attempt
        if self.gateway.log is None:
            return status
        strategy = None if attempt is None else attempt.strategy
        line = log_record(
            query.request_id,
            None if attempt is None else attempt.alias,
            ChatResult(query.arrived_s) if attempt is None else attempt.result,
            self.gateway.epoch_s,
            priority=None if attempt is None else attempt.body.get("priority"),
            strategy=None if strategy is None else STRATEGIES[strategy],
            max_tokens=query.max_tokens,
            asked=query.model[:100],
            tenant=query.tenant,
            domain=query.domain,
            stream=query.stream,
            budget_s=query.budget_s,
            predicted_s=None if attempt is None else round(attempt.predicted_s, 3),
            http=self.http,
        )
        line |= {"status": status, "error": self._error, "attempts": self._attempts}
        self.gateway.log.write(line | {"submit_ts": round(query.arrived_s, 6)})
        return status

    # Servers

    async def _carry(self) -> None:
        """Try servers until one answers; a RequestError where none did."""
        excluded = 0
        failed: RequestError | None = None
        while failed is None or self._attempts < self.gateway.config.limits.attempts:
            try:
                attempt = self.gateway.choose(self.query, excluded, admit=failed is None)
            except RequestError as refused:
                raise failed or refused from None
            if self.attempt is not None:
                self.gateway.metrics.count("call_retries", self.attempt.alias)
            if excluded >> attempt.server & 1:
                await asyncio.sleep(_PAUSE_S * 2.0**self._attempts)
            try:
                await self.make(attempt)
                return
            except ServerError as error:
                excluded |= 1 << attempt.server
                failed = RequestError(
                    503 if error.reason in ("busy", "down") else 502,
                    f"server_{error.reason}",
                    f"{attempt.alias} failed after {self._attempts} attempts: {error}",
                    retry_after_s=1.0,
                    headers=self._headers(attempt),
                )
                if self.http:  # part of a stream was sent
                    break
        raise failed

    async def make(self, attempt: Attempt) -> None:
        """Make an attempt: send the request to a server, and its answer to the client.

        Raises:
            ServerError: there is no answer; part of a stream may have been sent (`http`).
            RequestError: the server refuses the request.
        """
        gateway, query, result, answered = self.gateway, self.query, attempt.result, False
        left_s = gateway.config.limits.answer_s - (time.monotonic() - query.arrived_s)
        over_s = asyncio.get_running_loop().time() + max(left_s, 0.001)
        self._attempts, self.attempt = self._attempts + 1, attempt
        result.submit_s = result.sent_s = time.monotonic()
        result.attempts = 1
        try:
            async with asyncio.timeout_at(over_s) as attempt.timer:
                with gateway.under_way(attempt):
                    async with gateway.session.post(
                        gateway.addresses[attempt.server].url + CHAT,
                        data=json.dumps(attempt.body).encode(),
                        headers=JSON | {"X-Request-Id": query.request_id},
                        allow_redirects=False,
                    ) as response:
                        if response.status == 200 and query.stream:
                            await self._pass_on(response, attempt, over_s)
                        else:
                            await self._read(response, attempt)
            answered = True
            self._status, self._error = result.status if query.stream else "whole", result.error
        except (ServerError, StreamError, aiohttp.ClientError, OSError) as error:
            failure = _failure(error, attempt)
            if failure.reason in ("unreachable", "error", "garbled"):
                gateway.watcher.suspect(attempt.server)
            self._status, self._error = failure.reason, str(failure)
            raise failure from None
        finally:
            self._count(attempt, answered=answered)

    def _count(self, attempt: Attempt, *, answered: bool) -> None:
        metrics, result, speed = self.gateway.metrics, attempt.result, self.gateway.config.speed
        alias = attempt.alias
        cut = "truncated" if result.status == "truncated" else "answered"
        metrics.count("calls", alias, cut if answered else "failed")
        if answered:
            took_s = time.monotonic() - result.submit_s
            metrics.observe("call_latency_seconds", took_s * speed, alias)
            metrics.count("tokens", alias, "prompt", by=result.prompt_tokens or 0)
            metrics.count("tokens", alias, "output", by=result.output_tokens or 0)
        if result.first_token_s is not None:
            first_s = result.first_token_s - self.query.arrived_s
            metrics.observe("time_to_first_token_seconds", first_s * speed)

    def _headers(self, attempt: Attempt) -> dict[str, str]:
        """Return the headers that say what was decided."""
        strategy = attempt.strategy
        return {
            "x-request-id": self.query.request_id,
            "x-inframind-model": attempt.alias,
            "x-inframind-strategy": "-" if strategy is None else STRATEGIES[strategy],
            "x-inframind-predicted-s": f"{attempt.predicted_s:.2f}",
            "x-inframind-attempt": str(self._attempts),
        }

    async def _pass_on(
        self, response: aiohttp.ClientResponse, attempt: Attempt, over_s: float
    ) -> None:
        """Pass a stream on, from its first token: a server that fails before it can be replaced."""
        query, loop, rest, timer = self.query, asyncio.get_running_loop(), b"", attempt.timer
        assert timer is not None
        stall_s = self.gateway.config.limits.stall_s
        most = self.gateway.pool.models[attempt.server].server.max_model_len
        stream = ChatStream((query.max_tokens or most) * query.choices)
        try:
            async for data in response.content.iter_any():
                stream.feed(data, time.monotonic())
                events, mark, rest = (rest + data).rpartition(b"\n\n")
                events += mark
                if stream.error is not None:
                    raise ServerError("aborted", "the server gave it up")
                if _impossible(stream.usage):
                    raise ServerError("garbled", "the answer has impossible numbers of tokens")
                if stream.first_token_s is None and not stream.done:
                    rest = events + rest
                    continue
                if not attempt.started:
                    if stream.finish_reason in ("abort", "error"):
                        raise ServerError("aborted", "the server gave it up")
                    if stream.finish_reason is None and stream.first_token_s is None:
                        raise ServerError("broken", "the answer has no token")
                    attempt.started = True
                    await self.start(200, self._headers(attempt) | EVENTS)
                if not query.shows_usage and _NO_CHOICES.search(events):  # we asked for it
                    every = events.split(b"\n\n")
                    shown = (e for e in every if not (b'"usage"' in e and _NO_CHOICES.search(e)))
                    events = b"\n\n".join(shown)
                if events:
                    await self.write(events)
                timer.reschedule(min(loop.time() + stall_s, over_s))
                if stream.done:
                    break
            if not stream.done:
                raise ServerError("broken", "the answer stopped short")
            await self.write(rest, more=False)
            timer.reschedule(None)
            await end_transfer(response)
        finally:
            stream.write(attempt.result)
            self.text = attempt.result.text
            if attempt.result.error is not None:  # nothing of a server's own words
                attempt.result.error = "the answer broke off"

    async def _read(self, response: aiohttp.ClientResponse, attempt: Attempt) -> None:
        """Read a whole answer, and pass it on; or say whose fault an error is."""
        data, code = bytearray(), response.status
        async for part in response.content.iter_any():
            data += part
            if len(data) > _MOST_BYTES:
                raise ServerError("garbled", f"the answer has more than {_MOST_BYTES} bytes")
        if code in _REFUSALS:
            words = f"{attempt.alias} refuses this request (HTTP {code}): check its fields"
            name, self._status = "server_refused", "rejected"
            if any(phrase in data for phrase in _TOO_LONG):
                code, name, self._status = 400, "context_length_exceeded", "too_long"
                most = self.gateway.pool.models[attempt.server].server.max_model_len
                words = f"the prompt is longer than {attempt.alias} takes: {most} tokens"
            raise RequestError(code, name, words, headers=self._headers(attempt))
        if code != 200:
            reason = "busy" if code in (429, 503) else "error"
            raise ServerError(reason, f"HTTP {code}")
        try:
            answer = json.loads(data)
            reasons = {each.get("finish_reason") for each in answer["choices"]}
            usage = answer.get("usage") or {}
            if not reasons or _impossible(usage):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ServerError("garbled", "the answer is garbled") from None
        if reasons & {"abort", "error"}:
            raise ServerError("aborted", "the server gave it up")
        attempt.result.prompt_tokens = usage.get("prompt_tokens")
        attempt.result.output_tokens = usage.get("completion_tokens")
        attempt.result.status = "truncated" if "length" in reasons else "ok"
        await self.whole(200, self._headers(attempt), bytes(data))


def _failure(error: Exception, attempt: Attempt) -> ServerError:
    """Return the failure of an attempt, with nothing of the answer in it."""
    if isinstance(error, ServerError):
        return error
    if isinstance(error, StreamError):
        words, _, _ = str(error).partition(": ")  # the rest quotes the answer
        return ServerError("garbled", words)
    if isinstance(error, TimeoutError) and attempt.timer is not None and attempt.timer.expired():
        if attempt.ended:
            return ServerError("down", "its server went down")
        return ServerError("timeout", "no answer in time")
    reason = "unreachable" if attempt.result.first_token_s is None else "broken"
    number = getattr(error, "errno", None)
    return ServerError(reason, os.strerror(number) if number else type(error).__name__)


def _impossible(usage: dict[str, Any]) -> bool:
    """Return whether a server reports numbers of tokens that cannot be."""
    counts = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    return any(count is not None and plausible(count) is None for count in counts)
