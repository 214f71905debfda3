"""A streamed chat completion, read piece by piece."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

from inframind_gym.errors import InfraMindError

T = TypeVar("T")
_LONGEST: Final = 1 << 23  # bytes of a line
# Of an answer that comes to its end: a piece holds a token or more, with what is said about it.
_MORE_PIECES, _PIECES_A_TOKEN = 64, 2
_MORE_BYTES, _BYTES_A_TOKEN = 1 << 20, 1 << 12


class StreamError(InfraMindError):
    """A server's answer is no chat completion."""


class ChatStream:
    """An answer, as far as it has come (server-sent events of `/v1/chat/completions`).

    Args:
        max_tokens: that were asked for; a server that sends many more is cut.

    Attributes:
        first_token_s: when the first token came; None before. The piece that only names the role is
            no token.
        last_token_s: when the last one came.
        finish_reason: "stop", "length", "abort", ...; None before the end.
        pieces: that held tokens: at most as many as there are tokens.
        usage: token counts, where the server reports them.
        metrics: the server's own times in ms, where it reports them
            (`--enable-per-request-metrics`, vLLM >= 0.32).
        error: what went wrong in the server, in its words.
        done: the answer came to its end.
    """

    def __init__(self, max_tokens: int) -> None:
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.finish_reason: str | None = None
        self.pieces = 0
        self.usage: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}
        self.error: str | None = None
        self.done = False
        self._text: list[str] = []
        self._rest = b""
        self._pieces_left = _MORE_PIECES + _PIECES_A_TOKEN * max_tokens
        self._bytes_left = _MORE_BYTES + _BYTES_A_TOKEN * max_tokens

    @property
    def text(self) -> str:
        """The answer; halves of a character that came without the other one are replaced."""
        text = "".join(self._text)
        if text.isascii():
            return text
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the next bytes, which came at `now_s`.

        Raises:
            StreamError: they are not what they should be, or have no end.
        """
        self._bytes_left -= len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._bytes_left < 0 or len(self._rest) > _LONGEST:
            raise StreamError("the answer has no end: far more bytes than max_tokens would take")
        for line in lines:
            if not line.startswith(b"data:") or self.done:
                continue  # comments, and the empty lines between events
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.done = True
            else:
                self._take(payload, now_s)

    def _take(self, payload: bytes, now_s: float) -> None:
        self._pieces_left -= 1
        if self._pieces_left < 0:
            raise StreamError("the answer has no end: far more pieces than max_tokens")
        try:
            event = json.loads(payload)
            if "error" in event:
                self.error = error_message(event)
                return
            self.usage = _of_type(dict, event.get("usage")) or self.usage
            self.metrics = _of_type(dict, event.get("metrics")) or self.metrics
            for choice in event["choices"]:
                self._take_choice(choice, now_s)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StreamError(f"the answer is garbled: {payload[:200]!r}") from None

    def _take_choice(self, choice: dict[str, Any], now_s: float) -> None:
        delta = _of_type(dict, choice.get("delta")) or {}
        text = _of_type(str, delta.get("content")) or ""
        ended = _of_type(str, choice.get("finish_reason"))
        if text or ended or "role" not in delta:
            self.pieces += 1
            self.last_token_s = now_s
            if self.first_token_s is None:
                self.first_token_s = now_s
        if text:
            self._text.append(text)
        if ended:
            self.finish_reason = ended


def _of_type(kind: type[T], value: object) -> T | None:
    """A value that may be missing.

    Raises:
        TypeError: it is of another type.
    """
    if value is None or isinstance(value, kind):
        return value
    raise TypeError


def error_message(answer: Any) -> str:
    """The message in the JSON of an error, in whichever of the usual forms."""
    if isinstance(answer, dict):
        inner = answer.get("error", answer.get("detail", answer.get("message", answer)))
        if isinstance(inner, dict):
            inner = inner.get("message", inner)
        return str(inner)[:2000]
    return str(answer)[:2000]
