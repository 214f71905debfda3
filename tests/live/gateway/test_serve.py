"""`inframind serve` as a command: signals, drain, the log; and its metrics."""

from __future__ import annotations

import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

pytest.importorskip("httptools")

from inframind_gym import cli
from inframind_gym.calibration.request_log import read_log
from inframind_gym.errors import InfraMindError
from inframind_gym.live.gateway.metrics import Metrics
from inframind_gym.studio.runs import scrape, total
from tests.live.gateway.rig import chat, process, running, write_pool
from tests.live.vllm_server.fake import Answer, records, until
from tests.live.vllm_server.live_play import five, pool_at

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


LATE = Answer(first_s=0.5)
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_loses_no_request(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with five(lambda r, n: LATE) as servers:
        pool = write_pool(tmp_path, pool_at([server.url for server in servers]))
        with process(tmp_path, pool, log=str(log)) as (url, served):

            def post(**fields: Any) -> int:
                return httpx.post(url + CHAT, json=chat(**fields), timeout=30.0).status_code

            statuses = list[int]()
            assert post(stream=True) == 200
            asking = threading.Thread(target=lambda: statuses.append(post()))
            asking.start()
            until(lambda: any(server.open for server in servers))
            for _ in range(2):  # timeout(1) sends two
                served.send_signal(number)
                time.sleep(0.05)
            said = served.communicate(timeout=60.0)[1]
            asking.join()
    assert "Traceback" not in said
    assert (statuses, served.returncode) == ([200], -signal.SIGTERM)
    lines = records(log)
    assert [line["status"] for line in lines] == ["ok", "whole"]
    read = read_log(log, lines[0]["model"])  # as `inframind calibrate` reads it
    assert len(read) == 1
    assert read.prompt_tokens[0] == lines[0]["input_toks"]
    assert read.first_token_s[0] > 0.4


def test_a_policy_that_hangs_does_not_hang_the_server(tmp_path: Path) -> None:
    hanging = {"policy": "tests.live.gateway.test_choose:Hanging", "limits": {"policy_s": 0.5}}
    with five(lambda r, n: LATE) as servers:
        pool = write_pool(tmp_path, pool_at([server.url for server in servers]))
        with process(tmp_path, pool, **hanging) as (url, _):
            for _ in range(3):
                body = chat(inframind={"budget_s": 13.0})
                assert httpx.post(url + CHAT, json=body, timeout=30.0).status_code == 200
            assert httpx.get(f"{url}/health").status_code == 200


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
