"""Requests that the studio admits, its REST and WebSocket (docs/studio.md), and its boards.

A run of token-budget, the team where none is given, shows its agent steps as events. A run belongs
to the server: it goes on when clients leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import Body, FastAPI, Form, HTTPException, Query, Request, WebSocket
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.requests import cookie_parser
from starlette.websockets import WebSocketDisconnect

from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.evaluation.report.page import write_report
from inframind_gym.evaluation.store import HEADER, finished_ids, read_header
from inframind_gym.live.guard import Guard, RequestError, is_secret
from inframind_gym.studio.runs import TEAMS, BusyError, Launcher
from inframind_gym.teams.runs import Event, Run, RunStore
from inframind_gym.teams.token_budget.app import TEAM
from inframind_gym.teams.token_budget.rules import AGENT_STEP

COOKIE: Final = "inframind_studio"
MOST_BODY_BYTES: Final = 2**20
UNKNOWN_RUN: Final = 4404  # code of a WebSocket that is closed
_POLL_S: Final = 0.05
_DEEPEST: Final = 3  # folders of results below those that were given
# NiceGUI compiles its templates in the browser and has its styles in the page.
_POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_REPORT_POLICY: Final = (  # its scripts and styles are in it; pages show it in a frame
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
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


class Boards:
    """Results folders, those under some roots included, and their reports."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots

    def find(self) -> dict[str, Path]:
        """Return the folders by the names under which the pages know them."""
        folders: dict[str, Path] = {}
        for root in self._roots:
            for depth in range(_DEEPEST + 1):
                for path in sorted(root.glob("/".join(["*"] * depth + [HEADER]))):
                    name = "--".join(path.parent.relative_to(root).parts) or root.resolve().name
                    folders.setdefault(name, path.parent)
        return folders

    def listed(self) -> list[dict[str, Any]]:
        """Return what is listed of each folder: name, suite, policies, finished cells, or error."""
        rows: list[dict[str, Any]] = []
        for name, folder in self.find().items():
            rows.append({"name": name})
            try:
                header, cells = read_header(folder), len(finished_ids(folder))
            except (InfraMindError, OSError) as error:
                rows[-1]["error"] = str(error)
                continue
            planned = sum(map(len, header.get("planned", {}).values()))
            rows[-1] |= {"suite": header["suite"].get("name", ""), "cells": cells}
            rows[-1] |= {"planned": planned, "policies": ", ".join(header["policies"])}
        return rows

    def report(self, name: str) -> str:
        """Return the HTML of a folder's report, an `InfraMindError` without readable results."""
        folder = self.find().get(name)
        if folder is None:
            raise ConfigError(f"there is no results folder {name[:100]!r}")
        with tempfile.TemporaryDirectory() as scratch:
            page = Path(scratch, "report.html")
            write_report([folder], page)
            return page.read_text(encoding="utf-8")


def _admission(token: str | None, session: str) -> dict[str, Any]:
    """Return how `Guard` admits and refuses: by the token, or by the cookie of its session."""

    def admit(scope: dict[str, Any], headers: dict[str, str]) -> None:
        if token is None or scope["path"] == "/sign-in":
            return
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if not (is_secret(cookie, session) or is_secret(bearer, token)):
            words = "a token is needed: send `Authorization: Bearer TOKEN`"
            raise RequestError(401, "invalid_token", words)

    def refuse(headers: dict[str, str], error: RequestError) -> tuple[str, bytes]:
        if error.status == 401 and "text/html" in headers.get("accept", ""):
            return "text/html; charset=utf-8", _SIGN_IN.encode()
        return "application/json", json.dumps({"detail": str(error)}).encode()

    return {"admit": admit, "refuse": refuse, "loopback_only": token is None}


def _find(store: RunStore, run_id: str) -> Run:
    """Return a run; 404 where there is none of this name."""
    with contextlib.suppress(ConfigError):  # its text has the file and names of other runs
        run = store.get_run(run_id)
        if run.run_id == run_id:
            return run
    raise HTTPException(404, "no run of this name")


def _shown(run: Run, events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return those of a run's events that clients get."""
    chosen = (event for event in events if run.team != TEAM or event.kind == AGENT_STEP)
    return [{"event": event.kind, "data": event.data} for event in chosen]


def make_app(launcher: Launcher, boards: Boards, *, token: str | None = None) -> FastAPI:
    """Make the application without its pages, which `pages.attach` adds."""
    store = launcher.store
    # The cookie of a browser that has given the token, which it does not show.
    session = hmac.new((token or "").encode(), b"inframind studio session", sha256).hexdigest()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(launcher.close)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    admission = _admission(token, session)
    app.add_middleware(Guard, most_bytes=MOST_BODY_BYTES, headers=_HEADERS, **admission)

    @app.exception_handler(InfraMindError)
    async def wrong(_: Request, error: InfraMindError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 429 if isinstance(error, BusyError) else 422)

    @app.post("/run")
    def start(settings: Annotated[dict[str, Any], Body()], team: str = TEAM) -> dict[str, str]:
        return {"run_id": launcher.start(team, settings)}

    @app.get("/run/{run_id}")
    def show(run_id: str) -> dict[str, Any]:
        run, events = _find(store, run_id), store.events(run_id)
        traces = [{"seq": e.seq, **e.data} for e in events if e.kind == "trace"]
        return {**asdict(run), "events": _shown(run, events), "traces": traces}

    @app.get("/runs")
    def show_all(team: str = TEAM) -> list[dict[str, Any]]:
        if team not in TEAMS:
            raise ConfigError(unknown("team", team, TEAMS))
        return [asdict(run) for run in store.list_runs(team)]

    @app.websocket("/ws/{run_id}")
    async def follow(
        socket: WebSocket, run_id: str, after: Annotated[int, Query(ge=0)] = 0
    ) -> None:
        await socket.accept()
        seq = 0  # of the last event that was read
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # a client that has left
            try:
                while True:
                    run = _find(store, run_id)  # before its events: of one that is over all
                    events = await asyncio.to_thread(store.events, run_id, seq)
                    seq, shown = events[-1].seq if events else seq, _shown(run, events)
                    for event in shown[after:]:
                        await socket.send_json(event)
                    after = max(after - len(shown), 0)
                    if run.status != "running":
                        await socket.close(1000, run.status)
                        return
                    await asyncio.sleep(_POLL_S)
            except HTTPException as error:
                await socket.close(UNKNOWN_RUN, error.detail)

    @app.get("/boards/{name}/report")
    def report(name: str) -> HTMLResponse:
        try:
            html = boards.report(name)
        except InfraMindError as error:
            raise HTTPException(404, str(error)) from None
        return HTMLResponse(html, headers={"content-security-policy": _REPORT_POLICY})

    @app.post("/sign-in")
    def sign_in(request: Request, secret: Annotated[str, Form(alias="token")]) -> Response:
        if token is None or not is_secret(secret, token):
            wrong = '</h1><p role="alert">This is not the token of this studio.</p>'
            return HTMLResponse(_SIGN_IN.replace("</h1>", wrong), 401)
        response = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, session, samesite="strict", httponly=True, secure=secure)
        return response

    return app
