"""Clients that are refused or bounded; `inframind serve` as a command; its metrics."""

from __future__ import annotations

import json
import logging
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
from inframind_gym.errors import ConfigError, InfraMindError
from inframind_gym.live.gateway.config import gateway_config
from inframind_gym.studio.runs import scrape
from tests.live.gateway.rig import KEY, chat, code, process, running, settled
from tests.live.vllm_server.fake import Answer, records, until
from tests.live.vllm_server.live_play import five, pool_file

LATE = Answer(first_s=0.5)
CHAT = "/v1/chat/completions"
BEARER = {"Authorization": f"Bearer {KEY}"}


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    twice = b'{"model": "qwen-14b", "model": "llama-8b", "messages": [{}]}'
    with running(tmp_path, limits={"max_body_bytes": 4096}) as rig:
        for body, expected in [
            (b"{", (400, "invalid_json")),
            (b'"text"', (400, "invalid_json")),
            (twice, (400, "invalid_json")),
            (b'{"model": ["a"]}', (400, "missing_model")),
            (b'{"model": "qwen-14b"}', (400, "invalid_request")),
            (b'{"model": "qwen-14b", "messages": ["x"]}', (400, "invalid_request")),
            (json.dumps(chat(max_tokens=True)).encode(), (400, "invalid_request")),
            (json.dumps(chat(stream="yes")).encode(), (400, "invalid_request")),
            (json.dumps(chat(inframind={"budget": 3})).encode(), (400, "invalid_request")),
            (json.dumps(chat(inframind={"budget_s": -3})).encode(), (400, "invalid_request")),
            (b"x" * 5000, (413, "request_too_large")),
        ]:
            assert code(rig.ask(body)) == expected, body[:60]
        typed = rig.ask(b"{}", headers={"Content-Type": "text/plain"})
        assert code(typed) == (415, "unsupported_media_type")
        assert code(rig.ask(path="/v1/chat/completions/x")) == (404, "not_found")
        assert not any(server.requests for server in rig.servers)
        assert rig.ask()[0] == 200
        settled(rig)


def test_a_full_disk_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running(tmp_path, log="/dev/full") as rig:
        assert rig.ask()[0] == rig.ask(stream=True)[0] == 200
        settled(rig)
    assert caplog.text.count("no longer logged") == 1


def test_a_client_that_does_not_read_gives_its_server_back(tmp_path: Path) -> None:
    flood = Answer("x" * 4_000_000, tokens=400)
    with running(tmp_path, lambda r, n: flood, limits={"stall_s": 0.5}) as rig:
        body = json.dumps(chat(stream=True, max_tokens=8192)).encode()
        head = [f"POST {CHAT} HTTP/1.1".encode(), b"Host: 127.0.0.1"]
        head += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
        with socket.create_connection(("127.0.0.1", rig.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"\r\n".join([*head, b"", body]))
            until(lambda: rig.gateway.in_flight.sum() == 1)
            settled(rig)


def test_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = tmp_path / "log.jsonl"
    with running(tmp_path, log=str(log), keys={"chat": KEY}) as rig:
        for credentials in (KEY, "Bearer wrong"):
            assert code(rig.ask(headers={"Authorization": credentials})) == (401, "invalid_api_key")
        assert code(rig.ask(path="/metrics")) == (401, "invalid_api_key")
        assert rig.ask(path="/health")[0] == rig.ask(path="/ready")[0] == 200
        assert rig.ask(headers=BEARER)[0] == 200
        metrics = rig.ask(path="/metrics", headers=BEARER)[2].decode()
        assert 'tenant="chat"' in metrics
        assert 'inframind_refused_total{reason="invalid_api_key"} 3.0' in metrics
        for server in rig.servers:  # a key ends here
            assert not any("authorization" in headers for headers in server.headers)
        settled(rig)
    written = log.read_text() + caplog.text + metrics
    assert KEY not in written and "6 * 7" not in written


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host: 0.0.0.0", "set keys"),
        ("polcy: x", "policy"),
        ("keys: {a: short}", "16 characters"),
        ("keys: {a: 12345678901234567890}", "a: is no text: write it in quotes"),
        ("keys: {a: 0123456789abcdef0, b: 0123456789abcdef0}", "the same key"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        gateway_config(path, {})
    assert str(path) in str(error.value)
    assert KEY not in str(error.value) and "short}" not in str(error.value)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_loses_no_request(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with five(lambda r, n: LATE) as servers:
        pool = pool_file(tmp_path, [server.url for server in servers])
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
        pool = pool_file(tmp_path, [server.url for server in servers])
        with process(tmp_path, pool, **hanging) as (url, _):
            for _ in range(3):
                body = chat(inframind={"budget_s": 13.0})
                assert httpx.post(url + CHAT, json=body, timeout=30.0).status_code == 200
            assert httpx.get(f"{url}/health").status_code == 200


def test_what_studio_reads_of_a_gateway(tmp_path: Path) -> None:
    with running(tmp_path) as rig:
        for _ in range(3):
            assert rig.ask()[0] == 200

        def total(metric: str, **labels: str) -> float:
            rows = scrape(rig.url)[f"inframind_{metric}"]
            return sum(value for of, value in rows if labels.items() <= of.items())

        assert total("queries_total", outcome="answered", in_budget="true") == 3
        assert total("server_up") == total("requests_seen", state="waiting") == 5
        assert total("requests_seen", state="running") == 0
        for server in rig.servers:
            server.finished = [4.0, 2.0]
        until(lambda: total("server_time_seen_seconds", time="e2e_s"))
        for url in (rig.servers[0].url, f"{rig.url}/x"):
            with pytest.raises(InfraMindError):
                scrape(url)
    with pytest.raises(InfraMindError, match="Start a gateway: inframind serve"):
        scrape(rig.url)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli.app, ["serve", "--pool", "b200-2gpu", "--port", str(port)])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}: address already in use" in result.output + result.stderr
