"""A gateway in front of five fake servers, in this process."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
import yaml

from inframind_gym.live.client import DownError, ask
from inframind_gym.live.gateway.app import make_app
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.gateway.gateway import Gateway
from inframind_gym.live.guard import bounded_protocol, listening
from inframind_gym.live.processes import free_ports
from tests.live.launch.play import CLI, ENV
from tests.live.vllm_server.fake import Answer, FakeServer, Script, until
from tests.live.vllm_server.live_play import five, pool_file

KEY = "sk-a-secret-of-a-test"


@dataclass
class Rig:
    """A running gateway."""

    gateway: Gateway
    servers: list[FakeServer]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        body: Any = None,
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] = {},
        **fields: Any,
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a POST, or of a GET for other paths."""
        if body is None and not path.startswith("/v1/c"):
            answer = httpx.get(self.url + path, headers=headers, timeout=60.0)
        else:
            content = body if isinstance(body, bytes) else json.dumps(chat(**fields)).encode()
            kind = {"Content-Type": "application/json"} | dict(headers)
            answer = httpx.post(self.url + path, content=content, headers=kind, timeout=60.0)
        return answer.status_code, dict(answer.headers), answer.content

    def alias(self, m: int) -> str:
        return self.gateway.pool.models[m].alias


def chat(**fields: Any) -> dict[str, Any]:
    """A chat completion's body."""
    usual = {"model": "inframind/auto", "messages": [{"role": "user", "content": "6 * 7?"}]}
    return usual | fields


def code(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    """Status and code of an error."""
    return answer[0], json.loads(answer[2])["error"]["code"]


@contextlib.contextmanager
def serving(app: Any, most_connections: int) -> Iterator[int]:
    """Serve an application on a thread, on a free port: its number."""
    with listening("127.0.0.1", 0) as address:
        http = bounded_protocol(most_connections)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, http=http))
        thread = threading.Thread(target=server.run, args=([address],), daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield int(address.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20.0)
            assert not thread.is_alive()


@contextlib.contextmanager
def running(
    folder: Path, script: Script = lambda request, number: Answer("42"), **settings: Any
) -> Iterator[Rig]:
    """A gateway on a free port, with places for two teams, until the end of the block."""
    settings["limits"] = {"max_teams": 2, **settings.get("limits", {})}
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(five(script))
        path = pool_file(folder, [server.url for server in servers])
        config = GatewayConfig.model_validate(
            {"pool": path, "policy": "least_loaded", "port": 0} | settings
        )
        gateway, most = Gateway(config), config.limits.max_connections_per_address
        port = stack.enter_context(serving(make_app(gateway), most))
        until(lambda: gateway.watcher.up == 31)
        yield Rig(gateway, servers, port)


@contextlib.contextmanager
def process(
    folder: Path, pool: str | Path, **settings: Any
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`inframind serve` as a process that is ready: its address, and itself."""
    (port,) = free_ports(1)
    url, config = f"http://127.0.0.1:{port}", folder / "gateway.yaml"
    usual = {"pool": str(pool), "policy": "least_loaded", "port": port}
    config.write_text(yaml.safe_dump(usual | settings))
    started = subprocess.Popen(
        [*CLI, "serve", "--config", str(config)],
        env=ENV,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # though nohup runs tests
    )

    def ready() -> bool:
        assert started.poll() is None
        with contextlib.suppress(DownError):
            ask(f"{url}/ready")
            return True
        return False

    try:
        until(ready, 300.0)
        yield url, started
    finally:
        started.kill()
        started.communicate()


def settled(rig: Rig) -> None:
    """Wait until nothing is in flight."""
    until(lambda: not rig.gateway.open_requests and not rig.gateway.in_flight.any())
