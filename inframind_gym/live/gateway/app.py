"""Routes of the gateway, and its process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from inframind_gym.live.gateway.config import GatewayConfig, Limits
from inframind_gym.live.gateway.gateway import Gateway
from inframind_gym.live.gateway.guard import Guard, RequestError, bounded_protocol
from inframind_gym.live.gateway.proxy import ClientAnswer, Exchange
from inframind_gym.live.gateway.request import CHAT, COMPLETIONS, read_body, read_query, request_id
from inframind_gym.live.gateway.team import Teams
from inframind_gym.sockets import listening

_log = logging.getLogger("inframind.gateway")
_EMBEDDINGS: Final = (
    "inframind serve routes chat completions; ask a server of embeddings for embeddings"
)


def make_app(gateway: Gateway) -> Starlette:
    """Return the application of a gateway."""
    teams = Teams(gateway)

    class Completions:  # no function: Starlette hands it ASGI as it is
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await _complete(gateway, teams, scope, receive, send)

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

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            path = request.url.path
            if error.status_code == 405:
                words = f"{request.method} is not for {path}"
                error = RequestError(405, "method_not_allowed", words, headers=error.headers)
            elif path == "/v1/embeddings":
                error = RequestError(404, "no_embeddings", _EMBEDDINGS)
            else:
                error = RequestError(404, "not_found", "no such path")
        assert isinstance(error, RequestError)
        gateway.metrics.count("refused", error.code)
        # What is left of a body that was not read ends with the connection.
        names = {"x-request-id": request_id(request.headers), "connection": "close"}
        return error.response(**names)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await gateway.open()
        yield
        await gateway.close()

    return Starlette(
        routes=[
            Route(CHAT, Completions(), methods=["POST"]),
            Route(COMPLETIONS, Completions(), methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/ready", ready),
            Route("/metrics", metrics),
        ],
        middleware=[
            Middleware(
                Guard,
                keyring=gateway.keyring,
                limits=gateway.config.limits,
                refused=lambda code: gateway.metrics.count("refused", code),
            )
        ],
        exception_handlers={RequestError: refused, HTTPException: refused},
        lifespan=lifespan,
    )


async def _complete(
    gateway: Gateway, teams: Teams, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer a completion, unless the client goes away: then what is under way is cancelled.

    Raises:
        RequestError: it is refused before it has an answer.
    """
    request, config = Request(scope), gateway.config
    state, headers = request.state, request.headers
    raw = await read_body(headers, receive, config.limits)
    path = scope["path"]
    query = read_query(path, headers, raw, state.tenant, state.arrived_s, config)
    if gateway.draining:
        raise RequestError(503, "draining", "the gateway is about to end", retry_after_s=1.0)
    if gateway.open_requests >= config.limits.max_in_flight:
        raise RequestError(503, "overloaded", "too many requests at once", retry_after_s=1.0)
    out = ClientAnswer(send, scope["state"]["abort"])
    answering = asyncio.ensure_future(Exchange(gateway, query, out, teams.answer).answer())
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait([answering, gone], return_when=asyncio.FIRST_COMPLETED)
        if not answering.done() and out.complete:  # all is sent; its transfer comes to its end
            await answering
    finally:
        gone.cancel()
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering


def peer_options(limits: Limits) -> dict[str, Any]:
    """Return the options of uvicorn that belong to the limits."""
    return {
        "http": bounded_protocol(limits),
        "timeout_keep_alive": int(limits.idle_s),
        "timeout_graceful_shutdown": int(limits.drain_s),
    }


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
            def end() -> None:
                self.force_exit = self.should_exit
                gateway.draining = self.should_exit = True

            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, end)
            yield

    with contextlib.closing(listening(config.host, config.port)) as address:
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
                **peer_options(config.limits),
            )
        )
        where = config.pool, config.policy, config.host, config.port
        _log.info("pool %s, policy %s: http://%s:%d/v1", *where)
        uvloop.run(server.serve(sockets=[address]))
