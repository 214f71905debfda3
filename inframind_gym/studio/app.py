"""REST and WebSocket of the studio over a file of runs.

| | |
|---|---|
| ``GET /api/info`` | version, teams with what their forms offer, pools to watch |
| ``GET /api/runs`` | runs of the file, the newest first |
| ``POST /api/runs`` | body: team, settings, delay_s; starts a run, returns its `run_id` |
| ``GET /api/runs/ID`` | a run |
| ``POST /api/runs/ID/stop`` | stops a run that was started here |
| ``GET /api/runs/ID/events?after=N`` | its events whose number is greater than N |
| ``WS /api/runs/ID/events?after=N`` | the same as they happen, in batches, then the run |
| ``GET /api/compare/A/B`` | two runs of a team side by side |
| ``GET /api/boards`` | results folders |
| ``GET /api/boards/NAME/report?episodes=N`` | the report of one, an HTML page |
| ``POST /api/session`` | body: token; gives a browser its cookie |

A run belongs to the server: it goes on when pages are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, WebSocket
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from starlette.websockets import WebSocketDisconnect

import inframind_gym
from inframind_gym.errors import ConfigError, InfraMindError, shortened
from inframind_gym.studio.boards import Boards, script_hashes
from inframind_gym.studio.launch import BusyError, Launcher
from inframind_gym.studio.orders import choices, defaults
from inframind_gym.studio.security import (
    REPORT_POLICY,
    Headers,
    admitted,
    keep_session,
    refused,
)
from inframind_gym.teams.runs.compare import compare
from inframind_gym.teams.runs.store import Run, RunStore
from inframind_gym.teams.token_budget.server import of_limited_size, refusal

BUNDLE: Final = Path(__file__).with_name("static")
MOST_EVENTS: Final = 500  # of a batch
MOST_LISTED: Final = 300  # runs
MOST_LISTED_CHARS: Final = 300  # of a text in the list
EPISODES: Final = 12  # of a report
_POLL_S: Final = 0.1
_UNKNOWN_RUN: Final = 4404  # codes of a WebSocket that is closed
_REFUSED: Final = 4403

Episodes = Annotated[int, Query(ge=0, le=EPISODES, description="That are played again.")]
After = Annotated[int, Query(ge=0, le=2**53, description="Number of the last event that is known.")]


class Start(BaseModel, extra="forbid"):
    """Body of ``POST /api/runs``."""

    team: str
    settings: dict[str, Any] = Field(default_factory=dict)
    delay_s: float = 0.0


class SignIn(BaseModel, extra="forbid"):
    """Body of ``POST /api/session``."""

    token: str


def require_bundle(folder: Path = BUNDLE) -> Path:
    """Return the folder of the built page.

    Raises:
        ConfigError: it has not been built.
    """
    if not (folder / "index.html").is_file():
        raise ConfigError(
            f"{folder}: the page of the studio is not built. In a checkout `make studio` builds it "
            "(Node.js 20.19 or newer); what was installed from there by `pip install .` has to be "
            "installed again."
        )
    return folder


class Pages:
    """What the page reads, live or from files that `export` writes.

    Args:
        store: file of runs.
        boards: results folders.
    """

    def __init__(self, store: RunStore, boards: Boards) -> None:
        self.store, self.boards = store, boards

    def runs(self) -> list[dict[str, Any]]:
        """Return the newest runs, their long texts cut."""
        return [_brief(run) for run in self.store.list_runs(most=MOST_LISTED)]

    def run(self, run_id: str) -> Run:
        """Return a run by its whole name.

        Raises:
            ConfigError: there is none.
        """
        run = self.store.get_run(run_id)
        if run.run_id != run_id:
            raise ConfigError(f"there is no run {run_id[:40]!r}")
        return run

    def events(self, run_id: str, after: int = 0) -> list[dict[str, Any]]:
        """Return the events of a run whose number is greater than `after`."""
        return [asdict(event) for event in self.store.events(run_id, after)]

    def info(self, sources: list[str]) -> dict[str, Any]:
        """Return what the forms offer."""
        return {
            "version": inframind_gym.__version__,
            "sources": sources,
            "choices": choices(),
            "defaults": defaults(),
        }


def make_app(
    pages: Pages, launcher: Launcher, *, token: str | None = None, bundle: Path = BUNDLE
) -> FastAPI:
    """Make the application.

    Args:
        pages: runs and boards that are shown.
        launcher: starts runs.
        token: that browsers must give; None: names of this machine are served alone.
        bundle: folder of the built page.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(launcher.close)

    app = FastAPI(
        title="inframind studio", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.add_middleware(Headers)

    @app.exception_handler(InfraMindError)
    async def wrong(_: Request, error: InfraMindError) -> JSONResponse:
        status = 429 if isinstance(error, BusyError) else 422
        return JSONResponse({"detail": str(error)}, status)

    app.include_router(_reading(pages, launcher, token))
    app.include_router(_writing(launcher, token))
    _sign_in(app, token)
    _follow(app, pages, token)
    app.mount("/", StaticFiles(directory=bundle, html=True))
    return app


def _reading(pages: Pages, launcher: Launcher, token: str | None) -> APIRouter:
    router = APIRouter(prefix="/api", dependencies=[Depends(admitted(token))])

    @router.get("/info")
    def info() -> dict[str, Any]:
        return pages.info(launcher.ways.sources())

    @router.get("/runs")
    def runs() -> dict[str, Any]:
        return {"runs": pages.runs(), "owned": launcher.owned()}

    @router.get("/runs/{run_id}")
    def run(run_id: str) -> dict[str, Any]:
        return asdict(_found(pages, run_id))

    @router.get("/runs/{run_id}/events")
    def events(run_id: str, after: After = 0) -> list[dict[str, Any]]:
        return pages.events(_found(pages, run_id).run_id, after)

    @router.get("/compare/{first}/{second}")
    def compared(first: str, second: str) -> dict[str, Any]:
        return compare(pages.store, *(_found(pages, name).run_id for name in (first, second)))

    @router.get("/boards")
    def boards() -> list[dict[str, Any]]:
        return pages.boards.listed()

    @router.get("/boards/{name}/report")
    def report(name: str, episodes: Episodes = 0) -> HTMLResponse:
        try:
            html = pages.boards.report(name, episodes)
        except ConfigError as error:
            raise HTTPException(404, str(error)) from None
        policy = REPORT_POLICY.format(scripts=script_hashes(html))
        return HTMLResponse(html, headers={"content-security-policy": policy})

    return router


def _writing(launcher: Launcher, token: str | None) -> APIRouter:
    guards = [Depends(of_limited_size), Depends(admitted(token))]
    router = APIRouter(prefix="/api/runs", dependencies=guards)

    @router.post("")
    def start(order: Start) -> dict[str, str]:
        return {"run_id": launcher.start(order.team, order.settings, order.delay_s)}

    @router.post("/{run_id}/stop")
    def stop(run_id: str) -> dict[str, bool]:
        if not launcher.stop(run_id):
            raise HTTPException(404, "this run is not under way in the studio")
        return {"stopping": True}

    return router


def _sign_in(app: FastAPI, token: str | None) -> None:
    @app.post("/api/session", dependencies=[Depends(of_limited_size)])
    def sign_in(given: SignIn, request: Request) -> Response:
        found = refusal(request, token, given.token)
        if found is not None:
            raise HTTPException(*found)
        response = JSONResponse({"signed_in": True})
        if token is not None:
            keep_session(response, token, secure=request.url.scheme == "https")
        return response


def _follow(app: FastAPI, pages: Pages, token: str | None) -> None:
    @app.websocket("/api/runs/{run_id}/events")
    async def follow(socket: WebSocket, run_id: str, after: After = 0) -> None:
        await socket.accept()
        found = refused(socket, token)
        if found is not None:
            await socket.close(_REFUSED, found[1])
            return
        try:
            pages.run(run_id)
        except ConfigError:
            await socket.close(_UNKNOWN_RUN, "no run of this name")
            return
        leaving = asyncio.create_task(_left(socket))
        sending = asyncio.create_task(_send_all(socket, pages, run_id, after))
        await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, sending):
            task.cancel()
            with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await task


async def _send_all(socket: WebSocket, pages: Pages, run_id: str, after: int) -> None:
    """Send the events of a run in batches until it has ended, and then the run itself."""
    while True:
        run = pages.run(run_id)  # before its events: those of a run that has ended are complete
        events = await asyncio.to_thread(pages.events, run_id, after)
        for first in range(0, len(events), MOST_EVENTS):
            await socket.send_json({"events": events[first : first + MOST_EVENTS]})
        after = events[-1]["seq"] if events else after
        if run.status != "running":
            await socket.send_json({"run": asdict(run)})
            await socket.close(1000, run.status)
            return
        await asyncio.sleep(_POLL_S)


async def _left(socket: WebSocket) -> None:
    """Wait until the client leaves; what it sends is not read."""
    with suppress(WebSocketDisconnect, RuntimeError):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


def _brief(run: Run) -> dict[str, Any]:
    """Return a run whose long texts are cut."""
    told = asdict(run)
    for part in ("settings", "summary"):
        told[part] = told[part] and {
            key: shortened(value, MOST_LISTED_CHARS) if isinstance(value, str) else value
            for key, value in told[part].items()
        }
    return told


def _found(pages: Pages, run_id: str) -> Run:
    try:
        return pages.run(run_id)
    except ConfigError:  # its text has the file and the names of other runs
        raise HTTPException(404, "no run of this name") from None
