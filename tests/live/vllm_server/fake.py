"""A server that speaks like vLLM's front end, and misbehaves on demand.

    with FakeServer(lambda request, number: Answer("42", tokens=3)) as server:
        server.url

Runs on a thread of its own, or as a process: `FakeProcess`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """What a chat completion is answered with."""

    text: str = "42"
    tokens: int = 3  # pieces of the text
    first_s: float = 0.0  # until the first one
    each_s: float = 0.0  # between two
    finish: str | None = "stop"  # None: the stream has no finish_reason
    done: bool = True  # ends with [DONE]
    status: int = 200
    message: str = "no"  # of an error
    headers: dict[str, str] = field(default_factory=dict)
    usage: bool = True
    metrics: dict[str, Any] | None = None
    reset_after: int | None = None  # tokens after which the connection is reset
    garble_after: int | None = None  # tokens after which nonsense comes
    error_after: int | None = None  # tokens after which the stream tells of an error
    hang: bool = False  # says nothing, ever
    events: tuple[Any, ...] | None = None  # what comes instead of the text: bytes as they are, JSON


Script = Callable[[dict[str, Any], int], Answer]


class FakeServer:
    """One server on a port of 127.0.0.1.

    Attributes:
        model: name of what it serves; several with commas between them.
        requests: bodies of the chat completions that came.
        headers: their headers, names in lower case.
        open: chat completions under way; `most`: at most so far.
        dropped: those whose client went away before the end.
        garbage: what to answer to /metrics instead.
        instead: what to answer to GET requests of these paths instead.
        mute: paths that are never answered.
        asleep: as after POST /sleep; requests that come then hang.
        hung: so many did.
        open_at_sleep: chat completions under way at each POST /sleep; they end as aborted.
        refuses: status with which a path is answered, until it is taken out.
        dies_of: paths that kill it.
    """

    def __init__(
        self,
        script: Script = lambda request, number: Answer(),
        *,
        model: str = "m",
        dev: bool = True,
        port: int = 0,
    ) -> None:
        self.script = script
        self.model = model
        self.dev = dev
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.open = self.most = self.dropped = 0
        self.garbage: bytes | None = None
        self.instead: dict[str, bytes] = {}
        self.health = 200
        self.mute: set[str] = set()
        self.asleep = False
        self.hung = 0
        self.open_at_sleep: list[int] = []
        self.refuses: dict[str, int] = {}
        self.dies_of: set[str] = set()
        self.finished: list[float] = []  # latencies, since the start
        self.started = time.time()
        self.port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._server: asyncio.Server | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _do(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def start(self) -> None:
        """Listen, with counters at 0; on the same port where it did before."""
        self.finished = []
        self.started = time.time()
        self.asleep = False

        async def listen() -> None:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", self.port))
            self.port = sock.getsockname()[1]
            self._server = await asyncio.start_server(self._serve, sock=sock, backlog=1024)

        self._do(listen())

    def kill(self) -> None:
        """Go away as a process that is killed: all connections are reset, none is accepted."""

        async def die() -> None:
            self._die()
            await asyncio.sleep(0.01)

        self._do(die())

    def _die(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            _reset(writer)

    @property
    def is_alive(self) -> bool:
        return self._server is not None

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.kill()

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._do(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def metrics(self) -> str:
        """As vLLM 0.32 writes them, cut to some of the metrics."""
        label = f'{{engine="0",model_name="{self.model}"}}'
        state = label.replace("}", ',sleep_state="awake"}')
        bucket = label.replace("}", ',le="+Inf"}')
        e2e, count = "vllm:e2e_request_latency_seconds", float(len(self.finished))
        samples = {
            "process_start_time_seconds": self.started,
            f"vllm:num_requests_running{label}": float(self.open),
            f"vllm:num_requests_waiting{label}": 1.0,
            f"vllm:kv_cache_usage_perc{label}": 0.25,
            f"vllm:num_preemptions_total{label}": 2.0,
            f"vllm:engine_sleep_state{state}": 0.0 if self.asleep else 1.0,
            f"{e2e}_bucket{bucket}": count,
            f"{e2e}_count{label}": count,
            f"{e2e}_sum{label}": float(sum(self.finished)),
        }
        kinds = [f"# TYPE {e2e} histogram", "# TYPE vllm:num_requests_running gauge"]
        return "\n".join([*kinds, *(f"{name} {value}" for name, value in samples.items())]) + "\n"

    # One connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.paths.append(path)
                if path in self.mute:
                    await asyncio.Event().wait()
                if path in self.dies_of:
                    self._die()
                    return
                if method == "POST" and path == "/v1/chat/completions":
                    await self._chat(json.loads(body), headers, reader, writer)
                else:
                    self._plain(method, path, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _plain(self, method: str, path: str, writer: asyncio.StreamWriter) -> None:
        status, content = 404, b'{"detail":"Not Found"}'
        if path in self.refuses:
            status, content = self.refuses[path], b"CUDA out of memory"
        elif path == "/health":
            status, content = self.health, b""
        elif path == "/metrics":
            status, content = 200, self.metrics().encode()
            if self.garbage is not None:
                content = self.garbage
        elif path == "/v1/models":
            served = [{"id": name} for name in self.model.split(",")]
            status, content = 200, json.dumps({"data": served}).encode()
        elif path == "/is_sleeping" and self.dev:
            status, content = 200, json.dumps({"is_sleeping": self.asleep}).encode()
        elif method == "POST" and path.startswith("/sleep") and self.dev:
            self.open_at_sleep.append(self.open)
            self.asleep, status, content = True, 200, b""
        elif method == "POST" and path == "/wake_up" and self.dev:
            self.asleep, status, content = False, 200, b""
        if method == "GET" and path in self.instead:
            status, content = 200, self.instead[path]
        writer.write(_head(status, {"Content-Length": str(len(content))}) + content)

    async def _chat(
        self,
        request: dict[str, Any],
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        number = len(self.requests)
        self.requests.append(request)
        self.headers.append(headers)
        began_s = time.monotonic()
        self.open += 1
        self.most = max(self.most, self.open)
        gone = asyncio.ensure_future(reader.read(1))  # a client sends nothing before the end
        answering = asyncio.ensure_future(
            self._answer(self.script(request, number), request, writer)
        )
        try:
            await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.dropped += 1
                raise ConnectionResetError
            await answering
            self.finished.append(time.monotonic() - began_s)
        finally:
            self.open -= 1
            for task in (gone, answering):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task

    async def _answer(
        self, answer: Answer, request: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        if answer.hang or self.asleep:
            self.hung += self.asleep
            await asyncio.Event().wait()
        if answer.status != 200:
            await asyncio.sleep(answer.first_s)
            error = {"message": answer.message, "type": "BadRequestError", "code": answer.status}
            content = json.dumps({"error": error}).encode()
            length = {"Content-Length": str(len(content))}
            writer.write(_head(answer.status, length | answer.headers) + content)
            return
        writer.write(
            _head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        )
        await asyncio.sleep(answer.first_s)
        if answer.events is not None:
            for event in answer.events:
                _event(writer, event.decode() if isinstance(event, bytes) else json.dumps(event))
            writer.write(b"0\r\n\r\n")
            return
        _event(writer, _piece({"role": "assistant", "content": ""}))
        size = -(-len(answer.text) // max(answer.tokens, 1))
        for token in range(answer.tokens):
            if token == answer.reset_after:
                await writer.drain()
                await asyncio.sleep(0.02)
                _reset(writer)
                return
            if token == answer.garble_after:
                _event(writer, "{<html>")
            if token == answer.error_after:
                _event(writer, json.dumps({"error": {"message": "EngineCore died"}}))
                _event(writer, "[DONE]")
                writer.write(b"0\r\n\r\n")
                return
            _event(writer, _piece({"content": answer.text[token * size : (token + 1) * size]}))
            await writer.drain()
            if answer.each_s:
                await asyncio.sleep(answer.each_s)
            if self.asleep:
                answer.finish = "abort"
                break
        if answer.finish is not None:
            _event(writer, _piece({"content": ""}, answer.finish))
        if answer.usage:
            usage = {"prompt_tokens": len(json.dumps(request["messages"])) // 4}
            usage |= {"completion_tokens": answer.tokens}
            extra = {} if answer.metrics is None else {"metrics": answer.metrics}
            _event(writer, json.dumps({"choices": [], "usage": usage, **extra}))
        if answer.done:
            _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")


def until(condition: Callable[[], object], wait_s: float = 10.0) -> None:
    """Wait for something that happens soon, if at all."""
    over_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < over_s, "it never came to that"
        time.sleep(0.005)


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _piece(delta: dict[str, str], finish: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _event(writer: asyncio.StreamWriter, payload: str) -> None:
    data = f"data: {payload}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST, as the kernel does for a process that is killed."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()


class FakeProcess:
    """A server in a process of its own, that can be killed and started again on the same port.

    Args:
        answer: to every request, as of `Answer`.
    """

    def __init__(self, model: str = "m", **answer: Any) -> None:
        self.model = model
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start(**answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, **answer: Any) -> None:
        command = [sys.executable, __file__, str(self.port), self.model, json.dumps(answer)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None and self._process.stdout is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


if __name__ == "__main__":
    told = json.loads(sys.argv[3])
    running = FakeServer(
        lambda request, number: Answer(**told), model=sys.argv[2], port=int(sys.argv[1])
    )
    print(running.port, flush=True)
    while True:  # until it is killed
        time.sleep(3600)
