"""Requests that the studio admits, its REST and WebSocket.

| | |
|---|---|
| ``POST /run?team=TEAM&delay_s=0`` | body: settings; starts a run, returns its `run_id` |
| ``GET /run/ID`` | settings, summary, events and traces of a run |
| ``POST /run/ID/stop`` | stops a run that was started here |
| ``GET /runs?team=TEAM`` | runs of a team, the newest first |
| ``WS /ws/ID?after=N`` | events of a run as they happen, from the N-th on |
| ``GET /boards/NAME/report?episodes=N`` | report of a results folder |

TEAM is token-budget where it is not given; a run of that team shows its agent steps as events. A
run belongs to the server: it goes on when clients leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import asdict
from hashlib import sha256
from typing import Annotated, Any, Final

from fastapi import Body, FastAPI, Form, HTTPException, Query, Request, WebSocket
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway.guard import RequestError, check_head, check_length
from inframind_gym.studio.boards import EPISODES, Boards, script_hashes
from inframind_gym.studio.runs import BusyError, Launcher
from inframind_gym.teams.runs import Run
from inframind_gym.teams.token_budget.app import TEAM
from inframind_gym.teams.token_budget.rules import AGENT_STEP

COOKIE: Final = "inframind_studio"
MOST_BODY_BYTES: Final = 2**20
UNKNOWN_RUN: Final = 4404  # code of a WebSocket that is closed
_POLL_S: Final = 0.05
# NiceGUI compiles its templates in the browser and has its styles in the page.
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_REPORT_POLICY: Final = (  # its scripts and styles are in it; pages show it in a frame
    "default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'; sandbox allow-scripts"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SIGN_IN: Final = """<!doctype html><html lang="en"><title>inframind studio</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<body style="font: 16px system-ui; max-width: 26em; margin: 4em auto; padding: 0 1em">
<main><h1>Sign in</h1><form method="post" action="/sign-in">
<p><label>Token of this studio (its variable INFRAMIND_STUDIO_TOKEN)<br>
<input name="token" type="password" required style="width: 100%; font: inherit"></label></p>
<button style="font: inherit">Sign in</button></form></main>"""


def session_of(token: str) -> str:
    """Return the cookie of a browser that has given the token, which it does not show."""
    return hmac.new(token.encode(), b"inframind studio session", sha256).hexdigest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


class Guard:
    """ASGI middleware: refuses by host, origin, size and token before a body is read.

    Without a token names of this machine are served alone.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        connection = HTTPConnection(scope)
        try:
            self._check(connection)
        except RequestError as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": str(error)})
                return
            asks = error.status == 401 and "text/html" in connection.headers.get("accept", "")
            content = {"detail": str(error)}
            answer = HTMLResponse(_SIGN_IN, 401) if asks else JSONResponse(content, error.status)
            answer.headers["connection"] = "close"  # what is left of a body ends with it
            await answer(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check(self, connection: HTTPConnection) -> None:
        """Check a request by its head; raise `RequestError` if it is refused."""
        headers = connection.headers
        check_head(headers, loopback_only=self._token is None)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise RequestError(403, "wrong_origin", "pages of other sites are not admitted")
        if connection.scope.get("method") == "POST" and "content-length" not in headers:
            raise RequestError(411, "length_required", "Content-Length is needed")
        check_length(headers, MOST_BODY_BYTES)
        if self._token is None or connection.scope["path"] == "/sign-in":
            return
        cookie = connection.cookies.get(COOKIE, "")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if not (_same(cookie, session_of(self._token)) or _same(bearer, self._token)):
            words = "a token is needed: send `Authorization: Bearer TOKEN`"
            raise RequestError(401, "invalid_token", words)


def make_app(launcher: Launcher, boards: Boards, *, token: str | None = None) -> FastAPI:
    """Make the application without its pages, which `pages.attach` adds."""
    store = launcher.store

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(launcher.close)

    def find(run_id: str) -> Run:
        with contextlib.suppress(ConfigError):  # its text has the file and names of other runs
            run = store.get_run(run_id)
            if run.run_id == run_id:
                return run
        raise HTTPException(404, "no run of this name")

    def events(run: Run) -> list[dict[str, Any]]:
        found = store.events(run.run_id)
        kinds = {AGENT_STEP} if run.team == TEAM else {event.kind for event in found}
        return [{"event": e.kind, "data": e.data} for e in found if e.kind in kinds]

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, token=token)

    @app.exception_handler(InfraMindError)
    async def wrong(_: Request, error: InfraMindError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 429 if isinstance(error, BusyError) else 422)

    @app.post("/run")
    def start(
        settings: Annotated[dict[str, Any], Body()], team: str = TEAM, delay_s: float = 0.0
    ) -> dict[str, str]:
        return {"run_id": launcher.start(team, settings, delay_s)}

    @app.get("/run/{run_id}")
    def show(run_id: str) -> dict[str, Any]:
        run = find(run_id)
        traces = [{"seq": e.seq, **e.data} for e in store.events(run_id) if e.kind == "trace"]
        return {**asdict(run), "events": events(run), "traces": traces}

    @app.post("/run/{run_id}/stop")
    def stop(run_id: str) -> dict[str, bool]:
        if not launcher.stop(run_id):
            raise HTTPException(404, "this run is not under way in the studio")
        return {"stopping": True}

    @app.get("/runs")
    def show_all(team: str = TEAM) -> list[dict[str, Any]]:
        return [asdict(run) for run in store.list_runs(team)]

    @app.websocket("/ws/{run_id}")
    async def follow(
        socket: WebSocket, run_id: str, after: Annotated[int, Query(ge=0)] = 0
    ) -> None:
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # a client that has left
            try:
                while True:
                    run = find(run_id)  # before its events: those of a run that is over are all
                    for event in (await asyncio.to_thread(events, run))[after:]:
                        await socket.send_json(event)
                        after += 1
                    if run.status != "running":
                        await socket.close(1000, run.status)
                        return
                    await asyncio.sleep(_POLL_S)
            except HTTPException as error:
                await socket.close(UNKNOWN_RUN, error.detail)

    @app.get("/boards/{name}/report")
    def report(name: str, episodes: Annotated[int, Query(ge=0, le=EPISODES)] = 0) -> HTMLResponse:
        try:
            html = boards.report(name, episodes)
        except InfraMindError as error:
            raise HTTPException(404, str(error)) from None
        policy = _REPORT_POLICY.format(scripts=script_hashes(html))
        return HTMLResponse(html, headers={"content-security-policy": policy})

    @app.post("/sign-in")
    def sign_in(request: Request, given: Annotated[str, Form(alias="token")]) -> Response:
        if token is None or not _same(given, token):
            return HTMLResponse(_SIGN_IN, 401)
        response = RedirectResponse("/", 303)
        secure, cookie = request.url.scheme == "https", session_of(token)
        response.set_cookie(COOKIE, cookie, samesite="strict", httponly=True, secure=secure)
        return response

    return app
