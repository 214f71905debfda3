"""Completions of a simulated server: a request becomes a flight on the engine, then an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from inframind_gym.live.simulated.answers import Answer
from inframind_gym.live.simulated.asking import Ask, RefusedError, read_ask, split_tokens
from inframind_gym.live.simulated.engine import Flight
from inframind_gym.live.simulated.faults import GARBAGE

if TYPE_CHECKING:
    from inframind_gym.live.simulated.server import ModelServer

_STREAM: Final = {"Content-Type": "text/event-stream; charset=utf-8"}


async def complete(server: ModelServer, request: web.BaseRequest) -> web.StreamResponse:
    """Answer a request for a completion; its client can go away at any time.

    Raises:
        RefusedError: vLLM would not take it, or there are too many.
    """
    card = server.config.server
    ask = read_ask(await request.read(), request.path, server.config.name, card.max_model_len)
    drawn = f"seed {ask.seed}" if ask.seed is not None else str(server.asked)
    key = f"{server.seed}/{server.config.alias}/{drawn}"
    tokens = _length(server, ask, key)
    reason = "length" if tokens >= ask.max_tokens else "stop"
    priority = request.headers.get("X-Vllm-Priority", "")
    flight = Flight(
        server=server.index,
        prompt_tokens=ask.prompt_tokens,
        output_tokens=tokens,
        priority=float(priority if priority.lstrip("-").isdigit() else ask.priority),
        streams=ask.stream,
    )
    if not server.engine.enter(flight):
        raise RefusedError(503, "too many requests", kind="ServiceUnavailableError")
    server.asked += 1
    answer = Answer(ask, key, request.headers.get("X-Request-Id"))
    try:
        if ask.stream:
            return await _stream(server, request, flight, answer, reason)
        while not flight.over:
            await flight.news.wait()
            flight.news.clear()
        await server.goes_on.wait()
        reason = "abort" if flight.aborted else reason
        body = answer.whole(flight.tokens, tokens, reason, _times(server, flight))
        return web.Response(body=body, content_type="application/json")
    finally:
        server.engine.leave(flight)
        ended = "abort" if flight.aborted else reason
        server.metrics.count(flight, ended, ask.max_tokens)


async def _stream(
    server: ModelServer, request: web.BaseRequest, flight: Flight, answer: Answer, reason: str
) -> web.StreamResponse:
    response = web.StreamResponse(headers=_STREAM)
    await response.prepare(request)
    sent, total = 0, flight.output_tokens
    data = answer.opening()
    while True:
        await flight.news.wait()
        await server.goes_on.wait()
        flight.news.clear()
        tokens, over = flight.tokens, flight.over
        if server.fault.kind == "garbage":
            await response.write(data + GARBAGE)
            break
        reason = "abort" if flight.aborted else reason
        data += answer.piece(sent, tokens, total, reason if over else None)
        if over:
            data += answer.closing(tokens, _times(server, flight))
        await response.write(data)
        if over:
            break
        sent, data = tokens, b""
    await response.write_eof()
    return response


def _length(server: ModelServer, ask: Ask, key: str) -> int:
    """Return the tokens of an answer."""
    if ask.tokens is not None:
        wanted = ask.tokens
    elif ask.text is not None:
        wanted = len(split_tokens(ask.text))
    elif ask.ignore_eos:
        wanted = ask.max_tokens
    else:
        wanted = server.lengths.draw(server.index, key, ask.strategy)
    return max(1, min(max(wanted, ask.min_tokens), ask.max_tokens))


def _times(server: ModelServer, flight: Flight) -> dict[str, Any] | None:
    """Return what `--enable-per-request-metrics` adds; None without it."""
    if "--enable-per-request-metrics" not in server.config.extra_args:
        return None
    if flight.admitted_s is None or flight.first_token_s is None:
        return None
    prefill_s = flight.first_token_s - flight.admitted_s
    decode_s, more = flight.last_token_s - flight.first_token_s, flight.tokens - 1
    return {
        "time_to_first_token_ms": 1e3 * prefill_s,
        "generation_time_ms": 1e3 * decode_s,
        "queue_time_ms": 1e3 * (flight.admitted_s - flight.entered_s),
        "mean_itl_ms": 1e3 * decode_s / more if more else None,
        "tokens_per_second": flight.tokens / (prefill_s + decode_s),
        "speculative_decoding": None,
    }
