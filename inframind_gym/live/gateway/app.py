"""Routes of the gateway, and its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from inframind_gym.live.client import allow_files
from inframind_gym.live.gateway.auth import PROBES
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.gateway.gateway import TEAM, Gateway
from inframind_gym.live.gateway.proxy import Exchange
from inframind_gym.live.gateway.request import CHAT, COMPLETIONS, read_query, request_id
from inframind_gym.live.gateway.team import Teams
from inframind_gym.live.guard import Guard, RequestError, bounded_protocol
from inframind_gym.sockets import listening

_log = logging.getLogger("inframind.gateway")
_ONE_SIGNAL_S: Final = 1.0


class Completions:
    """Completions of a gateway. No function: Starlette hands it ASGI as it is."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._teams = gateway, Teams(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, unless the client goes away: then what is under way is cancelled.

        Raises:
            RequestError: it is refused before it has an answer.
        """
        gateway, request = self._gateway, Request(scope)
        if gateway.open_requests >= gateway.config.limits.max_in_flight:
            raise RequestError(503, "overloaded", "too many requests at once", retry_after_s=1.0)
        gateway.open_requests += 1
        try:
            query = await read_query(
                *(scope["path"], request.headers, receive),
                *(request.state.tenant, request.state.arrived_s, gateway.config),
            )
            if gateway.draining:
                words = "the gateway is about to end"
                raise RequestError(503, "draining", words, retry_after_s=1.0)
            exchange = Exchange(gateway, query, send)
            play = self._teams.answer if query.model == TEAM else None
            answering = asyncio.ensure_future(exchange.answer(play))
            gone = asyncio.ensure_future(receive())
            try:
                await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and exchange.complete:  # its transfer comes to its end
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
    completions, limits = Completions(gateway), gateway.config.limits

    async def models(request: Request) -> Response:
        may_ask = request.state.tenant.may_ask
        data = [
            {"id": name, "object": "model", "created": 0, "owned_by": "inframind"}
            for name in filter(may_ask, gateway.models)
        ]
        return JSONResponse({"object": "list", "data": data})

    async def health(_: Request) -> Response:
        return JSONResponse({})

    async def ready(_: Request) -> Response:
        is_ready = bool(gateway.usable()) and not gateway.draining
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def metrics(_: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(gateway.metrics.write(gateway.gauges()), media_type=kind)

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path
        if error.status_code == 405:
            words = f"{request.method} is not for {path}"
            raise RequestError(405, "method_not_allowed", words, headers=error.headers)
        raise RequestError(404, "not_found", "no such path")

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
            Route(CHAT, completions, methods=["POST"]),
            Route(COMPLETIONS, completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
        ],
        middleware=[
            Middleware(
                Guard,
                admit=gateway.keyring.admit,
                loopback_only=gateway.keyring.everybody is not None,
                most_bytes=limits.max_body_bytes,
                refuse=refuse,
                probes=(*PROBES, "/metrics"),
            )
        ],
        exception_handlers={HTTPException: no_route},
        lifespan=lifespan,
    )


def run(config: GatewayConfig) -> None:
    """Serve until a signal; then wait for what is in flight.

    Raises:
        InfraMindError: the configuration cannot be used, or its port is taken.
    """
    import uvicorn
    import uvloop

    class Server(uvicorn.Server):
        """Ends with status 0 on a signal, once what is in flight is over; at once on a second."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            loop, first_s = asyncio.get_running_loop(), math.inf

            def end() -> None:  # timeout(1) sends one to the process and one to its group
                nonlocal first_s
                first_s = min(first_s, loop.time())
                self.force_exit = loop.time() > first_s + _ONE_SIGNAL_S
                gateway.draining = self.should_exit = True

            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.add_signal_handler(number, end)
            yield

    with contextlib.closing(listening(config.host, config.port)) as address:
        allow_files(2 * config.limits.max_in_flight + 256)  # a socket on both sides
        gateway = Gateway(config)
        server = Server(
            uvicorn.Config(
                make_app(gateway),
                loop="uvloop",
                ws="none",
                interface="asgi3",
                lifespan="on",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                log_config=None,
                http=bounded_protocol(config.limits.max_connections_per_address),
                timeout_keep_alive=int(config.limits.idle_s),
                timeout_graceful_shutdown=int(config.limits.drain_s),
            )
        )
        where = config.pool, config.policy, config.host, config.port
        _log.info("pool %s, policy %s: http://%s:%d/v1", *where)
        uvloop.run(server.serve(sockets=[address]))
