"""A scripted HTTP server that answers like a chat-completions API, and misbehaves on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Reply:
    """One answer."""

    content: str = "2"
    prompt_tokens: int | None = 10  # as reported; None: no usage is reported
    completion_tokens: int = 5
    status: int = 200
    code: str | None = None  # of an error
    message: str = "no"  # of an error
    raw: str | None = None  # body that comes instead
    hangs: bool = False  # no answer ever comes
    cuts: bool = False  # the connection ends in the middle of the body

    def body(self, model: str) -> str:
        """Body of chat completions."""
        if self.raw is not None:
            return self.raw
        if self.status != 200:
            return json.dumps({"error": {"message": self.message, "code": self.code}})
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        usage["total_tokens"] = (self.prompt_tokens or 0) + self.completion_tokens
        message = {"role": "assistant", "content": self.content}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": model}
        answer |= {"choices": [choice], "usage": None if self.prompt_tokens is None else usage}
        return json.dumps(answer)


class StandIn:
    """A server on a free port of 127.0.0.1.

    Args:
        replies: Answers in order, the last one again and again; or a function of the request.

    Attributes:
        requests: Bodies that came.
        headers: Their headers.
    """

    def __init__(self, replies: Iterable[Reply] | Callable[[dict[str, Any]], Reply]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._script = replies if callable(replies) else None
        self._replies = [] if callable(replies) else list(replies)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                stand_in._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            self.headers.append(dict(handler.headers))
        if self._script is not None:
            reply = self._script(body)
        else:
            reply = self._replies[min(number, len(self._replies) - 1)]
        if reply.hangs:
            self._ended.wait(30.0)
            return
        content = reply.body(body.get("model", "")).encode()
        handler.send_response(reply.status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content[:20] if reply.cuts else content)
        if reply.cuts:
            handler.close_connection = True

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
