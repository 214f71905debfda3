"""Admission of requests: keys, their rates, and connections of an address."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from inframind_gym.live.gateway.config import KeyConfig, Limits
from inframind_gym.live.guard import RequestError

PROBES: Final = ("/health", "/ready")  # for those who watch processes: no key, no limits


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
            words = f"this key may have {most} requests at once"
            raise RequestError(429, "too_many_parallel_requests", words, retry_after_s=1.0)
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
        digest = hashlib.sha256(key.strip().encode("latin-1", "replace")).digest()
        match: Tenant | None = None
        for known, tenant in self._tenants:
            if hmac.compare_digest(digest, known):
                match = tenant
        if match is None or scheme.lower() != "bearer":
            raise RequestError(
                401,
                "invalid_api_key",
                "no valid key: send the header Authorization: Bearer KEY",
                headers={"www-authenticate": "Bearer"},
            )
        return match

    def admit(self, scope: dict[str, Any], headers: dict[str, str]) -> None:
        """Note `tenant` and `arrived_s` in the state of a request, as `Guard` wants it."""
        scope["state"] = {**scope.get("state", {}), "arrived_s": time.monotonic()}
        if scope["path"] not in PROBES:
            scope["state"]["tenant"] = self.tenant(headers.get("authorization", ""))


def bounded_protocol(limits: Limits) -> type[Any]:
    """Return uvicorn's protocol with a limit on the connections of an address and on headers.

    `state.abort` of a request closes its connection at once, for clients that do not read.
    """
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    connections: dict[Any, str] = {}

    class Bounded(HttpToolsProtocol):
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            address = str((transport.get_extra_info("peername") or ("",))[0])
            if list(connections.values()).count(address) >= limits.max_connections_per_address:
                transport.close()
                return
            connections[self] = address

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop(self, None)
            super().connection_lost(exc)

        def handle_websocket_upgrade(self) -> None:
            connections.pop(self, None)  # another protocol has it from here on
            super().handle_websocket_upgrade()

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
