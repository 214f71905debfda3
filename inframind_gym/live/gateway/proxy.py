"""A request from admission to its last token: attempts, here and elsewhere, and what is noted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from starlette.types import Send

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatResult, ChatStream, StreamError, plausible_tokens
from inframind_gym.live.gateway.gateway import AUTO, Choice, Gateway
from inframind_gym.live.gateway.request import CHAT, Query, log_line
from inframind_gym.live.guard import RequestError
from inframind_gym.simulator.workflow.topology import STRATEGIES, STRATEGY_INSTRUCTIONS

JSON: Final = {"content-type": "application/json"}
EVENTS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # of nginx, should there be one before us
}
_PAUSE_S: Final = 0.2  # before a server that has failed a request is asked again; doubles
_SPARED: Final = 6  # attempts that do not count, because their servers went down
_END_S: Final = 1.0  # for the end of a transfer whose answer is complete
_MOST_BYTES: Final = 64 << 20  # of an answer that is not streamed
_NO_CHOICES: Final = (b'"choices":[]', b'"choices": []')
_REFUSALS: Final = (400, 404, 413, 422)  # the request's fault, wherever it is sent
_TOO_LONG: Final = (b"maximum context length", b"maximum model length")
_COUNTS: Final = ("prompt_tokens", "completion_tokens")
_AS_THEY_ARE: Final = ("tools", "response_format", "structured_outputs")  # answers to programs


class ServerError(InfraMindError):
    """A server gave no answer.

    Args:
        reason: one of a few words, for metrics.
        message: in words, for clients and logs: without addresses, and nothing of the answer.
        healthy: it says nothing of the server's health.
    """

    def __init__(self, reason: str, message: str, *, healthy: bool = False) -> None:
        super().__init__(message)
        self.reason, self.healthy = reason, healthy


@dataclass(slots=True, eq=False)
class Attempt:
    """A request at a server."""

    choice: Choice
    timer: asyncio.Timeout
    over_s: float  # on the loop's clock: the limit of the whole answer
    result: ChatResult = field(default_factory=lambda: ChatResult(time.monotonic()))
    ended: bool = False  # its server went down
    started: bool = False  # the client has got part of the answer

    def end(self) -> None:
        """End it as failed; on its loop."""
        if not self.timer.expired():
            self.ended = True
            self.timer.reschedule(0.0)


class ClientAnswer:
    """The answer that a client gets; counts as started with its first byte.

    Args:
        send: of ASGI.
        abort: closes the connection at once.
    """

    def __init__(self, send: Send, abort: Callable[[], None]) -> None:
        self._send, self._abort = send, abort
        self.status = 0  # 0: not started
        self.complete = False

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send all of it."""
        await self.start(status, headers | {"content-length": str(len(body))})
        await self.write(body, more=False)

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send status and headers."""
        self.status = status
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body; waits for clients that read slowly."""
        self.complete = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def fail(self, error: RequestError, request_id: str) -> None:
        """Send an error: as the answer, or as the last event of one that has begun."""
        if not self.status:
            headers = JSON | error.headers | {"x-request-id": request_id}
            await self.whole(error.status, headers, error.content())
            return
        try:
            async with asyncio.timeout(_END_S):
                await self.write(b"data: " + error.content() + b"\n\n", more=False)
        except TimeoutError:  # it was the client who did not read
            self._abort()


class Exchange:
    """One request on its way.

    Args:
        gateway: its servers.
        query: the request.
        out: the client.

    Attributes:
        attempt: the last one; None before the first.
        text: of a streamed answer that is whole.
    """

    def __init__(self, gateway: Gateway, query: Query, out: ClientAnswer) -> None:
        self.gateway, self.query, self.out = gateway, query, out
        self.attempt: Attempt | None = None
        self.text: str | None = None
        self._attempts = 0
        self._status: str | None = None
        self._error: str | None = None
        self._http = 0

    async def answer(self, team: Callable[[Query, ClientAnswer], Awaitable[None]] | None) -> None:
        """Answer the request. Errors are answers too; what came of it is logged and counted.

        Args:
            team: answers it in place of a server.
        """
        gateway, query = self.gateway, self.query
        try:
            if not query.tenant.may_ask(query.model):
                raise RequestError(403, "model_not_allowed", "this key may not ask for that model")
            query.tenant.enter()
            try:
                await (self._carry() if team is None else team(query, self.out))
            finally:
                query.tenant.parallel -= 1
        except RequestError as refusal:
            self._status, self._error = self._status or "refused", str(refusal)
            self._http = self.out.status or refusal.status
            gateway.metrics.count("refused", refusal.code)
            await self.out.fail(refusal, query.request_id)
        except asyncio.CancelledError:
            self._status, self._error, self._http = "cancelled", "the client went away", 499
            raise
        except Exception as error:
            self._status, self._error, self._http = "fault", type(error).__name__, 500
            raise
        finally:
            status = self.log()
            latency_s = (time.monotonic() - query.arrived_s) * gateway.config.speed
            answered = status in ("ok", "truncated", "whole")
            outcome = "answered" if answered else "cancelled" if status == "cancelled" else "failed"
            in_budget = "true" if answered and latency_s <= query.budget_s else "false"
            known = query.model if query.model in gateway.models else "unknown"
            gateway.metrics.count("queries", outcome, in_budget, query.tenant.config.name, known)
            if answered:
                gateway.metrics.observe("query_latency_seconds", latency_s)
                gateway.metrics.observe("cost_ratio", latency_s / query.budget_s)

    def log(self) -> str:
        """Write the request's line into the log; return what became of it."""
        status = self._status or "ok"
        if status in ("ok", "truncated") and (self.attempt is None or not self.query.stream):
            status = "whole"
        if self.gateway.log is not None:
            ended = {"status": status, "http": self._http or self.out.status, "error": self._error}
            ended["attempts"] = self._attempts
            epoch_s = self.gateway.epoch_s
            line = log_line(self.query, self.attempt, time.monotonic(), epoch_s, **ended)
            self.gateway.log.write(line)
        return status

    async def _carry(self) -> None:
        """Try servers until one answers.

        Servers that go down take all that waits with them: this is not held against a request, as
        long as it is not one that brings them down.

        Raises:
            RequestError: none did.
        """
        excluded, spared, most = 0, 0, self.gateway.config.limits.attempts
        failed: RequestError | None = None
        while self._attempts < most + spared:
            try:
                choice = self.gateway.choose(self.query, excluded, admit=not self._attempts)
            except RequestError as refused:
                raise failed or refused from None
            if self.attempt is not None:
                self.gateway.metrics.count("call_retries", self.attempt.choice.alias)
            if excluded >> choice.server & 1:
                await asyncio.sleep(_PAUSE_S * 2.0 ** (self._attempts + 1))
            try:
                await self.try_server(choice)
                return
            except ServerError as error:
                excluded |= 1 << choice.server
                spared += error.reason == "down" and spared < _SPARED
                failed = RequestError(
                    503 if error.reason in ("busy", "down") else 502,
                    f"server_{error.reason}",
                    f"{choice.alias} failed after {self._attempts} attempts: {error}",
                    retry_after_s=1.0,
                    headers=self._headers(choice),
                )
                if self.out.status:
                    raise failed from None
        assert failed is not None
        raise failed

    async def try_server(self, choice: Choice) -> None:
        """Make one attempt.

        Raises:
            ServerError: there is no answer; part of a stream may have been sent (`out.status`).
            RequestError: the server refuses the request.
        """
        gateway, ok = self.gateway, None
        left_s = gateway.config.limits.answer_s - (time.monotonic() - self.query.arrived_s)
        over_s = asyncio.get_running_loop().time() + max(left_s, 0.001)
        self._attempts += 1
        try:
            async with asyncio.timeout_at(over_s) as timer:
                self.attempt = attempt = Attempt(choice, timer, over_s)
                gateway.begin(attempt)
                try:
                    await self._send(attempt)
                    ok = True
                except ServerError as failure:
                    ok = None if failure.healthy else False
                    raise
                finally:
                    if timer.expired() and not attempt.ended and not attempt.started:
                        ok = False
                    gateway.end(attempt, ok)
                    self._count(attempt, answered=ok is True)
        except (TimeoutError, ServerError) as failure:
            if isinstance(failure, ServerError):
                error = failure
            elif attempt.ended:
                error = ServerError("down", "its server went down")
            else:
                error = ServerError("timeout", "no answer in time")
            if error.reason in ("unreachable", "error", "garbled"):
                gateway.watcher.suspect(choice.server)
            self._status, self._error = error.reason, str(error)
            raise error from None
        self._status, self._error = attempt.result.status, attempt.result.error

    async def _send(self, attempt: Attempt) -> None:
        """Send the request to a server, and its answer to the client; raises as `try_server`."""
        query, choice, result = self.query, attempt.choice, attempt.result
        result.sent_s, result.attempts = time.monotonic(), 1
        try:
            async with self.gateway.session.post(
                self.gateway.addresses[choice.server].url + query.path,
                data=json.dumps(self._body(choice)).encode(),
                headers={"Content-Type": "application/json", "X-Request-Id": query.request_id},
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    await self._refuse(response, choice)
                elif query.stream:
                    model = self.gateway.pool.models[choice.server]
                    tokens = query.max_tokens or model.server.max_model_len
                    stream = ChatStream(tokens * query.choices)
                    try:
                        await self._stream(response, attempt, stream)
                    finally:
                        stream.write(result)
                        self.text = result.text
                        if result.error is not None:  # nothing of a server's own words
                            result.error = "the answer broke off"
                else:
                    await self._whole(response, attempt)
        except StreamError as error:
            words, _, _ = str(error).partition(": ")  # the rest quotes the answer
            raise ServerError("garbled", words) from None
        except (aiohttp.ClientError, OSError) as error:
            reason = "unreachable" if result.first_token_s is None else "broken"
            number = getattr(error, "errno", None)
            words = os.strerror(number) if number else type(error).__name__
            raise ServerError(reason, words) from None

    def _body(self, choice: Choice) -> dict[str, Any]:
        """Return what the server is sent."""
        query, config = self.query, self.gateway.config
        body = {**query.body, "model": self.gateway.addresses[choice.server].model}
        if choice.priority is not None:
            body["priority"] = choice.priority
        if query.stream:
            options = query.body.get("stream_options") or {}
            body["stream_options"] = {**options, "include_usage": True}
        if query.model != AUTO:
            return body
        if query.max_tokens is None:
            body["max_tokens"] = self.gateway.pool.max_output_tokens
        plain = query.path == CHAT and not any(name in body for name in _AS_THEY_ARE)
        if choice.strategy is not None and plain and config.strategies == "prompt":
            instruction = STRATEGY_INSTRUCTIONS[STRATEGIES[choice.strategy]]
            first, *others = body["messages"]
            if first.get("role") == "system" and isinstance(first.get("content"), str):
                first = {**first, "content": f"{first['content']}\n\n{instruction}"}
                body["messages"] = [first, *others]
            else:
                system = {"role": "system", "content": instruction}
                body["messages"] = [system, first, *others]
        return body

    def _headers(self, choice: Choice) -> dict[str, str]:
        """Return the headers that say what was decided."""
        waited_ms = 1e3 * (time.monotonic() - self.query.arrived_s)
        return {
            "x-request-id": self.query.request_id,
            "x-inframind-model": choice.alias,
            "x-inframind-strategy": "-" if choice.strategy is None else STRATEGIES[choice.strategy],
            "x-inframind-plan": "one call",
            "x-inframind-queue": str(choice.queue_req),
            "x-inframind-predicted-s": f"{choice.predicted_s:.2f}",
            "x-inframind-attempt": str(self._attempts),
            "x-inframind-overhead-ms": f"{waited_ms:.2f}",
            **self.query.tenant.headers(),
        }

    async def _stream(
        self, response: aiohttp.ClientResponse, attempt: Attempt, stream: ChatStream
    ) -> None:
        """Pass a stream on, event by event.

        Nothing is sent before the first token: a server that fails until then can be replaced.
        """
        out, loop, rest = self.out, asyncio.get_running_loop(), b""
        stall_s = self.gateway.config.limits.stall_s
        async for data in response.content.iter_any():
            stream.feed(data, time.monotonic())
            events, mark, rest = (rest + data).rpartition(b"\n\n")
            events += mark
            if stream.error is not None:
                raise ServerError("aborted", "the server gave it up")
            if not all(plausible_tokens(stream.usage.get(name)) for name in _COUNTS):
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
                await out.start(200, self._headers(attempt.choice) | EVENTS)
            if not self.query.shows_usage and any(empty in events for empty in _NO_CHOICES):
                # The event of the usage, which the gateway asked for and the client did not.
                shown = [
                    event
                    for event in events.split(b"\n\n")
                    if b'"usage"' not in event or not any(empty in event for empty in _NO_CHOICES)
                ]
                events = b"\n\n".join(shown)
            if events:
                await out.write(events)
            attempt.timer.reschedule(min(loop.time() + stall_s, attempt.over_s))
            if stream.done:
                break
        if not stream.done:
            raise ServerError("broken", "the answer stopped short")
        await out.write(rest, more=False)
        attempt.timer.reschedule(None)
        # The rest is the end of the transfer: with it, the connection can be used again.
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(_END_S):
                await response.content.read(1)

    async def _whole(self, response: aiohttp.ClientResponse, attempt: Attempt) -> None:
        data, result = await _read(response), attempt.result
        try:
            answer = json.loads(data)
            reasons = {choice.get("finish_reason") for choice in answer["choices"]}
            usage = answer.get("usage") or {}
            tokens = [usage.get(name) for name in _COUNTS]
            if not reasons or not all(map(plausible_tokens, tokens)):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ServerError("garbled", "the answer is garbled") from None
        if reasons & {"abort", "error"}:
            raise ServerError("aborted", "the server gave it up")
        result.prompt_tokens, result.output_tokens = tokens
        result.status = "truncated" if "length" in reasons else "ok"
        await self.out.whole(200, self._headers(attempt.choice) | JSON, data)

    async def _refuse(self, response: aiohttp.ClientResponse, choice: Choice) -> None:
        """Raise what the client is at fault for as a `RequestError`; else it is the server."""
        data, code = await _read(response), response.status
        if code not in _REFUSALS:
            reason = "busy" if code in (429, 503) else "error"
            raise ServerError(reason, f"HTTP {code}", healthy=code == 429)
        long = any(words in data for words in _TOO_LONG)
        most = self.gateway.pool.models[choice.server].server.max_model_len
        words = f"{choice.alias} refuses this request (HTTP {code}): check its fields"
        if long:
            words = f"the prompt is longer than {choice.alias} takes: {most} tokens with its answer"
        self._status = "too_long" if long else "rejected"
        raise RequestError(
            400 if long else code,
            "context_length_exceeded" if long else "server_refused",
            words,
            headers=self._headers(choice),
        )

    def _count(self, attempt: Attempt, *, answered: bool) -> None:
        metrics, result, speed = self.gateway.metrics, attempt.result, self.gateway.config.speed
        alias = attempt.choice.alias
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


async def _read(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > _MOST_BYTES:
            raise ServerError("garbled", f"the answer has more than {_MOST_BYTES} bytes")
    return bytes(data)
