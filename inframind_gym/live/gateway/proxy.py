"""A request from admission to its last token: attempts at servers, metrics and the log.

The log has one line for each request, however it ended, with the fields of the live environments'
log (`request_log.py`) and more, but no text of questions, answers or keys. `status` is "whole" for
an answer that was not streamed: the time of its first token is unknown. Calibrations of a pool
count it by its end, those of one model leave it out. Requests that were refused before they were
read have no line.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Send

from inframind_gym.live.chat import ChatError, ChatResult
from inframind_gym.live.gateway.gateway import Gateway
from inframind_gym.live.gateway.request import Attempt, Query
from inframind_gym.live.guard import RequestError
from inframind_gym.live.request_log import log_record
from inframind_gym.simulator.workflow.topology import STRATEGIES

JSON: Final = {"content-type": "application/json"}
EVENTS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # for an nginx in front
}
_PAUSE_S: Final = 0.4  # before the same server is tried again; doubles
_END_S: Final = 1.0  # for the last event of a stream that broke off
_REFUSALS: Final = (400, 404, 413, 422)  # status of a faulty request: no other server is tried
_NO_CHOICES: Final = re.compile(b'"choices": ?\\[\\]')  # the event of the usage


class Exchange:
    """One request and its answer; without an ASGI `send` the answer is in `result` alone.

    Attributes:
        attempt: the last one; None: no server was asked.
        result: outcome of the last attempt, and so of the request.
        http: status that was sent to the client; 0: none yet.
        complete: whether the whole answer was sent.
    """

    def __init__(self, gateway: Gateway, query: Query, send: Send | None = None) -> None:
        self.gateway, self.query, self._send = gateway, query, send
        self.attempt: Attempt | None = None
        self.result = ChatResult(query.arrived_s)
        self.http = 0
        self.complete = False
        self._rest = b""  # part of a stream that was not sent yet

    # What the client gets

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send status and headers to the client."""
        self.http = status
        if self._send is not None:
            pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body to the client; waits for one that reads slowly."""
        self.complete = not more
        if self._send is not None:
            await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send all of an answer to the client."""
        await self.start(status, headers | JSON | {"content-length": str(len(body))})
        await self.write(body, more=False)

    async def answer(self, play: Callable[[Exchange], Awaitable[None]] | None) -> None:
        """Answer the request, from a server or by `play`; log and count the outcome.

        Errors are sent as answers, too.
        """
        gateway, query = self.gateway, self.query
        try:
            if play is None:
                await self._try_servers()
            else:
                await play(self)
                self.result.end("ok")
        except RequestError as error:
            self.result.end("refused" if self.attempt is None else self.result.status, str(error))
            gateway.metrics.count("refused", error.code)
            if not self.http:
                id_ = {"x-request-id": query.request_id}
                await self.whole(error.status, error.headers | id_, error.content())
            else:  # the last event of an answer that has begun
                with contextlib.suppress(TimeoutError):  # the client may have stopped reading
                    async with asyncio.timeout(_END_S):
                        await self.write(b"data: " + error.content() + b"\n\n", more=False)
        except asyncio.CancelledError:
            self.result.end("cancelled", "the client went away")
            self.http = 499
            raise
        except Exception as fault:
            self.result.end("fault", type(fault).__name__)
            self.http = 500
            raise
        finally:
            self.log()
            status, answered, metrics = self.result.status, self.result.answered, gateway.metrics
            latency_s = (time.monotonic() - query.arrived_s) * gateway.config.speed
            outcome = "answered" if answered else "cancelled" if status == "cancelled" else "failed"
            in_budget = "true" if answered and latency_s <= query.budget_s else "false"
            model = query.model if query.model in gateway.models else "unknown"
            metrics.count("queries", outcome, in_budget, query.tenant, model)
            if answered:
                metrics.observe("query_latency_seconds", latency_s)
                metrics.observe("cost_ratio", latency_s / query.budget_s)

    def log(self) -> None:
        """Write the request's line into the log."""
        query, attempt, result = self.query, self.attempt, self.result
        if self.gateway.log is None:
            return
        strategy = None if attempt is None else attempt.strategy
        line = log_record(
            query.request_id,
            None if attempt is None else attempt.alias,
            result,
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
            speed=self.gateway.config.speed,
        )
        if result.answered and result.first_token_s is None:
            line["status"] = "whole"
        self.gateway.log.write(line)

    # Servers

    async def _try_servers(self) -> None:
        """Try servers until one answers; a RequestError if none does."""
        excluded = shorter = 0
        failed: RequestError | None = None
        while failed is None or self.result.attempts < self.gateway.config.limits.attempts:
            try:
                attempt = self.gateway.choose(self.query, excluded, shorter, admit=failed is None)
            except RequestError as refused:
                # Servers that take more tokens may only be down: then a client may try again.
                if failed is None or (failed.status, refused.status) == (400, 503):
                    raise
                raise failed from None
            if self.attempt is not None:
                self.gateway.metrics.count("call_retries", self.attempt.alias)
            if excluded >> attempt.server & 1:
                await asyncio.sleep(_PAUSE_S * 2.0**self.result.attempts)
            try:
                await self.make(attempt)
            except RequestError as refused:
                if self.result.status != "too_long":
                    raise
                failed = refused
                shorter = self.gateway.pool.models[attempt.server].server.max_model_len
                continue
            result = self.result
            if result.answered or self.complete:
                return
            excluded |= 1 << attempt.server
            failed = RequestError(
                503 if result.status in ("busy", "down") else 502,
                f"server_{result.status}",
                f"{attempt.alias} failed after {result.attempts} attempts: {result.error}",
                retry_after_s=1.0,
                headers=self._headers(attempt),
            )
            if self.http or not result.retryable:  # part of a stream was sent, or time is over
                break
        raise failed

    async def make(self, attempt: Attempt) -> None:
        """Make an attempt: send the request to a server, and its answer to the client.

        The outcome is in `result`. A RequestError: the server refuses the request.
        """
        gateway, query, limits = self.gateway, self.query, self.gateway.config.limits
        self.attempt, self._rest = attempt, b""
        max_model_len = gateway.pool.models[attempt.server].server.max_model_len
        max_tokens = (query.max_tokens or max_model_len) * query.choices
        result = ChatResult(query.arrived_s, max_tokens, attempts=self.result.attempts)
        self.result = result
        try:
            await gateway.client.send(
                attempt.server,
                attempt.body,
                result,
                max(limits.answer_s - (time.monotonic() - query.arrived_s), 0.001),
                stall_s=limits.stall_s,
                request_id=query.request_id,
                on_data=self._pass_on,
            )
        finally:
            self._count(attempt)
        code, name = result.http_status or 0, "server_refused"
        if result.status == "rejected" and code not in _REFUSALS:  # another server may take it
            result.end("error", result.error, result.detail)
        places = result.detail.partition(":")[0].split(".")  # body.messages.0
        field = next((place for place in places if place in query.body), None)
        fields = "its fields" if field is None else f"its field {field!r}"
        words = f"{attempt.alias} refuses this request (HTTP {code}): check {fields}"
        if result.status == "too_long":
            code, name = 400, "context_length_exceeded"
            bound = attempt.body.get("max_completion_tokens") or attempt.body.get("max_tokens")
            what = f"the prompt (or max_tokens {bound})" if bound else "the prompt"
            words = f"{what} is longer than {attempt.alias} takes: {max_model_len} tokens"
        if result.status in ("too_long", "rejected"):
            raise RequestError(code, name, words, headers=self._headers(attempt))

    def _count(self, attempt: Attempt) -> None:
        """Count an attempt that is over."""
        metrics, result, speed = self.gateway.metrics, self.result, self.gateway.config.speed
        alias, sent_s = attempt.alias, result.sent_s
        outcomes = {"ok": "answered", "truncated": "truncated"}
        metrics.count("calls", alias, outcomes.get(result.status, "failed"))
        if result.answered and sent_s is not None:
            took_s = time.monotonic() - sent_s
            metrics.observe("call_latency_seconds", took_s * speed, alias)
            metrics.count("tokens", alias, "prompt", by=result.prompt_tokens or 0)
            metrics.count("tokens", alias, "output", by=result.output_tokens or 0)
        if result.first_token_s is not None:
            first_s = result.first_token_s - self.query.arrived_s
            metrics.observe("time_to_first_token_seconds", first_s * speed)

    def _headers(self, attempt: Attempt) -> dict[str, str]:
        """Return the headers that show the decision."""
        strategy = attempt.strategy
        return {
            "x-request-id": self.query.request_id,
            "x-inframind-model": attempt.alias,
            "x-inframind-strategy": "-" if strategy is None else STRATEGIES[strategy],
            "x-inframind-predicted-s": f"{attempt.predicted_s:.2f}",
            "x-inframind-attempt": str(self.result.attempts),
        }

    async def _pass_on(self, data: bytes) -> None:
        """Pass on a server's data; a stream from its first token, to allow another server first."""
        query, attempt, answer = self.query, self.attempt, self.result
        assert attempt is not None
        if answer.has_impossible_usage:
            raise ChatError("garbled", "the answer has impossible numbers of tokens")
        if answer.aborted and not self.http:
            raise ChatError("aborted", "the server gave it up")
        if not query.stream:
            await self.whole(200, self._headers(attempt), data)
            return
        events, mark, self._rest = (self._rest + data).rpartition(b"\n\n")
        events += mark
        if not self.http:
            if answer.first_token_s is None and not answer.done:
                self._rest = events + self._rest
                return
            if answer.first_token_s is None:
                raise ChatError("broken", "the answer has no token")
            await self.start(200, self._headers(attempt) | EVENTS)
        if not query.shows_usage and _NO_CHOICES.search(events):  # only the gateway asked for it
            parts = events.split(b"\n\n")
            shown = (e for e in parts if not (b'"usage"' in e and _NO_CHOICES.search(e)))
            events = b"\n\n".join(shown)
        if events:
            await self.write(events)
        if answer.done:
            await self.write(self._rest, more=False)
