"""Every HTTP server of this package refuses what is hostile with 4xx, and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest

pytest.importorskip("httptools")
pytest.importorskip("fastapi")

from inframind_gym.live import guard
from inframind_gym.live.guard import Guard, check_head
from inframind_gym.studio.runs import Launcher, Ways
from inframind_gym.studio.server import Boards, make_app
from inframind_gym.teams.runs import RunStore
from tests.live.gateway.rig import KEY, running, serving
from tests.live.simulated.play import served, tiny_pool
from tests.live.vllm_server.fake import until

TOKEN = "a token of sufficient length"


class Target(NamedTuple):
    """A server: its port, what answers 200 to a GET, and a POST whose number can be replaced."""

    port: int
    get: str
    post: str
    body: str
    token: str = ""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Target]]:
    folder = tmp_path_factory.mktemp("servers")
    said = '[{"role": "user", "content": "x"}]'
    chat = f'{{"model": "qwen-14b", "messages": {said}, "max_tokens": VALUE}}'
    (folder / "keyed").mkdir()
    with (
        running(folder, limits={"max_connections_per_address": 8}) as open_,
        running(folder / "keyed", keys={"a": KEY}) as keyed,
        served(tiny_pool(), [0]) as urls,
        RunStore(folder / "runs.sqlite") as store,
        serving(make_app(Launcher(store, Ways()), Boards([])), 8) as studio,
        serving(make_app(Launcher(store, Ways()), Boards([]), token=TOKEN), 8) as studio_keyed,
        mock.patch.dict("os.environ", VLLM_API_KEY=TOKEN),
        served(tiny_pool(), [0]) as keyed_urls,
    ):
        post, run = "/v1/chat/completions", '{"task": "x", "budget": VALUE}'
        simulated, simulated_keyed = (int(url.rpartition(":")[2]) for url in urls + keyed_urls)
        yield {
            "gateway": Target(open_.port, "/v1/models", post, chat),
            "gateway with keys": Target(keyed.port, "/v1/models", post, chat, KEY),
            "simulated": Target(simulated, "/v1/models", post, chat),
            "simulated with a password": Target(simulated_keyed, "/v1/models", post, chat, TOKEN),
            "studio": Target(studio, "/runs", "/run", run),
            "studio with a token": Target(studio_keyed, "/runs", "/run", run, TOKEN),
        }


def answer(target: Target, *lines: bytes, most: float = math.inf) -> bytes:
    """Return what comes back to these lines; nothing where the connection is closed or reset."""
    found = b""
    with (
        socket.create_connection(("127.0.0.1", target.port), timeout=20.0) as connection,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
    ):
        connection.sendall(b"\r\n".join(lines))
        while len(found) < most and (part := connection.recv(1 << 16)):
            found += part
    return found


def status(target: Target, method: str, path: str, *headers: bytes, body: bytes = b"") -> int:
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Connection: close", *headers]
    if method == "POST":
        lines += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return int(answer(target, *lines, b"", body, most=len(b"HTTP/1.1 200 ")).split()[1])


def right(target: Target) -> list[bytes]:
    token = [f"Authorization: Bearer {target.token}".encode()] if target.token else []
    return [b"Host: 127.0.0.1", *token]


NAMES = (
    *("gateway", "gateway with keys", "studio", "studio with a token"),
    *("simulated", "simulated with a password"),
)
HEADS: list[list[bytes]] = [
    [b"Host: 127.0.0.1", b"Host: 127.0.0.1"],
    [b"Host: 127.0.0.1", b"Origin: http://evil.example"],
    [b"Host: 127.0.0.1", b"Origin: null"],
    [b"Host: 127.0.0.1", b"Origin: http://["],
    [b"Host: 127.0.0.1", b"Content-Length: 99999999999"],
    [b"Host: 127.0.0.1", b"Content-Length: x"],
    [b"Host: 127.0.0.1", b"Authorization: a", b"Authorization: b"],
]
HOSTS = (
    *(b"\xff\xfe", b"[::1", b"evil.example", b"127.0.0.1.evil.example", b"127.0.0.1:80:80", b""),
    *(b"127.0.0.1:99999999", b"127.0.0.1@evil.example", b"a b", b"2130706433", b"127.0.0.1/"),
)
# What follows the head of a POST with the right token: lengths and bodies that can be read in two
# ways, or that are none.
LENGTHS: list[list[bytes]] = [
    *([b"Content-Length: " + x] for x in (b"-1", b"+5", b"5, 5", b"1e3", b"\xb2", b"9" * 400)),
    *([b"Transfer-Encoding: chunked", b"", x] for x in (b"-1\r\n", b"zz\r\n", b"f" * 18 + b"\r\n")),
    [b"Transfer-Encoding: xchunked", b"", b"0\r\n"],
    [b"Transfer-Encoding: chunked", b"Content-Length: 2", b"", b"0\r\n"],
]
LINES = (
    *(b"FOO %s HTTP/1.1", b"TRACE %s HTTP/1.1", b"get %s HTTP/1.1", b"CONNECT %s HTTP/1.1"),
    *(b"%s HTTP/1.1", b"GET %s HTTP/9.9", b"GET %s?" + b"a=b&" * 20_000 + b" HTTP/1.1"),
    *(b"GET /..%%2f..%%2fetc%%2fpasswd#%s HTTP/1.1", b"GET /%%00%s HTTP/1.1", b"GET *%s HTTP/1.1"),
    *(b"\x16\x03\x01%s", b"\0" * 3000 + b"%s", b"PRI * HTTP/2.0 %s"),
)


@pytest.mark.parametrize("name", NAMES)
def test_heads_are_checked(targets: dict[str, Target], name: str) -> None:
    target = targets[name]
    assert status(target, "GET", target.get, *right(target)) == 200
    heads = HEADS + [[b"Host: " + host] for host in HOSTS if not target.token]
    token = right(target)[1:]
    for head in heads:
        more = [] if b"Authorization: a" in head else token
        assert 400 <= status(target, "GET", target.get, *head, *more) < 500, head
    if target.token:
        for wrong in ([], [b"Authorization: Bearer x"], [b"Authorization: \xff"]):
            assert status(target, "GET", target.get, b"Host: 127.0.0.1", *wrong) == 401
    if "studio" not in name:
        assert status(target, "GET", "/health", b"Host: 127.0.0.1") == 200
    for path in ("/docs", "/redoc", "/openapi.json"):
        for head in (right(target), [b"Host: 127.0.0.1"]):
            assert status(target, "GET", path, *head) in (401, 404)


VALUES = {"nan": "NaN", "infinite": "1e999", "surrogate": '"\\ud800"', "negative": "-1"}
VALUES |= {"digits": "9" * 5000, "lists": "[" * 1000 + "]" * 1000}
VALUES |= {"objects": '{"a":' * 1000 + "1" + "}" * 1000}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", VALUES)
def test_bodies_are_checked(targets: dict[str, Target], name: str, value: str) -> None:
    target = targets[name]
    body = target.body.replace("VALUE", VALUES[value]).encode()
    assert 400 <= status(target, "POST", target.post, *right(target), body=body) < 500
    assert status(target, "GET", target.get, *right(target)) == 200


@pytest.mark.parametrize("name", NAMES[:4])
def test_what_is_no_http_is_refused(targets: dict[str, Target], name: str) -> None:
    """Each gets 4xx, or its connection is closed; none is waited for, and no error is shown."""
    target, usual = targets[name], [*right(targets[name]), b"Connection: close"]
    head = [f"POST {target.post} HTTP/1.1".encode(), *usual, b"Content-Type: application/json"]
    requests = [[*head, *more, b"", b""] for more in LENGTHS]
    requests += [[line % target.get.encode(), *usual, b"", b""] for line in LINES]
    for more in ([b"X: a\0b"], [b"X : a"], [b"X: " + b"a" * 100_000], [b"X: a"] * 9_000):
        requests.append([b"GET / HTTP/1.1", *usual, *more, b"", b""])
    for lines in requests:
        said = answer(target, *lines)
        assert not said or said.split()[1][:1] == b"4", (lines[:2], said[:200])
        assert b"Traceback" not in said and b"site-packages" not in said
    assert status(target, "GET", target.get, *right(target)) == 200


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        ("gateway", "GET", f"/v1/models/{HUGE}"),
        ("studio", "GET", f"/run/{HUGE}"),
        ("studio", "GET", "/run/%ff%00"),
        ("studio", "GET", f"/boards/{HUGE}/report?episodes={HUGE}"),
        ("studio", "GET", f"/runs?team=%ff{HUGE}"),
        ("studio", "POST", f"/run?team={HUGE}"),
        ("simulated", "POST", "/fault?kind=hang&for_s=nan"),
        ("simulated", "POST", f"/fault?kind=kill&for_s={HUGE}"),
    ],
)
def test_arguments_of_a_path_are_checked(
    targets: dict[str, Target], name: str, method: str, path: str
) -> None:
    target = targets[name]
    body = b'{"task": "x"}' if method == "POST" else b""
    found = status(target, method, path, *right(target), body=body)
    # Names of teams and runs are looked up: what is not there is an empty list, or not found.
    assert 400 <= found < 500 or path.startswith("/runs"), found
    assert status(target, "GET", target.get, *right(target)) == 200


def test_faults_of_a_simulated_server_are_its_machines_alone(targets: dict[str, Target]) -> None:
    target = targets["simulated"]
    for head in ([b"Host: evil.example"], [b"Host: 127.0.0.1", b"Origin: http://evil.example"]):
        assert status(target, "POST", "/fault?kind=kill&for_s=9", *head) == 403


@pytest.mark.parametrize("name", ["gateway", "studio"])
def test_large_bodies_are_not_read(targets: dict[str, Target], name: str) -> None:
    head = [f"POST {targets[name].post} HTTP/1.1".encode(), b"Connection: close"]
    head += [b"Host: 127.0.0.1", b"Content-Type: application/json", b"Transfer-Encoding: chunked"]
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b" " * (1 << 20))
    said = answer(targets[name], *head, b"", 8 * chunk)
    # Or it was closed before it was read.
    assert not said or said.split()[1] in (b"400", b"413")


@pytest.mark.parametrize("name", ["gateway", "studio"])
def test_one_address_cannot_hold_every_connection(targets: dict[str, Target], name: str) -> None:
    target = targets[name]
    upgrade = [b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"]
    upgrade += [b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    lines = [b"GET /ws/x HTTP/1.1", b"Host: 127.0.0.1", *upgrade]
    with contextlib.ExitStack() as stack:

        def connect(address: str) -> socket.socket:
            place = "127.0.0.1", target.port
            return stack.enter_context(socket.create_connection(place, 20.0, (address, 0)))

        for _ in range(12 * (name == "studio")):  # WebSockets are not counted
            connection = connect("127.0.0.1")
            connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 101"
        held = [connect("127.0.0.1") for _ in range(8)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(guard, "SPARE_S", 0.2)
            assert connect("127.0.0.1").recv(1) == b""  # says nothing, and is closed in time
        assert status(target, "GET", target.get, *right(target)) == 429
        if name == "gateway":
            for path in ("/health", "/ready", "/metrics"):
                assert status(target, "GET", path, *right(target)) == 200
        for _ in range(guard.SPARE):
            connect("127.0.0.1")
        assert connect("127.0.0.1").recv(1) == b""
        other = connect("127.0.0.2")
        other.sendall(f"GET {target.get} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert other.recv(12) == b"HTTP/1.1 200"
        for each in held:
            each.close()

    def served() -> bool:
        with contextlib.suppress(OSError, IndexError):  # closed without an answer
            return status(target, "GET", target.get, *right(target)) == 200
        return False

    until(served)


def test_a_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.1)
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    async def receive() -> Any:
        await asyncio.sleep(0.04)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    guarded = Guard(
        app,
        admit=lambda *_: None,
        loopback_only=True,
        most_bytes=99,
        refuse=lambda _, error: ("text/plain", error.content()),
    )
    headers = [(b"host", b"127.0.0.1")]
    asyncio.run(guarded({"type": "http", "path": "/", "headers": headers}, receive, send))
    assert sent[0]["status"] == 408


def test_only_hosts_of_this_machine_are_known() -> None:
    for host in ("localhost", "127.0.0.1:8080", "[::1]:8080", "[::1]"):
        assert check_head([("Host", host)], loopback_only=True, most_bytes=9) == {"host": host}
