"""Listening address of this package's HTTP servers, and checks of requests by their headers.

`check_head` needs headers alone: servers of any framework can use it. `Guard` is the same as ASGI
middleware, with a limit on the body that holds for chunked ones, too.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from inframind_gym.errors import ConfigError, InfraMindError

LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
LEAST_TOKEN_CHARS: Final = 16
MOST_HEAD_BYTES: Final = 32 << 10
BODY_S: Final = 30.0  # for a whole body to come
SPARE: Final = 16  # connections of an address past its limit, for probes
SPARE_S: Final = 10.0  # that such a connection is kept
_ONCE: Final = ("host", "authorization", "origin", "content-length", "content-type")
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, for a server to listen on.

    Args:
        host: name or number of this machine; IPv4 is preferred for a name that has both.
        port: 0 takes a free one.

    Raises:
        ConfigError: The port is taken, or the address is none of this machine.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(infos, key=lambda each: each[0] != socket.AF_INET)
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"{host}:{port}: {(error.strerror or str(error)).lower()}. Stop what listens there, "
            "or take another address by --host and --port."
        ) from None
    return bound


class RequestError(InfraMindError):
    """A request that is refused; `content` has the form of OpenAI's API.

    The code is for programs, e.g. "budget_unreachable", the message for people; `param` is the
    field of the request that is wrong.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(min(retry_after_s, 86_400.0))))

    def content(self) -> bytes:
        """Return the body of the answer, JSON."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(HTTPStatus(self.status), usual)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


def is_secret(text: str, secret: str) -> bool:
    """Compare a text with a secret, in a time that does not reveal how much of it was right."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())


def check_head(
    pairs: Iterable[tuple[str, str]], *, loopback_only: bool, most_bytes: int
) -> dict[str, str]:
    """Check the headers of a request.

    Args:
        pairs: names and values, as they came.
        loopback_only: there is no token, so the request's Host has to be this machine.
        most_bytes: of a body.

    Returns:
        The headers, names in lower case.

    Raises:
        RequestError: a header is given twice or malformed, the request comes from a page of another
            site or names another machine, or the body is too large.
    """
    headers: dict[str, str] = {}
    for name, value in ((name.lower(), value) for name, value in pairs):
        if name in headers and name in _ONCE:
            raise RequestError(400, "invalid_request", f"there are two headers {name}")
        headers[name] = value
    host, origin = headers.get("host", ""), headers.get("origin")
    # DNS rebinding: a page whose name now resolves to 127.0.0.1 still sends its own name.
    named = re.sub(r":\d{0,5}$", "", host).strip("[]").lower()
    if loopback_only and named not in LOOPBACK:
        raise RequestError(403, "wrong_host", "without a token only this machine may ask")
    try:
        is_own = origin is None or urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        is_own = False
    if not is_own or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise RequestError(403, "wrong_origin", "pages of other sites may not ask")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise RequestError(400, "invalid_request", "content-length is no number")
    if len(length) > 15 or int(length) > most_bytes:
        raise _too_large(most_bytes)
    return headers


class Guard:
    """ASGI middleware: checks the headers of a request, and limits its body.

    Args:
        app: gets the requests that pass.
        admit: called with scope and headers; raises `RequestError` for a request without a token.
        loopback_only: there is no token.
        most_bytes: of a body, and of a message of a WebSocket.
        refuse: returns media type and body of the answer to a request that is refused.
        probes: paths that spare connections may ask for; see `bounded_protocol`.
        headers: of every answer.
    """

    def __init__(
        self,
        app: Callable[..., Any],
        *,
        admit: Callable[[dict[str, Any], dict[str, str]], None],
        loopback_only: bool,
        most_bytes: int,
        refuse: Callable[[dict[str, str], RequestError], tuple[str, bytes]],
        probes: Collection[str] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._app, self._admit, self._refuse, self._probes = app, admit, refuse, probes
        self._loopback_only, self._most_bytes = loopback_only, most_bytes
        self._headers = [(n.encode(), value.encode()) for n, value in (headers or {}).items()]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve a request; see ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        pairs = [(n.decode("latin-1"), x.decode("latin-1")) for n, x in scope["headers"]]
        length, began, over_s = 0, False, asyncio.get_running_loop().time() + BODY_S
        more = scope["type"] == "http"

        async def receive_some() -> Any:
            nonlocal length, more
            try:
                async with asyncio.timeout_at(over_s if more else None):
                    message = await receive()
            except TimeoutError:
                raise RequestError(408, "timeout", "the body did not come in time") from None
            length, more = length + len(message.get("body", b"")), message.get("more_body", False)
            if length > self._most_bytes:
                raise _too_large(self._most_bytes)
            return message

        async def send_with_headers(message: Any) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began, names = True, {name for name, _ in message["headers"]}
                ours = (pair for pair in self._headers if pair[0] not in names)
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        try:
            headers = check_head(
                pairs, loopback_only=self._loopback_only, most_bytes=self._most_bytes
            )
            if scope.get("state", {}).get("spare") and scope["path"] not in self._probes:
                words = "this address holds as many connections as it may"
                raise RequestError(429, "too_many_connections", words, retry_after_s=1.0)
            self._admit(scope, headers)
            await self._app(scope, receive_some, send_with_headers)
        except RequestError as error:
            if began:
                raise
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": str(error)})
                return
            media_type, body = self._refuse(dict(pairs), error)
            # Closing the connection drops the part of a body that was not read.
            answer = error.headers | {"content-type": media_type, "connection": "close"}
            answer["content-length"] = str(len(body))
            sent = [(name.encode(), value.encode("latin-1")) for name, value in answer.items()]
            start = {"type": "http.response.start", "status": error.status, "headers": sent}
            await send_with_headers(start)
            await send({"type": "http.response.body", "body": body})


def bounded_protocol(most_connections: int) -> type[Any]:
    """Return uvicorn's protocol with a limit on headers and on the connections of an address.

    Past it, `SPARE` further ones are served `Guard`'s probes alone, for `SPARE_S` seconds; the next
    are closed. Those of WebSockets are not counted.
    """
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Bounded(HttpToolsProtocol):
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            address, _ = self.client or ("", 0)
            http = (each.client for each in self.connections if isinstance(each, Bounded))
            held = sum(client is not None and client[0] == address for client in http)
            if held > most_connections + SPARE:
                transport.close()
            elif held > most_connections:
                self.app_state = {**self.app_state, "spare": True}
                self.loop.call_later(SPARE_S, transport.close)

        def on_message_begin(self) -> None:
            self._head_bytes = 0
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > MOST_HEAD_BYTES:
                raise ValueError("headers are too large")  # the parser's caller answers 400
            super().on_header(name, value)

    return Bounded


def _too_large(most_bytes: int) -> RequestError:
    words = f"a body may have {most_bytes} bytes at most"
    return RequestError(413, "request_too_large", words)
