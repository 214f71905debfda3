"""Checks before a body is read: keys, hosts, origins, sizes and addresses."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from inframind_gym.errors import InfraMindError
from inframind_gym.live.gateway.config import KeyConfig, Limits
from inframind_gym.live.settings import LOOPBACK, host_name

PROBES: Final = ("/health", "/ready")  # for those who watch processes: no key, no limits
_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class RequestError(InfraMindError):
    """A request that is answered with an error in the form of OpenAI's API.

    Args:
        status: HTTP status.
        code: for programs, e.g. "budget_unreachable".
        message: for people.
        param: field of the request that is wrong.
        retry_after_s: when another attempt makes sense; None: it is not said.
        headers: further headers.
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

    def content(self) -> dict[str, Any]:
        """Return the answer's body."""
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(HTTPStatus(self.status), usual)
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, **headers: str) -> Response:
        """Return the answer."""
        data = json.dumps(self.content()).encode()
        return Response(data, self.status, self.headers | headers, "application/json")


class Tenant:
    """One key at work.

    Args:
        config: what it may do.
        clock: seconds.

    Attributes:
        parallel: its requests under way.
    """

    def __init__(self, config: KeyConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config, self.parallel = config, 0
        self._clock, self._per_min = clock, config.requests_per_min
        self._left, self._refilled_s = float(self._per_min or 0), clock()

    def enter(self) -> None:
        """Count a request; `parallel` has to be lowered when it is over.

        Raises:
            RequestError: 429; it is one too many.
        """
        most = self.config.max_parallel
        if most is not None and self.parallel >= most:
            raise RequestError(
                429,
                "too_many_parallel_requests",
                f"this key may have {most} requests at once",
                retry_after_s=1.0,
            )
        if self._per_min is not None:
            now_s = self._clock()
            gained = (now_s - self._refilled_s) * self._per_min / 60.0
            self._left, self._refilled_s = min(self._left + gained, self._per_min), now_s
            if self._left < 1.0:
                raise RequestError(
                    429,
                    "rate_limit_exceeded",
                    f"this key may send {self._per_min} requests a minute",
                    retry_after_s=(1.0 - self._left) * 60.0 / self._per_min,
                    headers=self.headers(),
                )
            self._left -= 1.0
        self.parallel += 1

    def headers(self) -> dict[str, str]:
        """Return the headers of its rate, named as OpenAI's."""
        if self._per_min is None:
            return {}
        return {
            "x-ratelimit-limit-requests": str(self._per_min),
            "x-ratelimit-remaining-requests": str(int(self._left)),
        }

    def may_ask(self, model: str) -> bool:
        """Return whether it may ask for a model."""
        return self.config.models is None or model in self.config.models


class Keyring:
    """All keys.

    Args:
        keys: none: everybody on this machine may ask.
        clock: seconds.
    """

    def __init__(
        self, keys: Sequence[KeyConfig], clock: Callable[[], float] = time.monotonic
    ) -> None:
        nobody = Tenant(KeyConfig.model_construct(name="-"), clock)
        self.everybody = None if keys else nobody
        self._tenants = [(key.digest, Tenant(key, clock)) for key in keys]

    def tenant(self, authorization: str) -> Tenant:
        """Return who sends the header `Authorization: Bearer KEY`.

        Takes the same time whichever key it is, and for one that is wrong.

        Raises:
            RequestError: 401.
        """
        if self.everybody is not None:
            return self.everybody
        scheme, _, key = authorization.partition(" ")
        given = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
        found: Tenant | None = None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(digest, given):
                found = tenant
        if found is None or scheme.lower() != "bearer":
            raise RequestError(
                401,
                "invalid_api_key",
                "no valid key: send `Authorization: Bearer KEY`",
                headers={"www-authenticate": "Bearer"},
            )
        return found


def check_head(headers: Headers, *, loopback_only: bool) -> None:
    """Raise `RequestError` for doubled headers, pages of other sites, names of other machines."""
    for name in ("host", "authorization", "origin", "content-length", "content-type"):
        if len(headers.getlist(name)) > 1:
            raise RequestError(400, "invalid_request", f"there are two headers {name}")
    host, origin = headers.get("host", ""), headers.get("origin")
    if loopback_only and host_name(host) not in LOOPBACK:
        raise RequestError(403, "wrong_host", "without keys only this machine may ask")
    try:
        same = origin is None or urlsplit(origin).netloc.lower() == host.lower() != ""
    except ValueError:
        same = False
    if not same:
        raise RequestError(403, "wrong_origin", "pages of other sites may not ask")


def check_length(headers: Headers, most_bytes: int) -> None:
    """Raise `RequestError` for a declared length of a body that is no number, or too large."""
    declared = headers.get("content-length", "0")
    if not (declared.isascii() and declared.isdigit()):
        raise RequestError(400, "invalid_request", "content-length is no number")
    if len(declared) > 15 or int(declared) > most_bytes:
        raise too_large(most_bytes)


def too_large(most_bytes: int) -> RequestError:
    """Return the error for a body that is too large."""
    words = f"a body may have {most_bytes} bytes at most"
    return RequestError(413, "request_too_large", words)


class Guard:
    """ASGI middleware: refuses what it can without reading a body; `state.tenant` is who asks.

    Args:
        app: gets the requests that pass.
        keyring: all keys.
        limits: of requests.
        refused: called with the code of every error.
    """

    def __init__(
        self, app: ASGIApp, keyring: Keyring, limits: Limits, refused: Callable[[str], object]
    ) -> None:
        self._app, self._keyring, self._limits, self._refused = app, keyring, limits, refused
        self._open: Counter[str] = Counter()  # requests under way, by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = (scope.get("client") or ("",))[0]
        scope["state"] = {**scope.get("state", {}), "arrived_s": time.monotonic()}
        try:
            self._check(scope, address)
        except RequestError as error:
            self._refused(error.code)
            # What is left of a body that was not read ends with the connection.
            await error.response(connection="close")(scope, receive, send)
            return
        self._open[address] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

    def _check(self, scope: Scope, address: str) -> None:
        """Check a request by its head.

        Raises:
            RequestError: it is refused.
        """
        headers, limits = Headers(scope=scope), self._limits
        check_head(headers, loopback_only=self._keyring.everybody is not None)
        if scope["path"] in PROBES:
            return
        scope["state"]["tenant"] = self._keyring.tenant(headers.get("authorization", ""))
        if self._open[address] >= limits.max_per_address:
            raise RequestError(
                429, "too_many_requests_of_address", "too many at once", retry_after_s=1.0
            )
        check_length(headers, limits.max_body_bytes)


def bounded_protocol(limits: Limits) -> type[Any]:
    """Return uvicorn's protocol with a limit on the connections of an address and on headers.

    `state.abort` of a request closes its connection at once, for clients that do not read.
    """
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    connections: Counter[str] = Counter()

    class Bounded(HttpToolsProtocol):
        _head_bytes = 0
        _address: str | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            address = str((transport.get_extra_info("peername") or ("",))[0])
            if connections[address] >= limits.max_connections_per_address:
                transport.close()
                return
            self._address = address
            connections[address] += 1

        def connection_lost(self, exc: Exception | None) -> None:
            if self._address is not None:
                connections[self._address] -= 1
                if not connections[self._address]:
                    del connections[self._address]
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            self._head_bytes = 0
            super().on_message_begin()
            self.scope["state"]["abort"] = self.transport.abort

        def on_header(self, name: bytes, value: bytes) -> None:
            self._head_bytes += len(name) + len(value)
            if self._head_bytes > limits.max_header_bytes:
                raise ValueError("headers are too large")  # the parser's caller answers 400
            super().on_header(name, value)

    return Bounded
