"""Chat completions: the one client of the live environments, of live placement and of the gateway.

    watcher = MetricsWatcher(addresses(pool), LiveSettings(), poll_s=pool.metrics_poll_s)
    watcher.open()
    client = ChatClient(watcher)
    await client.connect()
    result = ChatResult(time.monotonic(), max_tokens=256)
    await client.send(0, body, result, limit_s=60.0)

The outcome of a request, failures included, is in its `ChatResult`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np

from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import cancel_all, open_session, read_most, system_words
from inframind_gym.live.watcher import MetricsWatcher

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
CHAT: Final = "/v1/chat/completions"
Status = Literal[
    "ok",
    "truncated",  # cut at max_tokens
    "aborted",  # dropped by the server: it was put to sleep, or its engine died
    "broken",  # the answer stopped short, or had no end
    "garbled",  # the answer is malformed, or endless
    "unreachable",  # no connection, or one that was lost before the first token
    "busy",  # 429, 502, 503 or 504
    "too_long",  # the prompt doesn't fit the model
    "rejected",  # any other 4xx
    "error",  # any other 5xx, and redirects, which are not followed
    "timeout",  # over its time limit
    "down",  # its server went down, or to sleep, before it was answered
    "cancelled",  # the episode was closed, the client went away
    "refused",  # by the gateway
    "fault",  # of our own code
]
# Outcomes after which another attempt would end the same way, or take as long again.
_NEVER_AGAIN: Final = ("too_long", "rejected", "timeout", "cancelled", "refused", "fault")
_SUSPICIOUS: Final = ("unreachable", "broken", "garbled", "error")  # its server may be down
_BUSY: Final = (429, 502, 503, 504)
_NO_SERVER: Final = (502, 504)  # from a proxy
_TOO_LONG: Final = ("maximum context length", "maximum model length", "greater than max_model_len")
_END_S: Final = 1.0  # for the end of a whole answer, and for the words of an error
_ERROR_BYTES: Final = 1 << 16
_LINE_BYTES: Final = 1 << 23  # of a stream
_WHOLE_BYTES: Final = 1 << 26  # of an answer that is not streamed
_MORE_BYTES, _BYTES_A_TOKEN = 1 << 20, 1 << 12  # limit of a stream: base, and for each token
_MOST_TOKENS: Final = 1 << 24  # no context is longer, and the sums of a query's calls fit 32 bits
_MOST_MS: Final = 1e9  # of a request, as a server reports it: 12 days; excludes infinity and NaN


@dataclass(slots=True, eq=False)
class ChatResult:
    """A request: its answer so far, and in the end its outcome.

    Times are seconds of the monotonic clock; None: did not happen. `max_tokens` is the limit of all
    requested answers together: a stream of far more bytes is cut off.
    """

    submit_s: float
    max_tokens: int = 0
    status: Status = "cancelled"
    error: str | None = None  # our own message, with no address and no text of an answer
    detail: str = ""  # of the error: the message of the server or the system
    http_status: int | None = None  # of the server's answer
    text: str | None = None  # of a whole answer
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    sent_s: float | None = None
    scheduled_s: float | None = None
    queued_s: float | None = None
    first_token_s: float | None = None  # a piece that only names the role is no token
    last_token_s: float | None = None
    finish_s: float = 0.0
    attempts: int = 0
    pieces: int = 0  # that held tokens: at most as many as there are tokens
    finish_reason: str | None = None  # "stop", "length", "abort", …
    done: bool = False  # the answer came to its end
    has_impossible_usage: bool = False  # the server reports numbers of tokens that cannot be
    _text: list[str] = field(default_factory=list, repr=False)
    _bytes: int = 0
    _rest: bytes = field(default=b"", repr=False)

    @property
    def reason(self) -> str | None:
        """The failure with its detail: for logs, not for clients."""
        return f"{self.error}: {self.detail}" if self.detail else self.error

    @property
    def answered(self) -> bool:
        """True for an answer, whole or cut."""
        return self.status in ("ok", "truncated")

    @property
    def retryable(self) -> bool:
        """True where another attempt makes sense."""
        return self.status not in _NEVER_AGAIN

    @property
    def aborted(self) -> bool:
        """True where the server says that it gave the answer up."""
        return self.finish_reason in ("abort", "error")

    def end(self, status: Status, error: str | None = None, detail: str = "") -> None:
        """Set the outcome of the request."""
        self.status, self.error, self.detail = status, error, detail

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the next bytes of a stream (server-sent events), which came at `now_s`.

        Raises:
            ChatError: they are malformed or endless, or report that the server gave up.
        """
        self._bytes += len(data)
        most = _MORE_BYTES + _BYTES_A_TOKEN * self.max_tokens
        if self._bytes > most or len(self._rest) > _LINE_BYTES:
            words = "the answer has no end: far more bytes than max_tokens would take"
            raise ChatError("garbled", words)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:") or self.done:
                continue  # comments, and the empty lines between events
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self._finish()
                continue
            with _garbled(payload):
                self._take(json.loads(payload), now_s)

    def _take(self, event: Any, now_s: float) -> None:
        if "error" in event:
            raise ChatError("aborted", "the server gave it up", _error_message(event))
        self._take_usage(event)
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
        # The server's own times in ms (`--enable-per-request-metrics`, vLLM >= 0.32).
        metrics: dict[str, Any] = _optional(dict, event.get("metrics")) or {}
        prefill_ms, queue_ms = (
            _plausible(metrics.get(name), (int, float), _MOST_MS)
            for name in ("time_to_first_token_ms", "queue_time_ms")
        )
        if self.first_token_s is not None and prefill_ms is not None:
            self.scheduled_s = self.first_token_s - 1e-3 * prefill_ms
            if queue_ms is not None:
                self.queued_s = self.scheduled_s - 1e-3 * queue_ms

    def _take_usage(self, event: dict[str, Any]) -> None:
        if usage := _optional(dict, event.get("usage")):
            counts = [usage.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
            self.prompt_tokens, self.output_tokens = map(_plausible, counts)
            ours = [self.prompt_tokens, self.output_tokens]
            self.has_impossible_usage = counts.count(None) < ours.count(None)

    def take_whole(self, data: bytes) -> None:
        """Take a whole answer that was not streamed; a ChatError: it is malformed."""
        with _garbled(data):
            answer = json.loads(data)
            self._take_usage(answer)
            reasons = [str(choice.get("finish_reason")) for choice in answer["choices"]]
            # Of several answers the worst end counts.
            ends = ("abort", "error", "length", reasons[0])
            self.finish_reason = next(reason for reason in ends if reason in reasons)
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self.aborted:
            self.end("aborted", "the server gave it up", f"finish_reason {self.finish_reason}")
        elif self.finish_reason is None:
            self.end("broken", "the answer has no end")
        else:
            self.end("truncated" if self.finish_reason == "length" else "ok")
            # Half a surrogate pair without its other half is replaced.
            halves = "".join(self._text).encode("utf-16", "surrogatepass")
            self.text = halves.decode("utf-16", "replace")


class ChatError(InfraMindError):
    """There is no answer; arguments as of `ChatResult.end`."""

    def __init__(self, status: Status, error: str, detail: str = "") -> None:
        super().__init__(error)
        self.status, self.detail = status, detail


@dataclass(slots=True, eq=False)
class _Flight:
    """A request under way."""

    server: int
    result: ChatResult
    timer: asyncio.Timeout
    task: asyncio.Task[Any] | None
    stopped: str = ""  # why it was given up


class ChatClient:
    """Client for chat completions of M watched servers.

    Each request is sent once: retries are the caller's.

    Args:
        watcher: of the servers.
        max_in_flight: requests at once, those beyond wait; None: any number.

    Attributes:
        servers: as they were seen last.
        in_flight: (M,) requests that have begun and not ended.
    """

    def __init__(self, watcher: MetricsWatcher, max_in_flight: int | None = None) -> None:
        self.watcher, self.servers = watcher, watcher.status()
        self.in_flight = np.zeros(len(self.servers), np.int64)
        self._session: aiohttp.ClientSession
        self._flights: set[_Flight] = set()
        self._slots: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        if max_in_flight is not None:
            self._slots = asyncio.Semaphore(max_in_flight)

    async def connect(self) -> None:
        """Open a session on the running loop, on which all other methods are called."""
        self._session = open_session(None)

    async def disconnect(self) -> None:
        """End what is in flight, and close the session. The watcher is closed on another thread."""
        await cancel_all(flight.task for flight in self._flights if flight.task is not None)
        await self._session.close()
        await asyncio.sleep(0)  # transports close in the loop's next round

    def give_up(self, server: int, why: str, *, begun: bool = True) -> None:
        """End the requests in flight to a server, with status "down".

        A sleeping server would answer when it is woken up, if ever. Without `begun`, answers whose
        first token has come go on.
        """
        for flight in self._flights:
            ends = begun or flight.result.first_token_s is None
            if flight.server == server and ends and not flight.timer.expired():
                flight.stopped = why
                flight.timer.reschedule(0.0)

    async def send(
        self,
        server: int,
        body: Mapping[str, Any],
        result: ChatResult,
        limit_s: float,
        *,
        stall_s: float | None = None,
        request_id: str | None = None,
        on_data: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        """Send a request, and read its answer; what comes of it is written into `result`.

        Failures and time limits raise nothing, being cancelled raises CancelledError.

        Args:
            server: its index.
            body: of the request; "stream" says how the answer comes.
            result: written.
            limit_s: for the whole answer, waiting for a free connection included.
            stall_s: from the first token on, between two pieces of a stream; None: no limit.
            request_id: the header X-Request-Id.
            on_data: awaited with each piece of a stream, and with a whole answer, which `result`
                has taken. May raise a ChatError.
        """
        import aiohttp

        loop, headers = asyncio.get_running_loop(), {"Content-Type": "application/json"}
        if request_id is not None:
            headers["X-Request-Id"] = request_id
        over_s, failure = loop.time() + limit_s, None
        timer = asyncio.timeout_at(over_s)
        flight = _Flight(server, result, timer, asyncio.current_task())
        self._flights.add(flight)
        self.in_flight[server] += 1
        try:
            async with timer, self._slots:
                if not self.watcher.is_up(server):
                    raise ChatError("down", "the server is down", self.servers[server].alias)
                result.attempts, result.sent_s = result.attempts + 1, time.monotonic()
                async with self._session.post(
                    self.servers[server].url + CHAT,
                    data=json.dumps(body).encode(),
                    headers=headers,
                    allow_redirects=False,
                ) as response:
                    result.http_status = response.status
                    if response.status != 200:
                        raise await _refusal(response)
                    if not body.get("stream"):
                        data = await read_most(response, _WHOLE_BYTES)
                        result.take_whole(data)
                        if on_data is not None:
                            await on_data(data)
                    async for data in response.content.iter_any():
                        result.feed(data, time.monotonic())
                        if on_data is not None:
                            await on_data(data)
                        if result.done:
                            break
                        if stall_s is not None and result.first_token_s is not None:
                            timer.reschedule(min(loop.time() + stall_s, over_s))
                    if not result.done:
                        raise ChatError("broken", "the answer stopped short")
                    timer.reschedule(None)
                    with contextlib.suppress(aiohttp.ClientError, OSError):
                        async with asyncio.timeout(_END_S):  # so that the connection is reused
                            await response.content.read(1)
        except ChatError as error:
            failure = error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            if timer.expired():
                stalled = (timer.when() or over_s) < over_s
                over = f"nothing in {stall_s:g} s" if stalled else f"the limit is {limit_s:.1f} s"
                failure = ChatError("timeout", "no whole answer in time", over)
                failure = ChatError("down", flight.stopped) if flight.stopped else failure
            else:  # the connection timed out or was lost
                status: Status = "unreachable" if result.first_token_s is None else "broken"
                words = system_words(error) or type(error).__name__
                failure = ChatError(status, words, str(error))
        finally:
            self._flights.discard(flight)
            self.in_flight[server] -= 1
            result.finish_s = time.monotonic()
        if failure is not None:
            result.text = None
            result.end(failure.status, str(failure), failure.detail)
        elif result.last_token_s is not None:
            result.finish_s = result.last_token_s
        if result.status in _SUSPICIOUS or result.http_status in _NO_SERVER:
            self.watcher.suspect(server)


async def _refusal(response: aiohttp.ClientResponse) -> ChatError:
    """Return the error that a server answered with."""
    import aiohttp

    code, message = response.status, "it says no more"
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(_END_S):
            data = await read_most(response, _ERROR_BYTES)
        message = data.decode("utf-8", "replace")[:2000]
        with contextlib.suppress(ValueError, RecursionError):
            message = _error_message(json.loads(data))
    if 300 <= code < 400:
        where = response.headers.get("Location", "")[:200]
        message = f"a redirect to {where!r}, which is not followed: give that as the url"
    status: Status = "busy" if code in _BUSY else "error"
    if 400 <= code < 500 and status == "error":
        is_long = any(words in message for words in _TOO_LONG)
        status = "too_long" if is_long else "rejected"
    return ChatError(status, f"HTTP {code}", message)


@contextlib.contextmanager
def _garbled(data: bytes) -> Iterator[None]:
    """Turn errors in reading the JSON of an answer into a ChatError with its beginning."""
    try:
        yield
    except ChatError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ChatError("garbled", "the answer is garbled", repr(data[:200])) from None


def _plausible(value: Any, kind: type | tuple[type, ...] = int, most: float = _MOST_TOKENS) -> Any:
    """Return a number that a server reports, by default of tokens; None if it is impossible."""
    is_kind = isinstance(value, kind) and not isinstance(value, bool)
    return value if is_kind and 0 <= value <= most else None


def _optional(kind: type[T], value: object) -> T | None:
    """Return a value that may be None; TypeError if it is of another type."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError


def _error_message(answer: Any) -> str:
    """Return the message in the JSON of an error, in any usual form, behind the field at fault."""
    if isinstance(answer, dict):
        inner = answer.get("error", answer.get("detail", answer.get("message", answer)))
        field = inner.get("param") if isinstance(inner, dict) else None
        answer = inner.get("message", inner) if isinstance(inner, dict) else inner
        answer = f"{field}: {answer}" if field else answer
    return str(answer)[:2000]
