"""Server for `benchmarks.gateway`: answers at once, and streams 20 tokens in a second."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from inframind_gym.simulator.server.pool import load_pool

_NAMES = [model.name for model in load_pool("b200-2gpu").models]
_USAGE = {"prompt_tokens": 120, "completion_tokens": 20, "total_tokens": 140}
_METRICS = "".join(
    f'{name}{{model_name="m"}} 0.0\n'
    for name in (
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        *("vllm:e2e_request_latency_seconds_sum", "vllm:e2e_request_latency_seconds_count"),
    )
)
_PAGES = {
    "/health": b"",
    "/metrics": _METRICS.encode(),
    "/v1/models": json.dumps({"data": [{"id": name} for name in _NAMES]}).encode(),
    "/is_sleeping": b'{"is_sleeping": false}',
}


def _event(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    event = head | {"choices": choices} | fields
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


_TOKEN = _event([{"index": 0, "delta": {"content": "word "}, "finish_reason": None}])
_END = _event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
_TOTAL = _event([], usage=_USAGE) + b"data: [DONE]\n\n"
_MESSAGE = {"role": "assistant", "content": "word " * 20}
_WHOLE = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": _MESSAGE, "finish_reason": "stop"}],
        "usage": _USAGE,
    }
).encode()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Serve a request."""
    if scope["type"] != "http":
        return

    async def write(data: bytes, more: bool = False) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": more})

    async def start(kind: bytes, status: int = 200) -> None:
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})

    if scope["path"] in _PAGES:
        await start(b"application/json" if "/v1" in scope["path"] else b"text/plain")
        await write(_PAGES[scope["path"]])
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    if not json.loads(body or b"{}").get("stream"):
        await start(b"application/json")
        await write(_WHOLE)
        return
    await start(b"text/event-stream")
    for _ in range(20):
        await write(_TOKEN, more=True)
        await asyncio.sleep(0.05)
    await write(_END, more=True)
    await write(_TOTAL)
