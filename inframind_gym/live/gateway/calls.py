"""A request from admission to its last token: attempts, here and elsewhere, and what is noted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from inframind_gym.live.gateway.access_log import record
from inframind_gym.live.gateway.answers import Headers, RequestError
from inframind_gym.live.gateway.asked import AUTO, CHAT, TEAM, Asked
from inframind_gym.live.gateway.gateway import Gateway
from inframind_gym.live.gateway.upstream import Attempt, Choice, ClientAnswer, ServerError
from inframind_gym.simulator.workflow.topology import STRATEGIES, STRATEGY_INSTRUCTIONS

_PAUSE_S: Final = 0.2  # before a server that has failed a request is asked again; doubles
_SPARED: Final = 6  # attempts that do not count, because their servers went down
_AS_THEY_ARE: Final = ("tools", "response_format", "structured_outputs")  # answers to programs


async def answer(gateway: Gateway, asked: Asked, out: ClientAnswer) -> None:
    """Answer a request. Errors are answers too; what came of it is logged and counted."""
    gateway.open_requests += 1
    call = _Call(gateway, asked, out)
    try:
        asked.tenant.check_model(asked.model)
        asked.tenant.enter()
        try:
            if asked.model == TEAM:
                await gateway.teams.answer(asked, out)
            else:
                await call.carry()
        finally:
            asked.tenant.leave()
    except RequestError as refusal:
        await call.refuse(refusal)
    except asyncio.CancelledError:
        call.status, call.error, call.http = "cancelled", "the client went away", 499
        raise
    except Exception as error:
        call.status, call.error, call.http = "fault", f"{type(error).__name__}: {error}", 500
        raise
    finally:
        gateway.open_requests -= 1
        call.note()


class _Call:
    """One request on its way."""

    def __init__(self, gateway: Gateway, asked: Asked, out: ClientAnswer) -> None:
        self.gateway, self.asked, self.out = gateway, asked, out
        self.attempt: Attempt | None = None
        self.attempts = 0
        self.status: str | None = None
        self.error: str | None = None
        self.http = 0

    async def carry(self) -> None:
        """Try servers until one answers.

        Servers that go down take all that waits with them: this is not held against a request, as
        long as it is not one that brings them down.

        Raises:
            RequestError: none did.
        """
        excluded, spared, limits = 0, 0, self.gateway.config.limits
        failed: RequestError | None = None
        while self.attempts < limits.attempts + spared:
            try:
                choice = self.gateway.choose(self.asked, excluded, admit=not self.attempts)
            except RequestError as refused:
                raise failed or refused from None
            if self.attempt is not None:
                self.gateway.metrics.count("call_retries", self.attempt.choice.alias)
            self.attempts += 1
            if excluded >> choice.server & 1:
                await asyncio.sleep(_PAUSE_S * 2.0**self.attempts)
            try:
                await self._try(choice, limits.answer_s)
                return
            except ServerError as error:
                self.status, self.error = error.reason, str(error)
                excluded |= 1 << choice.server
                spared += error.reason == "down" and spared < _SPARED
                if error.reason in ("unreachable", "error", "garbled"):
                    self.gateway.servers.watcher.suspect(choice.server)
                failed = RequestError(
                    *(503 if error.reason in ("busy", "down") else 502, f"server_{error.reason}"),
                    f"{choice.alias} failed after {self.attempts} attempts: {error}",
                    retry_after_s=1.0,
                    headers=self._headers(choice),
                )
                if self.out.status:
                    await self.out.cut(failed.content())
                    return
        assert failed is not None
        raise failed

    async def _try(self, choice: Choice, limit_s: float) -> None:
        """Make one attempt.

        Raises:
            ServerError: there is no answer.
        """
        ok: bool | None = None
        left_s = limit_s - (time.monotonic() - self.asked.arrived_s)
        try:
            async with asyncio.timeout(max(left_s, 0.001)) as timer:
                self.attempt = attempt = Attempt(choice, timer)
                self.gateway.begin(attempt)
                try:
                    model = self.gateway.pool.models[choice.server]
                    await self.gateway.upstream.carry(
                        *(self.asked, attempt, self._body(choice), self._headers(choice)),
                        self.asked.max_tokens or model.server.max_model_len,
                        self.out,
                    )
                    ok = True
                except ServerError as error:
                    ok = None if error.healthy else False
                    raise
                finally:
                    if timer.expired() and attempt.why is None and not attempt.started:
                        ok = False
                    self.gateway.end(attempt, ok)
                    self._note_call(attempt, answered=ok is True)
        except TimeoutError:
            if attempt.why is not None:
                raise ServerError("down", attempt.why) from None
            raise ServerError("timeout", "no token for too long") from None
        finally:
            if self.attempt is not None and ok:
                self.status, self.error = self.attempt.result.status, self.attempt.result.error

    def _note_call(self, attempt: Attempt, *, answered: bool) -> None:
        """Count an attempt."""
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
            first_s = result.first_token_s - self.asked.arrived_s
            metrics.observe("time_to_first_token_seconds", first_s * speed)

    def _body(self, choice: Choice) -> dict[str, Any]:
        """Return what the server is sent."""
        asked, config = self.asked, self.gateway.config
        body = {**asked.body, "model": self.gateway.addresses[choice.server].model}
        if choice.priority is not None:
            body["priority"] = choice.priority
        if asked.stream:
            options = asked.body.get("stream_options") or {}
            body["stream_options"] = {**options, "include_usage": True}
        if asked.model == AUTO:
            if asked.max_tokens is None:
                body["max_tokens"] = self.gateway.pool.max_output_tokens
            plain = asked.path == CHAT and not any(name in body for name in _AS_THEY_ARE)
            if choice.strategy is not None and plain and config.strategies == "prompt":
                body["messages"] = instructed(body["messages"], STRATEGIES[choice.strategy])
        return body

    def _headers(self, choice: Choice) -> Headers:
        """Return the headers that tell the client what was decided."""
        strategy = "-" if choice.strategy is None else STRATEGIES[choice.strategy]
        waited_ms = 1e3 * (time.monotonic() - self.asked.arrived_s)
        told = {
            "x-request-id": self.asked.request_id,
            "x-inframind-model": choice.alias,
            "x-inframind-strategy": strategy,
            "x-inframind-plan": "one call",
            "x-inframind-queue": str(choice.queue_req),
            "x-inframind-predicted-s": f"{choice.predicted_s:.2f}",
            "x-inframind-attempt": str(self.attempts),
            "x-inframind-overhead-ms": f"{waited_ms:.2f}",
        }
        tenant = self.asked.tenant.headers()
        return [(name.encode(), value.encode()) for name, value in told.items()] + tenant

    async def refuse(self, refusal: RequestError) -> None:
        """Answer with an error."""
        self.status = self.status or "refused"
        self.error, self.http = str(refusal), refusal.status
        self.gateway.metrics.count("refused", refusal.code)
        identity = (b"x-request-id", self.asked.request_id.encode())
        headers = dict([*refusal.headers, identity])
        await self.out.whole(refusal.status, list(headers.items()), refusal.body())

    def note(self) -> None:
        """Count and log what has become of the request."""
        asked, gateway, metrics = self.asked, self.gateway, self.gateway.metrics
        end_s = time.monotonic()
        http, status = self.http or self.out.status, self.status or "ok"
        known = asked.model if asked.model in gateway.models else "unknown"
        latency_s = (end_s - asked.arrived_s) * gateway.config.speed
        answered = status in ("ok", "truncated")
        told = "answered" if answered else "cancelled" if status == "cancelled" else "failed"
        in_budget = "true" if latency_s <= asked.budget_s else "false"
        metrics.count("queries", told, in_budget, asked.tenant.config.name, known)
        if answered:
            metrics.observe("query_latency_seconds", latency_s)
            metrics.observe("cost_ratio", latency_s / asked.budget_s)
            if self.attempt is None or not asked.stream:
                status = "whole"
        if gateway.servers.log is not None:
            ended = {"status": status, "http": http, "error": self.error}
            ended["attempts"] = self.attempts
            line = record(asked, self.attempt, end_s, gateway.servers.epoch_s, **ended)
            gateway.servers.log.write(line)


def instructed(messages: list[Any], strategy: str) -> list[Any]:
    """Return messages with the instruction of a strategy in the system's message."""
    text = STRATEGY_INSTRUCTIONS[strategy]
    first: Mapping[str, Any] = messages[0]
    if first.get("role") == "system" and isinstance(first.get("content"), str):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
