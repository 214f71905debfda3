"""Admission to the gateway, its routes, and its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final

from prometheus_client import generate_latest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from inframind_gym.live.chat import CHAT
from inframind_gym.live.client import allow_files
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.gateway.gateway import TEAM, Gateway
from inframind_gym.live.gateway.proxy import Exchange
from inframind_gym.live.gateway.request import read_query, request_id
from inframind_gym.live.gateway.team import Teams
from inframind_gym.live.guard import Guard, RequestError, bounded_protocol, is_secret, listening

_log = logging.getLogger("inframind.gateway")
PROBES: Final = ("/health", "/ready")  # need no key


def admit(keys: Mapping[str, SecretStr], scope: dict[str, Any], headers: dict[str, str]) -> None:
    """Admit a request: by its header `Authorization: Bearer KEY`, where there are keys.

    Every key is compared, so that the time does not reveal which one matched. Sets `tenant` and
    `arrived_s` in the state of the request.
    """
    state = {**scope.get("state", {}), "arrived_s": time.monotonic(), "tenant": "-"}
    scope["state"] = state
    if keys and scope["path"] not in PROBES:
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        state["tenant"] = ""
        for name, key in keys.items():
            if is_secret(sent.strip(), key.get_secret_value()):
                state["tenant"] = name
        if not state["tenant"] or scheme.lower() != "bearer":
            raise RequestError(
                401,
                "invalid_api_key",
                "no valid key: send the header Authorization: Bearer KEY",
                headers={"www-authenticate": "Bearer"},
            )


class Completions:
    """ASGI application of a gateway's completions; a class, because Starlette wraps functions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._teams = gateway, Teams(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; cancel the work on it if the client goes away."""
        gateway = self._gateway
        if gateway.open_requests >= gateway.config.limits.max_in_flight:
            raise RequestError(503, "overloaded", "too many requests at once", retry_after_s=1.0)
        gateway.open_requests += 1
        try:
            query = await read_query(Request(scope, receive), gateway.config)
            exchange = Exchange(gateway, query, send)
            play = self._teams.answer if query.model == TEAM else None
            answering = asyncio.ensure_future(exchange.answer(play))
            gone = asyncio.ensure_future(receive())
            try:
                await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and exchange.complete:  # all was sent: let it end
                    await answering
            finally:
                gone.cancel()
                answering.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await answering
        finally:
            gateway.open_requests -= 1


def make_app(gateway: Gateway) -> Starlette:
    """Return the application of a gateway."""
    config = gateway.config

    async def models(_: Request) -> Response:
        about = {"object": "model", "created": 0, "owned_by": "inframind"}
        data = [{"id": name, **about} for name in gateway.models]
        return JSONResponse({"object": "list", "data": data})

    async def health(_: Request) -> Response:
        return JSONResponse({})

    async def ready(_: Request) -> Response:
        is_ready = bool(gateway.watcher.up)
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def metrics(_: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(generate_latest(gateway.metrics.registry), media_type=kind)

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        words = f"{request.method} {request.url.path[:100]}: {error.detail}"
        raise RequestError(error.status_code, code, words, headers=error.headers)

    def refuse(headers: dict[str, str], error: RequestError) -> tuple[str, bytes]:
        gateway.metrics.count("refused", error.code)
        error.headers["x-request-id"] = request_id(headers)
        return "application/json", error.content()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.open()
        yield
        await gateway.close()

    return Starlette(
        routes=[
            Route(CHAT, Completions(gateway), methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
        ],
        middleware=[
            Middleware(
                Guard,
                admit=partial(admit, config.keys),
                loopback_only=not config.keys,
                most_bytes=config.limits.max_body_bytes,
                refuse=refuse,
                probes=(*PROBES, "/metrics"),
            )
        ],
        exception_handlers={HTTPException: no_route},
        lifespan=lifespan,
    )


def run(config: GatewayConfig) -> None:
    """Serve until a signal; then wait for what is in flight."""
    import uvicorn

    limits = config.limits
    with contextlib.closing(listening(config.host, config.port)) as address:
        # A socket on both sides of a request, and those of an address that sends nothing.
        allow_files(2 * limits.max_in_flight + limits.max_connections_per_address + 256)
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(Gateway(config)),
                loop="uvloop",
                ws="none",
                interface="asgi3",
                lifespan="on",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                log_config=None,
                http=bounded_protocol(limits.max_connections_per_address),
                timeout_keep_alive=int(limits.idle_s),
                timeout_graceful_shutdown=int(limits.drain_s),
            )
        )
        where = config.pool, config.policy, config.host, config.port
        _log.info("pool %s, policy %s: http://%s:%d/v1", *where)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # terminal closed; not under nohup
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[address])
