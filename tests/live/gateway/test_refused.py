"""Clients that are refused or bounded: keys, limits; and configurations that are wrong."""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path

import pytest

pytest.importorskip("httptools")

from inframind_gym.errors import ConfigError
from inframind_gym.live.gateway.config import gateway_config
from tests.live.gateway.rig import KEY, chat, code, running, settled
from tests.live.vllm_server.fake import Answer, until

LIMITS = {"max_body_bytes": 4096}
BEARER = {"Authorization": f"Bearer {KEY}"}


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [
        *(b"POST /v1/chat/completions HTTP/1.1", b"Host: 127.0.0.1", b"Connection: close"),
        *(b"Content-Type: application/json", b"Content-Length: %d" % len(body), *headers),
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, limits=LIMITS) as rig:
        for body, expected in [
            (b"{", (400, "invalid_json")),
            (b'"text"', (400, "invalid_json")),
            (b'{"model": "Coder", "model": "R1", "messages": [{}]}', (400, "invalid_json")),
            (b'{"model": ["a"]}', (400, "missing_model")),
            (b'{"model": "Coder"}', (400, "invalid_request")),
            (b'{"model": "Coder", "messages": ["x"]}', (400, "invalid_request")),
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
        with socket.create_connection(("127.0.0.1", rig.port)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(post(body))
            until(lambda: rig.gateway.in_flight.sum() == 1)
            settled(rig)


def test_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = tmp_path / "log.jsonl"
    with running(tmp_path, log=str(log), keys={"chat": KEY}) as rig:
        for headers in ({}, {"Authorization": KEY}, {"Authorization": "Bearer wrong"}):
            for path in ("/v1/models", "/metrics"):
                assert code(rig.ask(path=path, headers=headers)) == (401, "invalid_api_key")
        assert rig.ask(path="/health")[0] == rig.ask(path="/ready")[0] == 200
        assert rig.ask(headers=BEARER)[0] == 200
        metrics = rig.ask(path="/metrics", headers=BEARER)[2].decode()
        assert 'tenant="chat"' in metrics
        assert 'inframind_refused_total{reason="invalid_api_key"} 6.0' in metrics
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
