"""`inframind serve`: the gateway as a process; signals, drain, reload."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inframind_gym.errors import InfraMindError, friendly, require
from inframind_gym.sockets import listening

if TYPE_CHECKING:
    from inframind_gym.live.gateway.app import App
    from inframind_gym.live.gateway.config import GatewayConfig
    from inframind_gym.live.gateway.gateway import Gateway

_log = logging.getLogger("inframind.gateway")
_MODULES = ("uvicorn", "httptools", "uvloop")


def _option(words: str, **more: Any) -> Any:
    return typer.Option(help=words, show_default=False, **more)


def serve(
    pool: Annotated[str | None, _option("A shipped pool's name, or a YAML file.")] = None,
    policy: Annotated[
        str | None,
        _option(
            "Router of inframind/auto and inframind/team, by name or package.module:Class. "
            "Default: bid_price."
        ),
    ] = None,
    workload: Annotated[str | None, _option("What the policy believes of questions.")] = None,
    host: Annotated[str | None, _option("Address; others than 127.0.0.1 need keys.")] = None,
    port: Annotated[int | None, _option("Default: 8080.")] = None,
    config: Annotated[Path | None, _option("gateway.yaml; SIGHUP reads it again.")] = None,
    record: Annotated[
        str | None,
        _option("Append a line for every request, for `inframind calibrate`.", metavar="FILE"),
    ] = None,
    speed: Annotated[float | None, _option("Of simulated servers (`pool up --simulate`).")] = None,
) -> None:
    """Serve a pool's models behind one OpenAI-compatible address, routed by a policy.

    Model "inframind/auto" routes a call, "inframind/team" carries out a workflow, and the pool's
    own names pass through. SIGHUP reloads, SIGTERM waits for what is in flight and ends.
    """
    with friendly():
        for module in _MODULES:
            require(module, "the gateway", "serve")
        from inframind_gym.live.gateway.config import gateway_config

        options: dict[str, Any] = {"pool": pool, "policy": policy, "workload": workload}
        options |= {"host": host, "port": port, "log": record, "speed": speed}
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        run(gateway_config(config, options), config, options)


def run(config: GatewayConfig, path: Path | None, options: dict[str, Any]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        config: to begin with.
        path: file that SIGHUP reads again.
        options: that take the place of its keys.

    Raises:
        InfraMindError: the configuration cannot be used, or its port is taken.
    """
    import uvicorn
    import uvloop

    from inframind_gym.live.gateway.app import App
    from inframind_gym.live.gateway.gateway import Gateway
    from inframind_gym.live.gateway.metrics import Metrics
    from inframind_gym.live.gateway.protocol import peer_options

    class Server(uvicorn.Server):
        """Ends with status 0 on a signal, once what is in flight is over; at once on a second."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            def end() -> None:
                self.force_exit = self.should_exit
                app.draining = self.should_exit = True

            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, end)
            yield

    address = listening(config.host, config.port)
    app = App(Gateway(config, Metrics()))
    server = Server(
        uvicorn.Config(
            app,
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

    async def main() -> None:
        reloads = _Reloads(app, path, options)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloads.ask)
        await server.serve(sockets=[address])

    _log.info(
        "pool %s, policy %s: http://%s:%d/v1", config.pool, config.policy, config.host, config.port
    )
    uvloop.run(main())


class _Reloads:
    """Reloads of a running application, one at a time.

    Args:
        app: whose gateway is exchanged.
        path: the configuration's file.
        options: that take the place of its keys.
    """

    def __init__(self, app: App, path: Path | None, options: dict[str, Any]) -> None:
        self._app, self._path, self._options = app, path, options
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self) -> None:
        """Reload; after the reload that is under way, if one is."""
        task = asyncio.ensure_future(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        """Exchange the gateway; requests in flight end with the one that they began with.

        A configuration that cannot be used changes nothing. Address and limits of connections
        stay as they are.
        """
        async with self._lock:
            old = await self._exchange()
        if old is not None:
            await old.close(old.config.limits.drain_s)

    async def _exchange(self) -> Gateway | None:
        """Return the gateway that was replaced."""
        from inframind_gym.live.gateway.config import gateway_config
        from inframind_gym.live.gateway.gateway import Gateway

        old = self._app.gateway
        try:
            config = gateway_config(self._path, self._options)
            loop = asyncio.get_running_loop()
            new = await loop.run_in_executor(None, Gateway, config, old.metrics)
            await new.open()
        except Exception as error:
            old.metrics.count("reloads", "failed")
            shown = error if isinstance(error, InfraMindError) else type(error).__name__
            _log.error("not reloaded, the old configuration stays: %s", shown)
            return None
        self._app.gateway = new
        old.metrics.count("reloads", "ok")
        _log.info("reloaded: pool %s, policy %s", config.pool, config.policy)
        return old
