"""Servers that fail below and above HTTP: every client of ours ends, in time, with an error."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.live.client import ChatResult, DownError, ask
from inframind_gym.live.config import LiveSettings, ServerAddress
from inframind_gym.live.watcher import MetricsWatcher
from tests.live.vllm_server.fake import FakeServer
from tests.live.vllm_server.test_client import chat, with_client

LIMIT_S: Final = 0.3
HANG: Final = 60.0  # in place of bytes: a pause
MUCH: Final = 1 << 24
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
SORRY: Final = b"HTTP/1.1 500 Internal Server Error\r\n"
BUSY: Final = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n"
CHUNKED: Final = b"Transfer-Encoding: chunked\r\n\r\n"
LONG: Final = b"Content-Length: 999\r\n\r\n"
PACKED: Final = b"Content-Encoding: gzip\r\n\r\n"
PIECE: Final = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
BOMB: Final = gzip.compress(bytes(4 * MUCH))


def slowly(data: bytes) -> tuple[bytes | float, ...]:
    """The bytes, over and over, one by one, for half a minute."""
    return tuple(step for byte in data for step in (bytes([byte]), 0.02)) * (1500 // len(data))


@contextlib.contextmanager
def server(*steps: bytes | float) -> Iterator[str]:
    """A server that answers every request with these bytes and pauses, and closes: its address."""

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            for step in steps:
                if isinstance(step, bytes):
                    connection.sendall(step)
                elif over.wait(step):
                    return
            connection.shutdown(socket.SHUT_WR)
            over.wait(HANG)  # half-closed: it would go on reading

    def listen() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(door.accept()[0],), daemon=True).start()

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=listen, daemon=True).start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}"
        over.set()
        door.shutdown(socket.SHUT_RDWR)


def result_of(url: str, limit_s: float = LIMIT_S) -> ChatResult:
    return with_client(lambda client: chat(client, limit_s=limit_s), url)


def met(url: str, limit_s: float = LIMIT_S) -> str:
    """The watcher's verdict."""
    address = ServerAddress(alias="s", url=url, model="m")
    settings = LiveSettings(answer_s=limit_s, health_s=60.0)
    with MetricsWatcher([address], settings, poll_s=60.0) as watcher:
        watcher.wait_checked()
        return watcher.status()[0].reason


LATE: Final = f"no answer to /health in {LIMIT_S} s"
NO_HTTP: Final = "no HTTP answer to /health"
NO_END: Final = "the answer to /health has no end"
ODD: Final = "the answer to /metrics "
FAULTS: dict[str, tuple[tuple[bytes | float, ...], str, str, str]] = {
    # what it does: steps; the request's status and error; the watcher's verdict
    "closes at once": ((), "unreachable", "", NO_HTTP),
    "talks no HTTP": ((b"\x16\x03\x01 SSH-2.0\r\n\r\n",), "unreachable", "", NO_HTTP),
    "says nothing": ((HANG,), "timeout", "no whole answer", LATE),
    "drips headers": ((OK, *slowly(b"A: b\r\n")), "timeout", "", LATE),
    "drips its answer": ((OK, b"\r\n", *slowly(b": ping\n")), "timeout", "", LATE),
    "has an endless line": ((OK, b"\r\n", bytes(MUCH)), "broken", "far more bytes", NO_END),
    "has endless pieces": ((OK, b"\r\n", PIECE * 300_000), "broken", "far more bytes", NO_END),
    "is cut after a piece": ((OK, b"\r\n", PIECE), "broken", "stopped short", ODD),
    "is cut in a chunk": ((OK, CHUNKED, b"ff\r\n", PIECE), "broken", "", NO_HTTP),
    "is shorter than it says": ((OK, LONG, PIECE), "broken", "", NO_HTTP),
    "unpacks to 64 MB": ((OK, PACKED, BOMB), "broken", "stopped short", ODD),
    "says 500 and no more": ((SORRY, LONG, HANG), "server_error", "500: it says no more", LATE),
    "is busy for an hour": ((BUSY, b"Retry-After: 3600\r\n\r\n"), "busy", "HTTP 429", "says 429"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_server_is_its_error(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, status, error, verdict = FAULTS[fault]
    # Only what is late has to be: on a busy machine the others would be, too.
    limit_s = LIMIT_S if verdict == LATE else 10.0
    monkeypatch.setattr("inframind_gym.live.client._END_S", 0.1)
    with server(*steps) as url:
        began_s = time.monotonic()
        result = result_of(url, limit_s)
        assert (result.status, result.text) == (status, None), result
        assert error in (result.error or "")
        assert verdict in met(url, limit_s)
        with contextlib.suppress(DownError):  # some say 200 before they fail
            ask(f"{url}/health", limit_s=limit_s)
        assert time.monotonic() - began_s < 30.0


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(code: int) -> None:
    """Prompts and the password go to the address in the pool, and nowhere else."""
    with FakeServer() as other:
        head = f"HTTP/1.1 {code} X\r\nLocation: {other.url}/health\r\nContent-Length: 0\r\n\r\n"
        with server(head.encode()) as url:
            result = result_of(url)
            assert result.status == "server_error"
            assert f"HTTP {code}: a redirect to '{other.url}/health'" in (result.error or "")
            assert met(url) == f"/health says {code}"
            with pytest.raises(DownError, match=f"/health says {code}"):
                ask(f"{url}/health")
        assert other.paths == []
