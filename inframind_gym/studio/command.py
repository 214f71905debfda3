"""`inframind studio`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated, Final

import typer

from inframind_gym.errors import ConfigError, require
from inframind_gym.live.config import require_live
from inframind_gym.live.guard import LEAST_TOKEN_CHARS, LOOPBACK, bounded_protocol, listening
from inframind_gym.progress import say
from inframind_gym.teams.runs import DEFAULT_FILE, ProviderName, Runs, RunStore

TOKEN_VARIABLE: Final = "INFRAMIND_STUDIO_TOKEN"
MOST_CONNECTIONS: Final = 256  # of an address, WebSockets apart


def studio(
    host: Annotated[
        str, typer.Option(help=f"Address. Addresses other than loopback need {TOKEN_VARIABLE}.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port.")] = 8_500,
    runs: Runs = DEFAULT_FILE,
    results: Annotated[
        list[Path], typer.Option(help="Results folder, or a folder of them; may be repeated.")
    ] = [Path("results")],  # noqa: B006 (typer copies it)
    provider: ProviderName = "simulated",
    model: Annotated[str | None, typer.Option(help="Its model; needed for a URL.")] = None,
    pool: Annotated[str | None, typer.Option(help="Pool of live servers, name or file.")] = None,
    gateway: Annotated[str | None, typer.Option(help="Gateway to watch.", metavar="URL")] = None,
) -> None:
    """Show pools, runs of teams and boards on a page, live or from their records.

    It serves the REST and WebSocket of the token-budget team, too: POST /run, GET /run/ID,
    GET /runs, WS /ws/ID.
    """
    require("nicegui", "`inframind studio`", "studio")
    import uvicorn

    from inframind_gym.studio.pages import attach
    from inframind_gym.studio.runs import Launcher, Ways
    from inframind_gym.studio.server import MOST_BODY_BYTES, Boards, make_app

    token = os.environ.get(TOKEN_VARIABLE, "").strip() or None
    if len(token or "") < LEAST_TOKEN_CHARS and (token is not None or host not in LOOPBACK):
        raise ConfigError(
            f"set {TOKEN_VARIABLE} to a token of {LEAST_TOKEN_CHARS} characters or more that "
            f"browsers must give (`openssl rand -hex 16`), or serve 127.0.0.1 without one"
        )
    if gateway is not None and not gateway.startswith(("http://", "https://")):
        raise ConfigError(f"--gateway {gateway}: give an address such as http://127.0.0.1:8080")
    if gateway is not None or pool is not None:
        require_live()
    if pool is not None:
        from inframind_gym.simulator.server.pool import load_pool

        load_pool(pool)
    ways = Ways(provider, model, gateway, pool)
    if way := ways.open():  # a wrong provider or a missing key is said before anything is served
        asyncio.run(way.aclose())
    with RunStore(runs) as store:
        launcher, boards = Launcher(store, ways), Boards(results)
        attach(app := make_app(launcher, boards, token=token), launcher, boards)
        address = listening(host, port)
        asks = "" if token is None else f", with the token of {TOKEN_VARIABLE}"
        at = f"http://{host}:{address.getsockname()[1]}"
        say(f"studio on {at}{asks}; runs in {runs}. Ctrl-C ends it")
        config = uvicorn.Config(
            app,
            log_level="warning",
            server_header=False,
            ws_max_size=MOST_BODY_BYTES,
            http=bounded_protocol(MOST_CONNECTIONS),
            timeout_graceful_shutdown=3,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[address])
