"""HTTP with servers: single questions, and answers to chat completions, as they come.

aiohttp, not httpx:
with hundreds of requests in flight httpx's pool takes time that grows with the square of their
number (encode/httpx#3215), which would be in every measured latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from inframind_gym.errors import InfraMindError

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)
T = TypeVar("T")

Status = Literal[
    "ok",
    "truncated",  # cut at max_tokens
    "aborted",  # dropped by the server: it was put to sleep, or its engine died
    "broken",  # the answer stopped short, was garbled, or had no end
    "unreachable",  # no connection, or one that was lost before the first token
    "busy",  # 429, 502, 503 or 504
    "too_long",  # the prompt doesn't fit the model
    "rejected",  # any other 4xx
    "server_error",  # any other 5xx, and redirects, which are not followed
    "timeout",  # over its time limit
    "down",  # its server went down, or to sleep, before it was answered
    "cancelled",  # the episode was closed
    "fault",  # of our own code
]
# Would end the same way wherever it is sent, or take as long again.
_NEVER_AGAIN: Final = ("too_long", "rejected", "timeout", "cancelled", "fault")
_BUSY: Final = (429, 502, 503, 504)
_ASK_S: Final = 2.0
_CONNECT_S: Final = 5.0  # for a connection
_END_S: Final = 1.0  # for the end of a whole answer, and for the words of an error
_KEEP_ALIVE_S: Final = 4.0  # idle connections; vLLM's front end closes its own after 5
_ERROR_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 1 << 23  # of an answer to a single question, and of a line of a stream
_MOST_TOKENS: Final = 1 << 24  # no context is longer, and the sums of a query's calls fit 32 bits
_MOST_MS: Final = 1e9  # of a request, as a server reports it: 12 days; excludes infinity and NaN
_MORE_BYTES, _BYTES_A_TOKEN = 1 << 20, 1 << 12  # of a stream that comes to its end
_TOO_LONG: Final = ("maximum context length", "maximum model length")


# The loop that all of this runs on


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class LoopThread:
    """An asyncio loop on a daemon thread of a name, for code that is not asynchronous."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(cancel_all(asyncio.all_tasks(self.loop)))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, from another thread; raises what it raises."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., object], *arguments: object) -> bool:
        """Have a function called on the loop soon; False where the loop has been stopped."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def stop(self) -> None:
        """Cancel all tasks, and join the thread. May be called twice."""
        self.call(self.loop.stop)
        self._thread.join()


def allow_files(wanted: int) -> None:
    """Let this process open as many files as it wants, as far as the system allows it."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # no such limit here
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if resource.RLIM_INFINITY != soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# One question to one server


class DownError(InfraMindError):
    """A server cannot be sent to.

    Attributes:
        asleep: it sleeps.
        at_once: it is down as soon as this is seen once; an answer that fails to come may be late.
        status: HTTP status of an error; None: no answer.
    """

    def __init__(
        self, reason: str, *, asleep: bool = False, at_once: bool = True, status: int | None = None
    ) -> None:
        super().__init__(reason)
        self.asleep, self.at_once, self.status = asleep, at_once, status


def open_session(limit_s: float | None, key: str | None = None) -> aiohttp.ClientSession:
    """Open a session on the loop that runs, with $VLLM_API_KEY unless there is a key.

    `limit_s` is for each request as a whole; None: they have limits of their own.
    """
    import aiohttp

    headers = {"Accept-Encoding": "identity"}  # nothing that grows when it is unpacked
    if key := os.environ.get("VLLM_API_KEY") if key is None else key:
        headers["Authorization"] = f"Bearer {key}"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=_CONNECT_S),
        headers=headers,
        auto_decompress=False,
    )


async def fetch(
    session: aiohttp.ClientSession, url: str, path: str = "", *, method: str = "GET"
) -> str:
    """Fetch a path of a server; the time limit is the session's. Redirects are not followed.

    Raises:
        DownError: there is no answer, one without end, or another status than 200.
    """
    import aiohttp

    what = path or url
    try:
        async with session.request(method, url + path, allow_redirects=False) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise DownError(f"the answer to {what} has no end")
    except TimeoutError:
        reason = f"no answer to {what} in {session.timeout.total:g} s"
        raise DownError(reason, at_once=False) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number and number > 0 else str(error)
        raise DownError(f"no HTTP answer to {what} ({type(error).__name__}: {why})") from None
    text = data.decode("utf-8", "replace")
    if response.status != 200:
        reason = f"{what} says {response.status}: {text[:300].strip()}"
        raise DownError(reason.rstrip(": "), status=response.status)
    return text


def ask(url: str, *, method: str = "GET", limit_s: float = _ASK_S, key: str | None = None) -> str:
    """Send a request to a server and wait for its answer; see `open_session` and `fetch`."""

    async def answer() -> str:
        async with open_session(limit_s, key=key) as session:
            return await fetch(session, url, method=method)

    loop = LoopThread("ask")  # the caller's thread may run a loop of its own
    try:
        return loop.run(answer())
    finally:
        loop.stop()


# Chat completions


@dataclass(slots=True)
class ChatResult:
    """Result of a request. Times are seconds of the monotonic clock; None: did not happen."""

    submit_s: float
    status: Status = "cancelled"
    error: str | None = None
    text: str | None = None  # of a whole answer
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    sent_s: float | None = None
    scheduled_s: float | None = None
    queued_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_s: float = 0.0
    attempts: int = 0
    pieces: int = 0

    @property
    def answered(self) -> bool:
        """True for an answer, whole or cut."""
        return self.status in ("ok", "truncated")

    @property
    def retryable(self) -> bool:
        """True where another attempt makes sense."""
        return self.status not in _NEVER_AGAIN


class StreamError(InfraMindError):
    """A server's answer is no chat completion."""


class ChatStream:
    """An answer, as far as it has come (server-sent events of `/v1/chat/completions`).

    Args:
        max_tokens: that were asked for; a server that sends far more bytes is cut.
    """

    def __init__(self, max_tokens: int) -> None:
        self.first_token_s: float | None = None  # a piece that only names the role is no token
        self.last_token_s: float | None = None
        self.finish_reason: str | None = None  # "stop", "length", "abort", …
        self.pieces = 0  # that held tokens: at most as many as there are tokens
        self.usage: dict[str, Any] = {}  # token counts, where the server reports them
        # The server's own times in ms (`--enable-per-request-metrics`, vLLM >= 0.32).
        self.metrics: dict[str, Any] = {}
        self.error: str | None = None  # in the server's words
        self.done = False  # the answer came to its end
        self._text: list[str] = []
        self._rest = b""
        self._bytes_left = _MORE_BYTES + _BYTES_A_TOKEN * max_tokens

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the next bytes, which came at `now_s`.

        Raises:
            StreamError: they are not what they should be, or have no end.
        """
        self._bytes_left -= len(data)
        if self._bytes_left < 0 or len(self._rest) > _MOST_BYTES:
            raise StreamError("the answer has no end: far more bytes than max_tokens would take")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:") or self.done:
                continue  # comments, and the empty lines between events
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self.done = True
                continue
            try:
                self._take(json.loads(payload), now_s)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise StreamError(f"the answer is garbled: {payload[:200]!r}") from None

    def _take(self, event: Any, now_s: float) -> None:
        if "error" in event:
            self.error = _error_message(event)
            return
        self.usage = _optional(dict, event.get("usage")) or self.usage
        self.metrics = _optional(dict, event.get("metrics")) or self.metrics
        for choice in event["choices"]:
            delta: dict[str, Any] = _optional(dict, choice.get("delta")) or {}
            text = _optional(str, delta.get("content")) or ""
            reason = _optional(str, choice.get("finish_reason"))
            if text or reason or "role" not in delta:
                self.pieces += 1
                self.last_token_s = now_s
                if self.first_token_s is None:
                    self.first_token_s = now_s
            self._text.append(text)
            self.finish_reason = reason or self.finish_reason

    def write(self, result: ChatResult) -> None:
        """Write what has come into a result, once the stream is over."""
        result.first_token_s, result.last_token_s = self.first_token_s, self.last_token_s
        result.pieces = self.pieces
        result.prompt_tokens = plausible(self.usage.get("prompt_tokens"))
        result.output_tokens = plausible(self.usage.get("completion_tokens"))
        prefill_ms, queue_ms = (
            plausible(self.metrics.get(name), (int, float), _MOST_MS)
            for name in ("time_to_first_token_ms", "queue_time_ms")
        )
        if result.first_token_s is not None and prefill_ms is not None:
            result.scheduled_s = result.first_token_s - 1e-3 * prefill_ms
            if queue_ms is not None:
                result.queued_s = result.scheduled_s - 1e-3 * queue_ms
        reason = self.finish_reason
        if reason in ("abort", "error"):
            result.status, result.error = "aborted", self.error or f"finish_reason {reason}"
        elif self.error is not None or reason is None:
            result.status, result.error = "broken", self.error or "the answer has no end"
        else:
            result.status, result.error = ("truncated" if reason == "length" else "ok"), None
            # Halves of a character that came without the other one are replaced.
            halves = "".join(self._text).encode("utf-16", "surrogatepass")
            result.text = halves.decode("utf-16", "replace")


def plausible(value: Any, kind: type | tuple[type, ...] = int, most: float = _MOST_TOKENS) -> Any:
    """Return a number that a server reports, by default of tokens; None where it is impossible."""
    right = isinstance(value, kind) and not isinstance(value, bool)
    return value if right and 0 <= value <= most else None


def _optional(kind: type[T], value: object) -> T | None:
    """Return a value that may be missing; TypeError where it is of another type."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError


def _error_message(answer: Any) -> str:
    """Return the message in the JSON of an error, in whichever of the usual forms."""
    if isinstance(answer, dict):
        inner = answer.get("error", answer.get("detail", answer.get("message", answer)))
        answer = inner.get("message", inner) if isinstance(inner, dict) else inner
    return str(answer)[:2000]


async def end_transfer(response: aiohttp.ClientResponse) -> None:
    """Read the end of a whole answer: with it, the connection can be used again."""
    import aiohttp

    with contextlib.suppress(aiohttp.ClientError, OSError):
        async with asyncio.timeout(_END_S):
            await response.content.read(1)


async def refusal(response: aiohttp.ClientResponse) -> tuple[Status, str]:
    """Read the error that a server answered with."""
    import aiohttp

    code, message = response.status, "it says no more"
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(_END_S):
            data = await response.content.read(_ERROR_BYTES)
        message = data.decode("utf-8", "replace")[:2000]
        with contextlib.suppress(ValueError, RecursionError):
            message = _error_message(json.loads(data))
    if 300 <= code < 400:
        where = response.headers.get("Location", "")[:200]
        message = f"a redirect to {where!r}, which is not followed: give that as the url"
    error = f"HTTP {code}: {message}"
    if code in _BUSY:
        return "busy", error
    if code >= 500 or code < 400:
        return "server_error", error
    is_long = code == 413 or any(words in message for words in _TOO_LONG)
    return ("too_long" if is_long else "rejected"), error
