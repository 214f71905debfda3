"""What the live tests stand on: three vLLM servers of a folder of their own, on free ports."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from inframind_gym.configs import find_config
from inframind_gym.live.backend import VllmServers
from inframind_gym.live.client import ask
from inframind_gym.live.config import LiveSettings, server_url
from inframind_gym.live.processes import free_ports
from inframind_gym.live.watcher import Reading, parse_metrics
from inframind_gym.simulator.server.pool import load_pool
from tests.live.launch.play import CLI, ENV, ROOT, session
from tests.live.vllm_server.fake import until
from tests.simulator.vllm_scheduler.rerecord import VLLM_PYTHON

UP_S = 300.0  # for all servers to come up, on two busy cores


def reason_to_skip() -> str:
    """Why there can be no live servers here; "" if there can."""
    if (VLLM_PYTHON.parents[1] / ".installed-vllm").exists():
        return ""  # `make live` has installed it: whatever is missing is an error
    if not VLLM_PYTHON.exists():
        return f"no vLLM: {VLLM_PYTHON} is built by `make live`"
    if find_spec("aiohttp") is None:
        return "the extra `live` is not installed"
    return "" if sys.platform.startswith("linux") else "servers are started on Linux only"


def read_metrics(url: str) -> Reading:
    return parse_metrics(ask(f"{url}/metrics", limit_s=60.0), time.monotonic())


class LiveRig:
    """The pool, and the commands that a person would type.

    Attributes:
        path: its YAML file.
        config: the pool.
    """

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.env = ENV | {
            "INFRAMIND_STATE": str(self.state),
            "INFRAMIND_CACHE": str(folder / "cache"),
            "VLLM_PYTHON": str(VLLM_PYTHON),
            "COLUMNS": "200",
        }
        data = yaml.safe_load(find_config("pools", "cpu-tiny").read_text(encoding="utf-8"))
        data["name"] = "live-tests"
        for model, port in zip(data["models"], free_ports(3), strict=True):
            model["port"] = port
        self.path = folder / "live-tests.yaml"
        self.path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
        self.config = load_pool(self.path)

    def run(self, *arguments: str) -> tuple[int, str]:
        """`inframind pool ...`, to its end: exit status and what it said."""
        process = subprocess.run(
            [*CLI, "pool", arguments[0], "--pool", str(self.path), *arguments[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.env,
            cwd=ROOT,
            timeout=UP_S + 60.0,
        )
        return process.returncode, process.stdout

    def up(self) -> None:
        code, said = self.run("up", "--timeout", f"{UP_S:g}")
        print(said)
        assert code == 0, said

    def down(self) -> None:
        leaders = self.leaders()
        code, said = self.run("down")
        print(said)
        assert code == 0, said
        left = [pid for leader in leaders for pid in session(leader)]
        assert left == [], f"still running: {left}"

    def status(self) -> list[dict[str, Any]]:
        """As `inframind pool status --json` has it."""
        rows: list[dict[str, Any]] = json.loads(self.run("status", "--json")[1])
        return rows

    def leaders(self) -> list[int]:
        """Processes of the servers, in the pool's order."""
        file = self.state / "live-tests" / "state.json"
        if not file.exists():
            return []
        servers = json.loads(file.read_text())  # those started anew come last
        servers.sort(key=lambda server: self.config.index(server["alias"]))
        return [server["pid"] for server in servers]

    @contextlib.contextmanager
    def pool(self, log: Path | None = None, **settings: Any) -> Iterator[VllmServers]:
        """Servers that are all up and have nothing to do."""
        with VllmServers(self.config, LiveSettings(**settings), log=log) as pool:
            pool.watcher.wait_up(60.0)
            until(lambda: all(self.load(m) == (0, 0) for m in range(3)))
            yield pool

    def post(self, model: int, path: str) -> None:
        ask(server_url(self.config.models[model]) + path, method="POST", limit_s=30.0)

    def reading(self, model: int) -> Reading:
        """A server's metrics, now."""
        return read_metrics(server_url(self.config.models[model]))

    def load(self, model: int) -> tuple[int, int]:
        """Requests that run and that wait."""
        reading = self.reading(model)
        return int(reading.running_req), int(reading.waiting_req)

    def finished(self, model: int) -> int:
        """Requests that ended since the server's start, however they did."""
        return int(self.reading(model).finished_req)
