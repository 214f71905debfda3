"""REST and live events of the token-budget team.

| | |
|---|---|
| ``POST /run`` | body: an `Order`; starts a run, returns its `run_id` |
| ``GET /run/{run_id}`` | settings, summary, events and traces of a run |
| ``GET /runs`` | all runs of the file, the newest first |
| ``WS /ws/{run_id}?after=N`` | events of a run as they happen, from the N-th on |
| ``GET /events/{run_id}`` | the same as server-sent events; the `id` is the event's number |

A run belongs to the server, not to a client: it goes on when a WebSocket is left, and every client
can read its events again from any number. Without a token only names of this machine are served,
and pages of other origins are refused.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, HTTPException, Query, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from starlette.requests import HTTPConnection

from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.teams.llm.types import Provider
from inframind_gym.teams.runs.store import Run, RunLog, RunStore
from inframind_gym.teams.token_budget.orchestrator import Orchestrator, play
from inframind_gym.teams.token_budget.order import TEAM, Order
from inframind_gym.teams.token_budget.state import AGENT_STEP

LOCAL_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})
MOST_BODY_BYTES: Final = 2**20
_POLL_S: Final = 0.05
_UNKNOWN_RUN: Final = 4404  # codes of a WebSocket that is closed
_REFUSED: Final = 4403

After = Annotated[int, Query(ge=0, description="Number of the last event that is known.")]


def make_app(
    store: RunStore,
    open_provider: Callable[[], Provider | None],
    *,
    token: str | None = None,
    most_runs: int = 8,
) -> FastAPI:
    """Make the application.

    Args:
        store: file of runs.
        open_provider: returns a new way to the model for a run; None for the simulated one.
        token: that every request must carry; None: requests of this machine need none.
        most_runs: runs at once.
    """
    runs: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    def admit(connection: HTTPConnection) -> None:
        refused = refusal(connection, token)
        if refused is not None:
            raise HTTPException(*refused)

    app = FastAPI(title="inframind team", lifespan=lifespan)
    guarded = [Depends(admit)]

    @app.post("/run", dependencies=[Depends(of_limited_size), *guarded])
    async def start(order: Order) -> dict[str, str]:
        if len(runs) >= most_runs:
            raise HTTPException(429, f"{most_runs} runs are under way; try again later")
        try:
            provider = open_provider()
            named = "simulated" if provider is None else provider.model
            order.policy()  # before a run is created: it may refuse its arguments
            log = RunLog(store, TEAM, {**order.model_dump(), "provider": named})
            orchestrator = Orchestrator(order, log, log.run_id, provider)
        except InfraMindError as error:
            raise HTTPException(422, str(error)) from None
        task = asyncio.create_task(_carry_out(orchestrator, log))
        runs.add(task)
        task.add_done_callback(runs.discard)
        return {"run_id": log.run_id}

    @app.get("/run/{run_id}", dependencies=guarded)
    async def show(run_id: str) -> dict[str, Any]:
        run = _found(store, run_id)
        events = store.events(run.run_id)
        steps = [{"event": AGENT_STEP, "data": e.data} for e in events if e.kind == AGENT_STEP]
        traces = [{"seq": e.seq, **e.data} for e in events if e.kind == "trace"]
        return {**asdict(run), "events": steps, "traces": traces}

    @app.get("/runs", dependencies=guarded)
    async def show_all() -> list[dict[str, Any]]:
        return [asdict(run) for run in store.list_runs(TEAM)]

    @app.get("/events/{run_id}", dependencies=guarded)
    async def stream(
        run_id: str, connection: HTTPConnection, after: After = 0
    ) -> StreamingResponse:
        run = _found(store, run_id)
        known = connection.headers.get("last-event-id", "")
        first = int(known) if known.isascii() and known.isdigit() else after
        return StreamingResponse(_as_sse(store, run.run_id, first), media_type="text/event-stream")

    @app.websocket("/ws/{run_id}")
    async def follow_live(socket: WebSocket, run_id: str, after: After = 0) -> None:
        await socket.accept()
        if (refused := refusal(socket, token)) is not None:
            await socket.close(_REFUSED, refused[1])
            return
        try:
            run = store.get_run(run_id)
        except ConfigError:
            await socket.close(_UNKNOWN_RUN, "no run of this name")
            return
        await _send_events(socket, store, run.run_id, after)

    return app


def refusal(
    connection: HTTPConnection, token: str | None, given: str = ""
) -> tuple[int, str] | None:
    """Return the status and the reason of a request that is not admitted; None if it is.

    A page of another origin is refused, and without a token a name that is not this machine's:
    browsers would otherwise let any page that the user visits start runs.

    Args:
        connection: the request.
        token: that it must carry; None: it must be for a name of this machine.
        given: the token, where the caller has found it elsewhere than in header or query.
    """
    host = connection.headers.get("host", "")
    origin = connection.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return 403, "pages of other origins are not admitted"
    if token is None:
        name = urlsplit(f"//{host}").hostname or ""
        if name in LOCAL_NAMES:
            return None
        return 403, f"unknown name of this machine: {name[:80]!r}"
    given = given or connection.headers.get("authorization", "").removeprefix("Bearer ")
    given = given or connection.query_params.get("token", "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return 401, "a token is needed: send `Authorization: Bearer TOKEN`, or ?token=TOKEN"
    return None


async def follow(
    store: RunStore, run_id: str, after: int = 0
) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """Yield the events of a run with their numbers from 1, until it has ended.

    Args:
        store: file of runs.
        run_id: which run.
        after: number of the last event that is known already.
    """
    seq = number = 0
    while True:
        ended = store.get_run(run_id).status != "running"  # asked before the events are read
        for event in store.events(run_id, seq):
            seq = event.seq
            if event.kind == AGENT_STEP:
                number += 1
                if number > after:
                    yield number, {"event": AGENT_STEP, "data": event.data}
        if ended:
            return
        await asyncio.sleep(_POLL_S)


async def _send_events(socket: WebSocket, store: RunStore, run_id: str, after: int) -> None:
    """Send events until the run ends or the client leaves."""
    leaving = asyncio.create_task(_left(socket))
    sending = asyncio.create_task(_send_all(socket, store, run_id, after))
    await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
    for task in (leaving, sending):
        task.cancel()
        with suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
            await task


async def _send_all(socket: WebSocket, store: RunStore, run_id: str, after: int) -> None:
    async for _, event in follow(store, run_id, after):
        await socket.send_json(event)
    await socket.close(1000, store.get_run(run_id).status)


async def _left(socket: WebSocket) -> None:
    """Wait until the client leaves; what it sends is not read."""
    with suppress(WebSocketDisconnect, RuntimeError):
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return


async def _as_sse(store: RunStore, run_id: str, after: int) -> AsyncIterator[str]:
    async for number, event in follow(store, run_id, after):
        yield f"id: {number}\nevent: {AGENT_STEP}\ndata: {json.dumps(event)}\n\n"
    yield f"event: end\ndata: {json.dumps({'status': store.get_run(run_id).status})}\n\n"


async def _carry_out(orchestrator: Orchestrator, log: RunLog) -> None:
    """Play a run; whatever happens, it is finished in the file."""
    try:
        await play(orchestrator, log)
    except asyncio.CancelledError:
        log.finish("interrupted", {**orchestrator.summary(), "error": "the server was stopped"})
        raise
    except Exception as error:
        log.finish(
            "failed", {**orchestrator.summary(), "error": f"{type(error).__name__}: {error}"}
        )


def _found(store: RunStore, run_id: str) -> Run:
    try:
        return store.get_run(run_id)
    except ConfigError:  # its text has the file and the names of other runs
        raise HTTPException(404, "no run of this name") from None


def of_limited_size(connection: HTTPConnection) -> None:
    """Refuse a request without a length, or with a body of more than `MOST_BODY_BYTES`."""
    length = connection.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "Content-Length is needed")
    if int(length) > MOST_BODY_BYTES:
        raise HTTPException(413, f"a body has at most {MOST_BODY_BYTES:,} bytes")
