"""Connections to a server that misbehaves on demand, above HTTP and below."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import pytest

pytest.importorskip("aiohttp")

from inframind_gym.live.backend import Connections
from inframind_gym.live.chat import ChatResult
from inframind_gym.live.client import DownError, LoopThread
from inframind_gym.live.client import ask as ask_once
from inframind_gym.live.config import LiveSettings, ServerAddress
from inframind_gym.live.processes import free_ports
from inframind_gym.live.watcher import MetricsWatcher
from tests.live.vllm_server.fake import Answer, FakeServer, until

T = TypeVar("T")
MESSAGES = [{"role": "user", "content": "What is 6 times 7?"}]


def chat(client: Connections, **changes: Any) -> Coroutine[Any, Any, ChatResult]:
    fields: dict[str, Any] = {"server": 0, "messages": MESSAGES, "max_tokens": 16, "limit_s": 20.0}
    return client.chat(**(fields | changes))


def with_client(
    act: Callable[[Connections], Coroutine[Any, Any, T]], url: str, **settings: Any
) -> T:
    """Act on the loop of a client that takes its server for one that is up."""
    server, loop = ServerAddress(alias="s", url=url, model="m"), LoopThread("test")
    limits = LiveSettings(**({"health_s": 3600.0, "answer_s": 0.1} | settings))
    client = Connections([server], limits, loop, poll_s=3600.0)
    client.watcher.up = 1
    try:
        return loop.run(act(client))
    finally:
        client.close()
        loop.stop()


def ask(server: FakeServer, settings: dict[str, Any] | None = None, **changes: Any) -> ChatResult:
    return with_client(lambda client: chat(client, **changes), server.url, **(settings or {}))


def test_an_answer_and_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    metrics = {"time_to_first_token_ms": 20.0, "queue_time_ms": 5.0}
    with FakeServer(lambda r, n: Answer("It is 42.", tokens=4, first_s=0.05, metrics=metrics)) as s:
        settings = {"temperature": 0.5, "sampling": {"ignore_eos": True}}
        result = ask(s, settings, priority=1_790_000_000_123_456, request_id="run-1")
        (body,) = s.requests
        (headers,) = s.headers
    assert (result.status, result.text, result.error) == ("ok", "It is 42.", None)
    assert (result.output_tokens, result.attempts) == (4, 1)
    assert result.prompt_tokens and result.prompt_tokens > 0
    assert result.sent_s and result.first_token_s and result.last_token_s
    assert result.submit_s <= result.sent_s < result.first_token_s <= result.last_token_s
    assert result.first_token_s - result.sent_s >= 0.05
    assert result.finish_s == result.last_token_s
    assert result.scheduled_s == pytest.approx(result.first_token_s - 0.02)
    assert result.queued_s == pytest.approx(result.first_token_s - 0.025)
    sent = {"model": "m", "messages": MESSAGES, "max_tokens": 16, "temperature": 0.5}
    sent |= {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    assert body == sent | {"priority": 1_790_000_000_123_456}
    assert (headers["x-request-id"], headers["authorization"]) == ("run-1", "Bearer secret")


LONG = "This model's maximum context length is 64 tokens. However, you have 80 input tokens"
MANY = "max_tokens=90 cannot be greater than max_model_len=64. Please request fewer output tokens."
HUGE = b'{"choices":[],"usage":{"completion_tokens":' + b"9" * 5000 + b"}}"


def said(delta: Any = None, finish: Any = "stop", **more: Any) -> Answer:
    """An answer with one event, which should be nonsense."""
    choice = {"delta": {"content": "42"} | (delta or {}), "finish_reason": finish}
    return Answer(events=({"choices": [choice]} | more, b"[DONE]"))


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (Answer(finish="length"), "truncated", None),
        (Answer(text="", tokens=0), "ok", None),  # ended at once: an answer, if an empty one
        (Answer(finish="abort"), "aborted", "finish_reason abort"),
        (Answer(finish=None), "broken", "the answer has no end"),
        (Answer(finish=None, tokens=0, done=False), "broken", "stopped short"),
        (Answer(done=False), "broken", "stopped short"),
        (Answer(reset_after=2, tokens=5), "broken", ""),
        (Answer(reset_after=0), "unreachable", ""),
        (Answer(garble_after=1), "garbled", "garbled"),
        (said(usage=5), "garbled", "garbled"),
        (said(metrics="x"), "garbled", "garbled"),
        (said({"content": ["x"]}), "garbled", "garbled"),
        (said(finish=7), "garbled", "garbled"),
        (said(choices=[{"delta": "x", "finish_reason": "stop"}]), "garbled", "garbled"),
        (said(choices=None), "garbled", "garbled"),
        (Answer(events=(None,)), "garbled", "garbled"),
        (Answer(events=(b"[" * 200_000,)), "garbled", "garbled"),
        (Answer(events=(HUGE, b"[DONE]")), "garbled", "garbled"),
        (Answer(error_after=1), "aborted", "EngineCore died"),
        (Answer(status=503, message="loading"), "busy", "HTTP 503: loading"),
        (Answer(status=429), "busy", "HTTP 429"),
        (Answer(status=500, message="dead"), "error", "HTTP 500: dead"),
        (Answer(status=400, message="priority must be int"), "rejected", "priority must be"),
        (Answer(status=404, message="The model `m` does not exist."), "rejected", "not exist"),
        (Answer(status=401, message="Unauthorized"), "rejected", "HTTP 401: Unauthorized"),
        (Answer(status=413, message="Request Entity Too Large"), "rejected", "HTTP 413"),
        (Answer(status=502, message="no upstream"), "busy", "HTTP 502: no upstream"),
        (Answer(status=400, message=LONG), "too_long", "80 input tokens"),
        (Answer(status=400, message="than the maximum model length"), "too_long", ""),
        (Answer(status=400, message=MANY, param="max_tokens"), "too_long", "max_tokens: max_"),
    ],
)
def test_what_comes_of_a_request(answer: Answer, status: str, error: str | None) -> None:
    with FakeServer(lambda r, n: answer) as server:
        result = ask(server)
    assert result.status == status, result
    assert result.attempts == 1 == len(server.requests)
    assert result.reason is None if error is None else error in str(result.reason)
    assert len(str(result.reason)) < 400
    assert result.retryable == (status not in ("rejected", "too_long"))
    assert (result.text is None) == (status not in ("ok", "truncated"))


def test_events_and_characters_may_come_in_halves() -> None:
    result = ChatResult(0.0, max_tokens=16)
    piece = 'data: {"choices":[{"delta":{"content":"%s"},"finish_reason":%s}]'
    text = ": ping\n\n" + piece % (r"\ud83d", "null") + "}\n\n" + piece % (r"\ude00", '"stop"')
    for byte in (text + ',"usage":{"completion_tokens":-4}}\n\ndata: [DONE]\n\n').encode():
        result.feed(bytes([byte]), 1.0)
    assert (result.status, result.text, result.done) == ("ok", "\U0001f600", True)
    assert (result.pieces, result.output_tokens) == (2, None)  # a count below 0 is nonsense


async def suspect(client: Connections) -> ChatResult:
    """Result of a call after which the server is checked at once, and found down."""
    result = await chat(client)
    async with asyncio.timeout(20.0):
        while client.watcher.up:
            await asyncio.sleep(0.01)
    return result


def test_nobody_listens() -> None:
    (port,) = free_ports(1)
    assert with_client(suspect, f"http://127.0.0.1:{port}").status == "unreachable"
    with server(GONE) as url:  # nor behind a proxy
        assert with_client(suspect, url).status == "busy"


def test_a_call_to_a_server_that_is_down_names_it() -> None:
    async def act(client: Connections) -> ChatResult:
        client.watcher.up = 0
        return await chat(client)

    with FakeServer() as fake:
        result = with_client(act, fake.url)
    assert (result.status, result.reason) == ("down", "the server is down: s")


@pytest.mark.parametrize("answer", [Answer(hang=True), Answer(tokens=1000, each_s=0.02)])
def test_the_time_limit(answer: Answer) -> None:
    with FakeServer(lambda r, n: answer) as server:
        result = ask(server, limit_s=0.15)
        assert (result.status, result.text, result.retryable) == ("timeout", None, False)
        until(lambda: server.dropped)  # the server is told, by the end of the connection


def test_a_stall_is_named_by_its_limit() -> None:
    async def act(client: Connections) -> ChatResult:
        result = ChatResult(time.monotonic(), max_tokens=16)
        await client.send(0, {"stream": True}, result, 20.0, stall_s=0.15)
        return result

    with FakeServer(lambda r, n: Answer(tokens=3, each_s=30.0)) as server:
        result = with_client(act, server.url)
    assert result.reason == "no whole answer in time: nothing in 0.15 s"


def test_a_stale_connection_is_no_failure() -> None:
    """The server was restarted while connections to it idled."""
    with FakeServer() as server:

        async def act(client: Connections) -> list[str]:
            first = await asyncio.gather(*(chat(client) for _ in range(5)))
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            again = await asyncio.gather(*(chat(client) for _ in range(5)))
            return [result.status for result in first + again]

        assert with_client(act, server.url) == ["ok"] * 10


def test_sockets_are_bounded() -> None:
    with FakeServer(lambda r, n: Answer(first_s=0.1)) as server:

        async def act(client: Connections) -> list[str]:
            return [each.status for each in await asyncio.gather(*(chat(client) for _ in range(5)))]

        assert with_client(act, server.url, max_in_flight=2) == ["ok"] * 5
        assert server.most == 2


LIMIT_S: Final = 0.3
PAUSE_S: Final = 0.05
HANG: Final = 60.0  # in place of bytes: a pause
MUCH: Final = 1 << 24
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
REFUSED: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 54\r\n\r\n"
GONE: Final = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
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


def result_of(url: str, limit_s: float) -> ChatResult:
    return with_client(lambda client: chat(client, limit_s=limit_s), url)


def met(url: str, limit_s: float) -> str:
    """The watcher's verdict."""
    address = ServerAddress(alias="s", url=url, model="m")
    settings = LiveSettings(answer_s=limit_s, health_s=60.0)
    with MetricsWatcher([address], settings, poll_s=60.0) as watcher:
        return watcher.status()[0].reason


LATE: Final = f"no answer to /health in {LIMIT_S} s"
NO_HTTP: Final = "no HTTP answer to /health"
NO_END: Final = "the answer to /health has no end"
ODD: Final = "the answer to /metrics "
FAULTS: dict[str, tuple[tuple[bytes | float, ...], str, str, str]] = {
    # what it does: steps; the request's status and error; the watcher's verdict
    "closes at once": ((), "unreachable", "", NO_HTTP),
    "talks no HTTP": ((b"\x16\x03\x01 SSH-2.0\r\n\r\n",), "unreachable", "", NO_HTTP),
    "says nothing": ((HANG,), "timeout", f"in time: the limit is {LIMIT_S} s", LATE),
    "drips headers": ((OK, *slowly(b"A: b\r\n")), "timeout", "", LATE),
    "drips its answer": ((OK, b"\r\n", *slowly(b": ping\n")), "timeout", "", LATE),
    "has an endless line": ((OK, b"\r\n", bytes(MUCH)), "garbled", "far more bytes", NO_END),
    "has endless pieces": ((OK, b"\r\n", PIECE * 300_000), "garbled", "far more bytes", NO_END),
    "is cut after a piece": ((OK, b"\r\n", PIECE), "broken", "stopped short", ODD),
    "is cut in a chunk": ((OK, CHUNKED, b"ff\r\n", PIECE), "broken", "", NO_HTTP),
    "is shorter than it says": ((OK, LONG, PIECE), "broken", "", NO_HTTP),
    "unpacks to 64 MB": ((OK, PACKED, BOMB), "broken", "stopped short", ODD),
    "says 500 and no more": ((SORRY, LONG, HANG), "error", "500: it says no more", LATE),
    "refuses in two pieces": (
        (REFUSED, b'{"message": "the maximum', PAUSE_S, b' context length is 64 tokens"}'),
        *("too_long", "HTTP 400: the maximum context length is 64 tokens", "says 400"),
    ),
    "is busy for an hour": ((BUSY, b"Retry-After: 3600\r\n\r\n"), "busy", "HTTP 429", "says 429"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_server_is_its_error(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, status, error, verdict = FAULTS[fault]
    # Only what is late has to be: on a busy machine the others would be, too.
    limit_s = LIMIT_S if verdict == LATE else 10.0
    monkeypatch.setattr("inframind_gym.live.chat._END_S", 0.1)
    with server(*steps) as url:
        began_s = time.monotonic()
        result = result_of(url, limit_s)
        assert (result.status, result.text) == (status, None), result
        assert error in (result.reason or "")
        assert verdict in met(url, limit_s)
        assert time.monotonic() - began_s < 30.0


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(code: int) -> None:
    """Prompts and the password go to the address in the pool, and nowhere else."""
    with FakeServer() as other:
        head = f"HTTP/1.1 {code} X\r\nLocation: {other.url}/health\r\nContent-Length: 0\r\n\r\n"
        with server(head.encode()) as url:
            result = result_of(url, 10.0)
            assert result.status == "error"
            assert f"HTTP {code}: a redirect to '{other.url}/health'" in (result.reason or "")
            assert met(url, 10.0) == f"/health says {code}"
            with pytest.raises(DownError, match=f"/health says {code}"):
                ask_once(f"{url}/health")
        assert other.paths == []
