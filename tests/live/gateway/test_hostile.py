"""Hostile and clumsy clients, keys, limits, logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools")

from inframind_gym.errors import ConfigError
from inframind_gym.live.gateway import auth as guard
from inframind_gym.live.gateway.auth import Keyring
from inframind_gym.live.gateway.config import GatewayConfig, KeyConfig, gateway_config
from inframind_gym.live.guard import RequestError
from tests.live.gateway.rig import KEY, Rig, chat, code, running, settled
from tests.live.vllm_server.fake import Answer, until

LIMITS = {"max_body_bytes": 4096, "max_header_bytes": 4096, "body_s": 1.0}


def raw(rig: Rig, data: bytes, pause_s: float = 0.0, parts: int = 1) -> bytes:
    """All that comes back for bytes that are sent as they are, in parts with pauses."""
    with socket.create_connection(("127.0.0.1", rig.port), timeout=10.0) as connection:
        size, answer = max(1, -(-len(data) // parts)), b""
        try:
            for start in range(0, len(data), size):
                connection.sendall(data[start : start + size])
                time.sleep(pause_s)
            while part := connection.recv(65536):
                answer += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        return answer


def post(body: bytes, *headers: bytes) -> bytes:
    lines = [
        b"POST /v1/chat/completions HTTP/1.1",
        b"Host: 127.0.0.1",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Connection: close",
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def test_what_is_no_request_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, limits=LIMITS) as rig:
        for body, expected in [
            (b"", (400, "invalid_json")),
            (b"{", (400, "invalid_json")),
            (b"\xff\xfe", (400, "invalid_json")),
            (b"[" * 4000, (400, "invalid_json")),
            (b'"text"', (400, "invalid_json")),
            (b"{}", (400, "missing_model")),
            (b'{"model": ["a"]}', (400, "missing_model")),
            (b'{"model": "Coder"}', (400, "invalid_request")),
            (b'{"model": "Coder", "messages": ["x"]}', (400, "invalid_request")),
            (json.dumps(chat(max_tokens=0)).encode(), (400, "invalid_request")),
            (json.dumps(chat(max_tokens=True)).encode(), (400, "invalid_request")),
            (json.dumps(chat(stream="yes")).encode(), (400, "invalid_request")),
            (json.dumps(chat(inframind={"budget": 3})).encode(), (400, "invalid_request")),
            (json.dumps(chat(inframind={"budget_s": -3})).encode(), (400, "invalid_request")),
            (b"x" * 5000, (413, "request_too_large")),
        ]:
            assert code(rig.ask(body)) == expected, body[:60]
        assert code(rig.ask(b"{}", headers={"Content-Type": "text/plain"})) == (
            *(415, "unsupported_media_type"),
        )
        assert code(rig.ask(headers={"Host": "evil.example:80"})) == (403, "wrong_host")
        for host in ("localhost", "127.0.0.1:8080", "[::1]:8080", "[::1]"):
            assert rig.ask(path="/health", headers={"Host": host})[0] == 200
        assert code(rig.ask(path="/v1/chat/completions/x")) == (404, "not_found")
        assert not any(server.requests for server in rig.servers)
        assert rig.ask()[0] == 200
        settled(rig)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "Coder", "messages": [{}], "x": NaN}',
        b'{"model": "Coder", "messages": [{}], "x": 1e999}',
        b'{"model": "Coder", "messages": [{}], "x": "\\ud800"}',
        b'{"model": "Coder", "messages": [{}], "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"model": "Coder", "messages": [{}], "id": ' + b"9" * 5000 + b"}",
        b'{"model": "Coder", "messages": ' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"model": "Coder", "messages": [' + b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"]}",
        b'{"model": "Coder", "model": "R1", "messages": [{}]}',
        b'{"model": "Coder", "messages": [{}], "inframind": {"budget_s": ' + b"9" * 400 + b"}}",
    ],
)
def test_json_that_no_server_should_read_is_refused(gate: Rig, body: bytes) -> None:
    status, _, answer = gate.ask(body)
    assert status == 400 and json.loads(answer)["error"]["type"] == "invalid_request_error"
    assert not any(server.requests for server in gate.servers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([b"Host: 127.0.0.1", b"Host: 127.0.0.1"], 400),
        ([b"Host: \xff\xfe"], 403),
        ([b"Host: [::1"], 403),
        ([b"Host: evil.example"], 403),
        ([b"Host: 127.0.0.1.evil.example"], 403),
        ([b"Host: 127.0.0.1:80:80"], 403),
        ([b"Host: "], 403),
        ([b"Host: 127.0.0.1", b"Origin: http://evil.example"], 403),
        ([b"Host: 127.0.0.1", b"Origin: null"], 403),
        ([b"Host: 127.0.0.1", b"Origin: http://["], 403),
        ([b"Host: 127.0.0.1", b"Origin: http://127.0.0.1"], 200),
        ([b"Host: 127.0.0.1", b"Content-Length: 99999999999"], 413),
        ([b"Host: 127.0.0.1", b"Authorization: a", b"Authorization: b"], 400),
        ([b"Host: 127.0.0.1", b"X-Long: " + b"a" * 40_000], 400),
    ],
)
def test_heads_are_checked_before_a_body_is_read(
    gate: Rig, headers: list[bytes], status: int
) -> None:
    head = b"\r\n".join([b"GET /v1/models HTTP/1.1", b"Connection: close", *headers])
    assert raw(gate, head + b"\r\n\r\n").startswith(b"HTTP/1.1 %d" % status)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(tmp_path_factory.mktemp("gate")) as rig:
        yield rig


def test_bodies_have_limits_of_size_and_time(tmp_path: Path) -> None:
    with running(tmp_path, limits=LIMITS) as rig:
        assert b" 408 " in raw(rig, post(b"{" + b" " * 100)[:-50]).partition(b"\r\n")[0]
        chunked = b"Transfer-Encoding: chunked"
        head = post(b"", chunked).replace(b"Content-Length: 0\r\n", b"")
        assert b" 413 " in raw(rig, head + b"1fff\r\n" + b"x" * 0x1FFF + b"\r\n0\r\n\r\n")
        assert raw(rig, b"\x16\x03\x01\x00garbage\r\n\r\n").startswith(b"HTTP/1.1 400")
        # Two lengths, or a length and chunks, could be read in two ways.
        assert raw(rig, post(b"{}", b"Content-Length: 5")).startswith(b"HTTP/1.1 400")
        assert raw(rig, post(b"{}", chunked)).startswith(b"HTTP/1.1 400")
        assert rig.ask()[0] == 200


def test_one_address_cannot_have_everything(tmp_path: Path) -> None:
    limits = {"max_per_address": 1, "max_connections_per_address": 4}
    with running(tmp_path, lambda r, n: Answer(first_s=1.0), limits=limits) as rig:

        async def both() -> list[int]:
            asked = [asyncio.to_thread(rig.ask) for _ in range(2)]
            await asyncio.sleep(0.3)
            assert (await asyncio.to_thread(rig.ask, path="/ready"))[0] == 200  # a probe
            return sorted(status for status, _, _ in await asyncio.gather(*asked))

        assert asyncio.run(both()) == [200, 429]
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(socket.create_connection(("127.0.0.1", rig.port)))
            time.sleep(0.1)
            assert raw(rig, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") == b""
        time.sleep(0.1)
        assert rig.ask(path="/health")[0] == 200


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


def keyed(**fields: Any) -> dict[str, Any]:
    return {"keys": [{"name": "chat", "key": KEY, **fields}]}


def test_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bearer = {"Authorization": f"Bearer {KEY}"}
    log = tmp_path / "log.jsonl"
    settings = keyed(models=["inframind/auto"], requests_per_min=3, max_parallel=1)
    with running(tmp_path, log=str(log), **settings) as rig:
        for headers in ({}, {"Authorization": KEY}, {"Authorization": "Bearer wrong"}):
            assert code(rig.ask(headers=headers)) == (401, "invalid_api_key")
            assert code(rig.ask(path="/metrics", headers=headers)) == (401, "invalid_api_key")
        assert rig.ask(path="/health")[0] == 200
        assert rig.ask(path="/ready")[0] == 200
        assert code(rig.ask(headers=bearer, model="Coder")) == (403, "model_not_allowed")
        status, told, _ = rig.ask(headers=bearer)
        assert (status, told["x-ratelimit-limit-requests"]) == (200, "3")
        assert rig.ask(headers=bearer)[0] == rig.ask(headers=bearer)[0] == 200
        refused = rig.ask(headers=bearer)
        assert code(refused) == (429, "rate_limit_exceeded")
        assert 1 <= int(refused[1]["retry-after"]) <= 20
        metrics = rig.ask(path="/metrics", headers=bearer)[2].decode()
        assert 'tenant="chat"' in metrics
        assert 'inframind_refused_total{reason="invalid_api_key"} 6.0' in metrics
        listed = json.loads(rig.ask(path="/v1/models", headers=bearer)[2])["data"]
        assert [model["id"] for model in listed] == ["inframind/auto"]
        for server in rig.servers:  # a key ends here
            assert not any("authorization" in headers for headers in server.headers)
        settled(rig)
    written = log.read_text() + caplog.text + metrics
    assert KEY not in written
    assert "6 * 7" not in written


@pytest.mark.parametrize("model", ["Coder", "inframind/team"])
def test_a_heavier_tenant_is_served_earlier(model: str, tmp_path: Path) -> None:
    keys = [{"name": "heavy", "key": KEY, "weight": 4.0}, {"name": "light", "key": KEY + "2"}]
    with running(tmp_path, policy="static:qwen-14b:Concise", keys=keys) as rig:
        first = []
        for key in (KEY, KEY + "2"):
            headers = {"Authorization": f"Bearer {key}", "X-InfraMind-Budget-S": "100"}
            sent = len(rig.servers[2].requests)
            assert rig.ask(headers=headers, model=model)[0] == 200
            first.append(rig.servers[2].requests[sent]["priority"] / 1e6)
        assert first[1] - first[0] == pytest.approx(75.0, abs=5.0)


def test_parallel_requests_of_a_key(tmp_path: Path) -> None:
    bearer = {"Authorization": f"Bearer {KEY}"}
    slow = Answer(first_s=1.0)
    with running(tmp_path, lambda r, n: slow, **keyed(max_parallel=1)) as rig:

        async def both() -> list[int]:
            asked = [asyncio.to_thread(rig.ask, headers=bearer) for _ in range(2)]
            return sorted(status for status, _, _ in await asyncio.gather(*asked))

        assert asyncio.run(both()) == [200, 429]
        assert rig.ask(headers=bearer)[0] == 200


def test_every_key_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(guard.hmac, "compare_digest", compare)
    names = ("one", "two", "three")
    ring = Keyring([KeyConfig(name=n, key=f"{n}-and-more-of-it") for n in names])  # type: ignore[arg-type]
    assert ring.tenant("Bearer one-and-more-of-it").config.name == "one"
    assert compared == [(32, 32)] * 3
    with pytest.raises(RequestError, match="no valid key"):
        ring.tenant("Bearer " + "x" * 100_000)
    assert compared == [(32, 32)] * 6


def test_rates_fill_up_again() -> None:
    now = [0.0]
    config = KeyConfig(name="a", key=KEY, requests_per_min=60)  # type: ignore[arg-type]
    tenant = Keyring([config], lambda: now[0]).tenant(f"bearer {KEY}")
    for _ in range(60):
        tenant.enter()
    with pytest.raises(RequestError):
        tenant.enter()
    now[0] = 1.0
    tenant.enter()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host: 0.0.0.0", "set keys"),
        ("polcy: x", "policy"),
        ("keys: [{name: a, key: short}]", "16 characters"),
        ("keys: [{name: a}]", "either key or sha256"),
        (f"keys: [{{name: a, key: {KEY}}}, {{name: b, key: {KEY}}}]", "same key"),
        ("keys: [{name: a, sha256: abc}]", "64 hexadecimal"),
        ("domain: Maths", "Math, Code"),
        (f"keys: [{{name: a, key: {KEY}, weight: 0}}]", "0.01"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        gateway_config(path, {})
    assert str(path) in str(error.value)
    assert KEY not in str(error.value)


def test_options_take_the_place_of_keys_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(f"port: 1234\nkeys: [{{name: a, key: {KEY}}}]\n")
    config = gateway_config(path, {"host": "0.0.0.0", "port": None})
    assert (config.host, config.port) == ("0.0.0.0", 1234)
    assert KEY not in repr(config)
    assert GatewayConfig().host == "127.0.0.1"
