"""`inframind serve` as a command: signals, drain, the log; and its metrics."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("httptools")

from inframind_gym import cli
from inframind_gym.calibration.request_log import read_log
from inframind_gym.errors import InfraMindError
from inframind_gym.live.gateway.metrics import Metrics
from inframind_gym.studio.runs import scrape, total
from tests.live.gateway.rig import chat, running
from tests.live.vllm_server.fake import Answer, FakeServer, records, until
from tests.live.vllm_server.live_play import pool_at

DOCS = Path(__file__).parents[3] / "docs"


def test_every_metric_is_in_the_documentation() -> None:
    """Those of routers above, and what a gateway adds below."""
    text = (DOCS / "metrics.md").read_text(encoding="utf-8")
    of_routers, of_gateways = (
        set(re.findall(r"^\| `(inframind_\w+)`", part, re.MULTILINE))
        for part in text.split("\nA [gateway]")
    )
    families = {
        f.name + ("_total" if f.type == "counter" else "") for f in Metrics().registry.collect()
    }
    assert families - of_routers == of_gateways


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Served:
    """`inframind serve` as a process."""

    def __init__(self, folder: Path, servers: list[FakeServer], **settings: Any) -> None:
        pool = pool_at([server.url for server in servers])
        path = folder / "pool.yaml"
        path.write_text(yaml.safe_dump(pool.model_dump(mode="json", exclude_none=True)))
        self.port, self.config = free_port(), folder / "gateway.yaml"
        self.settings = {"pool": str(path), "policy": "least_loaded", "port": self.port} | settings
        self.config.write_text(yaml.safe_dump(self.settings))
        command = "from inframind_gym.cli import app; app()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "serve", "--config", str(self.config)],
            env=os.environ | {"PYTHONPATH": os.getcwd()},
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: self.get("/ready") == 200, 300.0)

    def get(self, path: str, body: Any = None) -> int:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30.0) as response:
                response.read()
                return int(response.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0


@pytest.fixture
def servers() -> Any:
    from inframind_gym.simulator.server.pool import load_pool

    models, late = load_pool("b200-2gpu").models, Answer(first_s=0.5)
    found = [FakeServer(lambda r, n: late, model=model.name) for model in models]
    yield found
    for server in found:
        server.close()


def test_the_end_loses_no_request(servers: list[FakeServer], tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    served = Served(tmp_path, servers, log=str(log))
    try:
        url, statuses = "/v1/chat/completions", list[int]()
        assert served.get(url, chat(stream=True)) == 200
        asking = threading.Thread(target=lambda: statuses.append(served.get(url, chat())))
        asking.start()
        until(lambda: any(server.open for server in servers))
        for _ in range(2):  # timeout(1) sends two
            served.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        said = served.process.communicate(timeout=60.0)[1]
        asking.join()
        assert "Traceback" not in said
        assert statuses == [200]
    finally:
        served.process.kill()
    assert served.process.returncode == -signal.SIGTERM
    lines = records(log)
    assert [line["status"] for line in lines] == ["ok", "whole"]
    read = read_log(log, lines[0]["model"])  # as `inframind calibrate` reads it
    assert len(read) == 1
    assert read.prompt_tokens[0] == lines[0]["input_toks"]
    assert read.first_token_s[0] > 0.4


def test_a_policy_that_hangs_does_not_hang_the_server(
    servers: list[FakeServer], tmp_path: Path
) -> None:
    hanging = {"policy": "tests.live.gateway.test_choose:Hanging", "limits": {"policy_s": 0.5}}
    served = Served(tmp_path, servers, **hanging)
    try:
        for _ in range(3):
            body = chat(inframind={"budget_s": 13.0})
            assert served.get("/v1/chat/completions", body) == 200
        assert served.get("/health") == 200
    finally:
        served.process.kill()
        served.process.communicate()


def test_what_studio_reads_of_a_gateway(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        for _ in range(3):
            assert rig.ask()[0] == 200
        seen = scrape(rig.url)
        assert total(seen, "queries_total", outcome="answered", in_budget="true") == 3
        assert total(seen, "server_up") == 5
        for server in rig.servers:
            server.finished = [4.0, 2.0]
        until(lambda: total(scrape(rig.url), "server_time_seen_seconds", time="e2e_s"))
        for url in (rig.servers[0].url, f"{rig.url}/x"):
            with pytest.raises(InfraMindError):
                scrape(url)
    with pytest.raises(InfraMindError, match="Start a gateway: inframind serve"):
        scrape(rig.url)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["serve", "--pool", "b200-2gpu", "--port", str(port)]
        result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}: address already in use" in result.output + result.stderr
