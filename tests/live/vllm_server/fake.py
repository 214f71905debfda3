"""A simulated server whose answers a test scripts, misbehaviour included.

    with FakeServer(lambda request, number: Answer("42", tokens=3)) as server:
        server.url

Runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from inframind_gym.live.client import LoopThread
from inframind_gym.live.simulated.answers import AnswerLengths
from inframind_gym.live.simulated.server import Engine, ModelServer, reset
from inframind_gym.simulator.server.pool import load_pool
from tests.conftest import until as until


@dataclass
class Answer:
    """Answer to a chat completion."""

    text: str = "42"
    tokens: int = 3  # pieces of the text
    first_s: float = 0.0  # until the first one
    each_s: float = 0.0  # between two
    finish: str | None = "stop"  # None: the stream has no finish_reason
    done: bool = True  # ends with [DONE]
    status: int = 200
    message: str = "no"  # of an error
    param: str | None = None  # the field that it names
    usage: bool = True
    prompt_tokens: int | None = None  # as reported; None: of the messages
    metrics: dict[str, Any] | None = None
    reset_after: int | None = None  # tokens after which the connection is reset
    garble_after: int | None = None  # tokens after which nonsense comes
    error_after: int | None = None  # tokens after which the stream reports an error
    hang: bool = False  # says nothing, ever
    events: tuple[Any, ...] | None = None  # what comes instead of the text: bytes as they are, JSON
    whole: bytes | None = None  # body that comes where no stream is asked for
    lingers_s: float = 0.0  # after a stream, before the end of its transfer


Script = Callable[[dict[str, Any], int], Answer]


def in_order(*answers: Answer) -> Script:
    """Give answers one after the other, the last one again and again."""
    return lambda request, number: answers[min(number, len(answers) - 1)]


class FakeServer(ModelServer):
    """One server on a port of 127.0.0.1; its attributes may be set from any thread.

    Its model can be several names with commas between; asleep, requests that come hang.
    """

    def __init__(
        self, script: Script = lambda request, number: Answer(), *, model: str = "m", port: int = 0
    ) -> None:
        config = load_pool("cpu-tiny").models[0]
        config = config.model_copy(update={"name": model, "port": port, "sleep_mode": True})
        self.thread: LoopThread | None = LoopThread("fake-server")
        super().__init__(cast(Engine, self), 0, config, cast(AnswerLengths, None))
        self.script, self.model = script, model
        self.requests: list[dict[str, Any]] = []  # bodies of the chat completions that came
        self.headers: list[dict[str, str]] = []  # of these, names in lower case
        self.paths: list[str] = []
        self.open = self.most = 0  # chat completions under way, now and at most so far
        self.dropped = 0  # those whose client went away before the end
        self.hung = 0  # those that came when it was asleep
        self.health = 200
        self.mute: set[str] = set()  # paths that are never answered
        self.open_at_sleep: list[int] = []  # chat completions under way at each POST /sleep
        self.refuses: dict[str, int] = {}  # status of a path, until it is taken out
        self.dies_of: set[str] = set()  # paths that kill it
        self.start()

    def load(self, server: int) -> tuple[int, int, float]:  # in place of the kernel's
        return self.open, 1, 0.25

    def abort(self, server: int) -> None:
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, with counters at 0; on the same port where it did before."""
        self.finished: list[float] = []  # latencies
        assert self.thread is not None
        self._forget()
        self.thread.run(self.listen())

    def kill(self) -> None:
        """Go away as a process that is killed: all connections are reset, none is accepted."""
        assert self.thread is not None
        self.thread.run(self.die())

    def close(self) -> None:
        if self.thread is not None:
            self.kill()
            self.thread.stop()
            self.thread = None

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def metrics(self) -> str:
        self._seconds["e2e_s"] = [sum(self.finished), len(self.finished)]
        return super().metrics()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path_qs
        self.paths.append(path)
        if path in self.mute:
            await asyncio.Event().wait()
        if path in self.dies_of:
            await self.die()
        if path in self.refuses:
            return web.Response(status=self.refuses[path], body=b"CUDA out of memory")
        if path == "/health":
            return web.Response(status=self.health)
        if path == "/v1/models":
            return web.json_response({"data": [{"id": name} for name in self.model.split(",")]})
        if request.path == "/sleep":  # at once, whatever is under way
            self.open_at_sleep.append(self.open)
            self.asleep = True
            return web.Response()
        return await super()._serve(request)

    async def _complete(self, http: web.BaseRequest) -> web.StreamResponse:
        body, number = await http.json(), len(self.requests)
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in http.headers.items()})
        began_s = time.monotonic()
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            response = await self._answer(self.script(body, number), body, http)
        except (asyncio.CancelledError, ConnectionError):
            self.dropped += 1
            raise
        finally:
            self.open -= 1
        self.finished.append(time.monotonic() - began_s)
        return response

    async def _answer(
        self, answer: Answer, body: Mapping[str, Any], request: web.BaseRequest
    ) -> web.StreamResponse:
        if answer.hang or self.asleep:
            self.hung += self.asleep
            await asyncio.Event().wait()
        if answer.status != 200:
            await asyncio.sleep(answer.first_s)
            error = {"message": answer.message, "param": answer.param, "code": answer.status}
            return web.json_response({"error": error}, status=answer.status)
        if not body.get("stream"):
            return await self._whole(answer, body, request)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)

        async def send(event: object) -> None:
            payload = event if isinstance(event, bytes) else json.dumps(event).encode()
            await response.write(b"data: " + payload + b"\n\n")

        await asyncio.sleep(answer.first_s)
        if answer.events is not None:
            for event in answer.events:
                await send(event)
            return response
        await send(_piece({"role": "assistant", "content": ""}))
        size = -(-len(answer.text) // max(answer.tokens, 1))
        for token in range(answer.tokens):
            if token == answer.reset_after:
                await asyncio.sleep(0.02)
                reset(request.transport)
                return response
            if token == answer.garble_after:
                await send(b"{<html>")
            if token == answer.error_after:
                await send({"error": {"message": "EngineCore died"}})
                await send(b"[DONE]")
                return response
            await send(_piece({"content": answer.text[token * size : (token + 1) * size]}))
            await asyncio.sleep(answer.each_s)
            if self.asleep:
                answer.finish = "abort"
                break
        if answer.finish is not None:
            await send(_piece({"content": ""}, answer.finish))
        if answer.usage:
            extra = {} if answer.metrics is None else {"metrics": answer.metrics}
            await send({"choices": [], "usage": _usage(answer, body), **extra})
        if answer.done:
            await send(b"[DONE]")
        await asyncio.sleep(answer.lingers_s)
        return response

    async def _whole(
        self, answer: Answer, body: Mapping[str, Any], request: web.BaseRequest
    ) -> web.StreamResponse:
        await asyncio.sleep(answer.first_s + answer.tokens * answer.each_s)
        if answer.garble_after is not None:
            return web.Response(body=b"<html>", content_type="text/html")
        message = {"role": "assistant", "content": answer.text}
        choices = [{"index": 0, "message": message, "finish_reason": answer.finish}]
        content = {"id": "x", "object": "chat.completion", "created": 1, "model": self.model}
        content |= {"choices": choices, "usage": _usage(answer, body) if answer.usage else None}
        response = web.Response(
            body=answer.whole or json.dumps(content).encode(), content_type="application/json"
        )
        if answer.reset_after is not None:  # in the middle of the body
            response.body = b"{"
            response.headers["Content-Length"] = "999"
            await response.prepare(request)
            await response.write(b"{")
            reset(request.transport)
        return response


def records(log: Path) -> list[dict[str, Any]]:
    """The lines of a request log, without one that is being written."""
    whole, _, _ = log.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def each_call_once(log: Path) -> list[dict[str, Any]]:
    """The lines of a request log: a call has one, and the calls of an episode have no gap."""
    lines = records(log)
    episodes = {line["request_id"].rpartition("-")[0] for line in lines}
    for episode in episodes:
        calls = [line["call"] for line in lines if line["request_id"].startswith(f"{episode}-")]
        assert sorted(calls) == list(range(len(calls)))
    return lines


def _usage(answer: Answer, body: Mapping[str, Any]) -> dict[str, int]:
    prompt = answer.prompt_tokens
    prompt = len(json.dumps(body["messages"])) // 4 if prompt is None else prompt
    return {"prompt_tokens": prompt, "completion_tokens": answer.tokens}


def _piece(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
