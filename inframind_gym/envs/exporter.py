"""Serves the metrics of a router over HTTP, for Prometheus to scrape.

    exporter = RouterExporter(pool.aliases, port=9400)
    exporter.metrics.watch(env, policy)  # see `router_metrics` for what to call then
    ...
    exporter.close()

`inframind_gym.envs.wrappers.ExportMetrics` does all of it for one environment.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from inframind_gym.envs.router_metrics import RouterMetrics
from inframind_gym.errors import ConfigError, InfraMindError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 9400
_SILENCE_S: Final = 2.0  # for which a client may say nothing; closing waits no longer


class RouterExporter:
    """Metrics of a router and the server that shows them.

    Args:
        models: aliases of the pool's models.
        port: where to listen; 0 takes a free port.
        host: address to listen at. The metrics are shown to whoever can reach it.

    Attributes:
        metrics: to be told what happens.
        port: where it listens.

    Raises:
        ConfigError: there is no such port.
        InfraMindError: the port is in use, there is no such address, or prometheus-client is not
            installed.
    """

    def __init__(
        self, models: Sequence[str], port: int = DEFAULT_PORT, host: str = "127.0.0.1"
    ) -> None:
        self.metrics = RouterMetrics(models)
        self._host = host
        self._server = _listen(self.metrics.registry, host, port)
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(0.05,),
            name=f"metrics-{self.port}",
            daemon=True,
        )
        self._thread.start()
        self._closed = False

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop serving and free the port. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.metrics.watch(None)


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: somebody asks every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request; closing waits for them."""

    daemon_threads = False

    def server_bind(self) -> None:
        """Bind without asking a name server what this host is called."""
        TCPServer.server_bind(self)
        name, port, *_ = self.server_address
        self.server_name, self.server_port = str(name), int(port)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client has gone away or says nothing."""
        _log.debug("request from %s failed", client_address, exc_info=True)


def _listen(registry: CollectorRegistry, host: str, port: int) -> _Server:
    """A server that is bound and does not serve yet.

    Raises:
        ConfigError: there is no such port.
        InfraMindError: it cannot listen there.
    """
    from prometheus_client import make_wsgi_app

    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigError(f"port must be an integer in 0..65535 (0: a free one), got {port!r}.")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_Server", (_Server,), {"address_family": family})
        server: _Server = kind((host, port), _Handler)
    except OSError as error:
        raise InfraMindError(
            f"metrics cannot be served at {host}:{port}: {error.strerror or error}. "
            "Name another port; 0 takes a free one."
        ) from None
    app: Callable[..., Any] = make_wsgi_app(registry)
    server.set_app(app)
    return server
