"""uvicorn's protocol with limits on what arrives before a request: size and time of headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inframind_gym.live.gateway.config import Limits


def limited_protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """Return a protocol that closes connections whose headers are too large, or do not end."""

    class Limited(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None
        _in_headers = True
        _received = 0  # bytes of a head that has not ended
        _taken = 0  # bytes of its headers

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._received += len(data)
            super().data_received(data)
            if not self._in_headers or not self._received or self.transport.is_closing():
                return  # it was the end of a request
            if self._received > limits.max_header_bytes:
                self.send_400_response("Headers are too large.")
            elif self._timer is None:
                self._expect_headers()

        def on_message_begin(self) -> None:
            self._in_headers, self._taken = True, 0
            super().on_message_begin()
            self.scope["state"]["abort"] = self.transport.abort  # for clients that do not read

        def on_url(self, url: bytes) -> None:
            self._count(len(url))
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._count(len(name) + len(value))
            super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_headers = False
            self._stop_timer()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_headers, self._received = True, 0
            super().on_message_complete()

        def _count(self, size: int) -> None:
            self._taken += size
            if self._taken > limits.max_header_bytes:
                raise ValueError("headers are too large")  # the parser's caller answers 400

        def _expect_headers(self) -> None:
            self._timer = self.loop.call_later(limits.header_s, self._close)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._expect_headers()  # those of the next request, while this one is answered
            elif not self.transport.is_closing():
                self.transport.close()

    return Limited


def peer_options(limits: Limits) -> dict[str, Any]:
    """Return the options of uvicorn that belong to the limits."""
    return {
        "http": limited_protocol(limits),
        "limit_concurrency": limits.max_connections,
        "timeout_keep_alive": int(limits.idle_s),
        "timeout_graceful_shutdown": int(limits.drain_s),
    }
