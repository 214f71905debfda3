"""Routes of the gateway, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from inframind_gym.live.gateway.answers import JSON, Headers, RequestError
from inframind_gym.live.gateway.asked import CHAT, COMPLETIONS, read_request, request_id
from inframind_gym.live.gateway.calls import answer
from inframind_gym.live.gateway.config import LOOPBACK
from inframind_gym.live.gateway.gateway import Gateway
from inframind_gym.live.gateway.keys import Tenant
from inframind_gym.live.gateway.metrics import CONTENT_TYPE
from inframind_gym.live.gateway.upstream import ClientAnswer, Send

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
_POSTS: Final = (CHAT, COMPLETIONS)
_GETS: Final = ("/v1/models", "/health", "/ready", "/metrics")
_OPEN: Final = ("/health", "/ready")  # for those who watch processes, without a key
_EMBEDDINGS: Final = (
    "inframind serve routes chat completions; ask a server of embeddings for embeddings"
)


class App:
    """The application; `gateway` may be exchanged while it runs.

    Args:
        gateway: answers requests that begin from now on.

    Attributes:
        draining: no further requests are wanted.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection's request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError("only HTTP is served")
        arrived_s, gateway = time.monotonic(), self.gateway
        out = ClientAnswer(send, scope["state"]["abort"])
        headers = dict(scope["headers"])
        tenant: Tenant | None = None
        try:
            path, method = scope["path"], scope["method"]
            if gateway.keyring.is_open and not _is_here(headers.get(b"host", b"")):
                raise RequestError(403, "wrong_host", "without keys only this machine may ask")
            if path not in _OPEN:
                tenant = gateway.keyring.tenant(headers.get(b"authorization"))
            if path in _POSTS and method == "POST" and tenant is not None:
                raw = await _body(gateway, headers, receive)
                asked = read_request(
                    *(path, headers, raw, tenant, arrived_s),
                    budget_s=gateway.config.budget_s,
                    domain=gateway.config.domain,
                )
                if self.draining:
                    raise RequestError(
                        *(503, "draining"), "the gateway is about to end", retry_after_s=1.0
                    )
                if gateway.open_requests >= gateway.config.limits.max_in_flight:
                    raise RequestError(
                        *(503, "overloaded"), "too many requests at once", retry_after_s=1.0
                    )
                await _until_gone(answer(gateway, asked, out), receive, out)
                return
            if path in _GETS and method in ("GET", "HEAD"):
                status, kind, content = self._get(path, gateway, tenant)
                await out.whole(status, [(b"content-type", kind)], content)
                return
            raise _no_route(path, method)
        except RequestError as refusal:
            gateway.metrics.count("refused", refusal.code)
            known: Headers = [
                *refusal.headers,
                (b"x-request-id", request_id(headers).encode()),
                (b"connection", b"close"),  # what is left of a body that was not read
            ]
            await out.whole(refusal.status, known, refusal.body())

    def _get(self, path: str, gateway: Gateway, tenant: Tenant | None) -> tuple[int, bytes, bytes]:
        """Return status, type and body of a page; a tenant sees the models that it may ask for."""
        if path == "/metrics":
            return 200, CONTENT_TYPE, gateway.metrics.write(gateway.gauges())
        status = 200
        content: dict[str, Any] = {}
        if path == "/v1/models":
            data = [
                {"id": name, "object": "model", "created": 0, "owned_by": "inframind"}
                for name in gateway.models
                if tenant is None or tenant.may_ask(name)
            ]
            content = {"object": "list", "data": data}
        elif path == "/ready":
            ready = bool(gateway.usable()) and not self.draining
            status, content = (200 if ready else 503), {"ready": ready}
        return status, JSON[1], json.dumps(content).encode()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.gateway.open()
            else:
                await self.gateway.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


def _is_here(host: bytes) -> bool:
    """Return whether a request names this machine's loopback.

    A page whose name was bound to 127.0.0.1 after it was loaded names its own host.
    """
    name = re.sub(r":\d*$", "", host.decode("latin-1"))
    return name.strip("[]").lower() in LOOPBACK


def _no_route(path: str, method: str) -> RequestError:
    if path == "/v1/embeddings":
        return RequestError(404, "no_embeddings", _EMBEDDINGS)
    if path in _POSTS or path in _GETS:
        allowed = b"POST" if path in _POSTS else b"GET"
        headers = [(b"allow", allowed)]
        return RequestError(
            405, "method_not_allowed", f"{method} is not for {path}", headers=headers
        )
    return RequestError(404, "not_found", "no such path")


async def _body(gateway: Gateway, headers: dict[bytes, bytes], receive: Receive) -> bytes:
    """Read a body.

    Raises:
        RequestError: it is too large or too slow, or no JSON by its type: a web page may send other
            types to this machine without asking.
    """
    limits = gateway.config.limits
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise RequestError(415, "unsupported_media_type", "send Content-Type: application/json")
    too_large = RequestError(
        413, "request_too_large", f"a body may have {limits.max_body_bytes} bytes at most"
    )
    declared = headers.get(b"content-length", b"0")
    if len(declared) > 15 or int(declared) > limits.max_body_bytes:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RequestError(400, "incomplete", "the body did not end")
                parts.append(message["body"])
                size += len(message["body"])
                if size > limits.max_body_bytes:
                    raise too_large
                if not message["more_body"]:
                    return b"".join(parts)
    except TimeoutError:
        raise RequestError(408, "timeout", f"no whole body in {limits.body_s:g} s") from None


async def _until_gone(answering: Any, receive: Receive, out: ClientAnswer) -> None:
    """Answer, unless the client goes away: then what is under way is cancelled."""
    task = asyncio.current_task()
    assert task is not None
    gone = False

    def cancel(watch: asyncio.Task[dict[str, Any]]) -> None:
        nonlocal gone
        if not watch.cancelled() and not out.complete:
            gone = True
            task.cancel()

    watch: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(receive())
    watch.add_done_callback(cancel)
    try:
        await answering
    except asyncio.CancelledError:
        if not gone:
            raise
        task.uncancel()
    finally:
        watch.remove_done_callback(cancel)
        watch.cancel()
