"""One request on one server, and its answer on the way to the client, token by token."""

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

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatResult, read_stream
from inframind_gym.live.gateway.answers import JSON, Headers
from inframind_gym.live.gateway.asked import Asked
from inframind_gym.live.settings import ServerAddress
from inframind_gym.live.stream import ChatStream, StreamError

Send = Callable[[dict[str, Any]], Awaitable[None]]
EVENTS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # of nginx, should there be one before us
]
_MOST_BYTES: Final = 64 << 20  # of an answer that is not streamed
_END_S: Final = 1.0  # for the end of a transfer whose answer is complete
_NO_CHOICES: Final = (b'"choices":[]', b'"choices": []')
_PASSED_ON: Final = (400, 404, 413, 422)  # refusals that are the client's to read


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


@dataclass(frozen=True, slots=True)
class Choice:
    """Server that a request is sent to, and why."""

    server: int
    alias: str
    strategy: int | None  # index into STRATEGIES; None: the client named the model
    priority: int | None  # as sent
    predicted_s: float
    queue_req: int  # at the server, as polled last


@dataclass(slots=True, eq=False)
class Attempt:
    """A request at a server."""

    choice: Choice
    timer: asyncio.Timeout
    result: ChatResult = field(default_factory=lambda: ChatResult(time.monotonic()))
    why: str | None = None  # it was ended from outside
    started: bool = False  # the client has got part of the answer

    def end(self, why: str) -> None:
        """End it as failed; on its loop."""
        if self.why is None and not self.timer.expired():
            self.why = why
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

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """Send all of it."""
        length = (b"content-length", str(len(body)).encode())
        await self.start(status, [*headers, length])
        await self.write(body, more=False)

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.status = status
        message = {"type": "http.response.start", "status": status, "headers": headers}
        await self._send(message)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body; waits for clients that read slowly."""
        self.complete = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def cut(self, content: dict[str, Any]) -> None:
        """End a stream that cannot be completed with an error in its last event."""
        try:
            async with asyncio.timeout(_END_S):
                await self.write(b"data: " + json.dumps(content).encode() + b"\n\n", more=False)
        except TimeoutError:  # it was the client who did not read
            self._abort()


class Upstream:
    """Connections to servers. To be used on one loop.

    Args:
        session: of aiohttp.
        servers: addresses.
        stall_s: longest time between two pieces of a stream.
    """

    def __init__(
        self, session: aiohttp.ClientSession, servers: tuple[ServerAddress, ...], stall_s: float
    ) -> None:
        self._session, self._servers, self._stall_s = session, servers, stall_s

    async def carry(
        self,
        asked: Asked,
        attempt: Attempt,
        body: dict[str, Any],
        headers: Headers,
        most_tokens: int,
        out: ClientAnswer,
    ) -> None:
        """Send a request to a server, and its answer to the client.

        Args:
            asked: the request.
            attempt: its result is written; its time limit holds for the first token, then each
                piece has its own.
            body: for the server.
            headers: for the client.
            most_tokens: of an answer.
            out: the client.

        Raises:
            ServerError: there is no answer; part of a stream may have been sent (`out.status`).
            TimeoutError: of `attempt.timer`.
        """
        result = attempt.result
        result.sent_s, result.attempts = time.monotonic(), 1
        try:
            async with self._session.post(
                self._servers[attempt.choice.server].url + asked.path,
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json", "X-Request-Id": asked.request_id},
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    await _refused(response, result, headers, out)
                elif asked.stream:
                    stream = ChatStream(most_tokens * asked.choices)
                    try:
                        await self._stream(asked, attempt, stream, response, headers, out)
                    finally:
                        read_stream(stream, result)
                else:
                    await _whole(response, result, headers, out)
        except StreamError as error:
            words, _, _ = str(error).partition(": ")  # the rest quotes the answer
            raise ServerError("garbled", words) from None
        except (aiohttp.ClientError, OSError) as error:
            reason = "unreachable" if result.first_token_s is None else "broken"
            number = getattr(error, "errno", None)
            words = os.strerror(number) if number else type(error).__name__
            raise ServerError(reason, words) from None

    async def _stream(
        self,
        asked: Asked,
        attempt: Attempt,
        stream: ChatStream,
        response: aiohttp.ClientResponse,
        headers: Headers,
        out: ClientAnswer,
    ) -> None:
        """Pass a stream on, event by event.

        Nothing is sent before the first token: a server that fails until then can be replaced.
        """
        loop, rest = asyncio.get_running_loop(), b""
        async for data in response.content.iter_any():
            stream.feed(data, time.monotonic())
            head, mark, rest = (rest + data).rpartition(b"\n\n")
            if stream.first_token_s is None and not stream.done:
                rest = head + mark + rest
                continue
            if out.status == 0:
                if stream.error is not None or stream.finish_reason in ("abort", "error"):
                    raise ServerError("aborted", stream.error or "the server gave it up")
                if stream.finish_reason is None and stream.first_token_s is None:
                    raise ServerError("broken", "the answer has no token")
                attempt.started = True
                await out.start(200, [*headers, *EVENTS])
            events = head + mark
            if not asked.shows_usage and any(empty in events for empty in _NO_CHOICES):
                events = _without_usage(events)
            if events:
                await out.write(events)
            attempt.timer.reschedule(loop.time() + self._stall_s)
            if stream.done:
                break
        if not stream.done:
            raise ServerError("broken", stream.error or "the answer stopped short")
        await out.write(rest, more=False)
        attempt.timer.reschedule(None)
        # The rest is the end of the transfer: with it, the connection can be used again.
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(_END_S):
                await response.content.read(1)


async def _whole(
    response: aiohttp.ClientResponse, result: ChatResult, headers: Headers, out: ClientAnswer
) -> None:
    data = await _read(response, _MOST_BYTES)
    try:
        answer = json.loads(data)
        choices = answer["choices"]
        reasons = {choice.get("finish_reason") for choice in choices}
        usage = answer.get("usage") or {}
        tokens = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        if not choices or not all(t is None or isinstance(t, int) for t in tokens):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ServerError("garbled", "the answer is garbled") from None
    if reasons & {"abort", "error"}:
        raise ServerError("aborted", "the server gave it up")
    result.prompt_tokens, result.output_tokens = tokens
    result.status = "truncated" if "length" in reasons else "ok"
    await out.whole(200, [*headers, JSON], data)


async def _refused(
    response: aiohttp.ClientResponse, result: ChatResult, headers: Headers, out: ClientAnswer
) -> None:
    """Pass on what a client has to read: anything else is the server's failure."""
    data = await _read(response, _MOST_BYTES)
    if response.status in _PASSED_ON:
        result.status, result.error = "rejected", f"HTTP {response.status}"
        await out.whole(response.status, [*headers, JSON], data)
        return
    busy = response.status in (429, 503)
    message = f"HTTP {response.status}"
    raise ServerError("busy" if busy else "error", message, healthy=response.status == 429)


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    parts, size = [], 0
    async for data in response.content.iter_any():
        size += len(data)
        if size > most:
            raise ServerError("garbled", f"the answer has more than {most} bytes")
        parts.append(data)
    return b"".join(parts)


def _without_usage(events: bytes) -> bytes:
    """Leave out the event of the usage, which the gateway asked for and the client did not."""
    kept = [
        event
        for event in events.split(b"\n\n")
        if not (b'"usage"' in event and any(empty in event for empty in _NO_CHOICES))
    ]
    return b"\n\n".join(kept)
