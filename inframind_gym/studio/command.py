"""`inframind studio`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from inframind_gym.errors import ConfigError, friendly, require
from inframind_gym.progress import say
from inframind_gym.sockets import listening
from inframind_gym.teams.runs.store import DEFAULT_FILE, RunStore
from inframind_gym.teams.terminal import ProviderName, Runs

Folders = Annotated[
    list[Path],
    typer.Option("--results", help="Results folder, or a folder of them; may be repeated."),
]


def studio(
    host: Annotated[
        str, typer.Option(help="Address. Any but this machine's needs INFRAMIND_STUDIO_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port.")] = 8_500,
    runs: Runs = DEFAULT_FILE,
    results: Folders = [Path("results")],  # noqa: B006 (typer copies it)
    provider: ProviderName = "simulated",
    model: Annotated[
        str | None,
        typer.Option(help="Model of the provider; needed for a URL.", show_default=False),
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="Pool of live servers to watch, name or file.", show_default=False),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Gateway to watch.", show_default=False),
    ] = None,
    access_log: Annotated[
        Path | None,
        typer.Option(
            help="Access log of that gateway (`inframind serve --record`): shows its requests.",
            show_default=False,
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the page with its runs and boards into this folder, for any web server, "
            "and end.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show pools, runs of teams and boards on a page, live or from their records."""
    with friendly():
        for module in ("fastapi", "uvicorn", "websockets"):
            require(module, "`inframind studio`", "studio")
        import uvicorn

        from inframind_gym.studio.app import Pages, make_app, require_bundle
        from inframind_gym.studio.boards import Boards
        from inframind_gym.studio.export import write_static
        from inframind_gym.studio.launch import Launcher, Ways
        from inframind_gym.studio.security import TOKEN_VARIABLE, require_token

        token = require_token(host, os.environ.get(TOKEN_VARIABLE))
        bundle = require_bundle()
        if gateway is not None and not gateway.startswith(("http://", "https://")):
            raise ConfigError(f"--gateway {gateway}: give an address such as http://127.0.0.1:8080")
        if gateway is not None or pool is not None:
            for module in ("aiohttp", "prometheus_client"):
                require(module, "watching live servers", "live")
        if pool is not None:
            from inframind_gym.simulator.server.pool import load_pool

            load_pool(pool)
        boards = Boards(results)
        with RunStore(runs) as store:
            pages = Pages(store, boards)
            if export is not None:
                written = write_static(pages, export, bundle)
                say(f"wrote {export}: {written}. `python -m http.server -d {export}` serves it")
                return
            launcher = Launcher(store, Ways(provider, model, gateway, access_log, pool))
            app = make_app(pages, launcher, token=token, bundle=bundle)
            asks = "" if token is None else f", with the token of {TOKEN_VARIABLE}"
            address = listening(host, port)
            at = f"http://{host}:{address.getsockname()[1]}"
            say(f"studio on {at}{asks}; runs in {runs}. Ctrl-C ends it")
            server = uvicorn.Config(
                app, log_level="warning", server_header=False, timeout_graceful_shutdown=3
            )
            with contextlib.suppress(KeyboardInterrupt):
                uvicorn.Server(server).run(sockets=[address])
