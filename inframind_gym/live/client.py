"""HTTP with servers: event loop, sessions, single requests; chat completions are in `chat.py`.

It is aiohttp, not httpx, whose pool takes time that grows with the square of the requests in flight
(encode/httpx#3215): that would be in every measured latency.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from inframind_gym.errors import InfraMindError

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

_ASK_S: Final = 2.0  # for a whole answer, by default
_CONNECT_S: Final = 5.0  # for a connection
_KEEP_ALIVE_S: Final = 4.0  # idle connections; vLLM's front end closes its own after 5
_MOST_BYTES: Final = 1 << 23  # of an answer


# The event loop that all of this runs on


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class LoopThread:
    """An asyncio event loop on a daemon thread, for code that is not asynchronous."""

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
        """Schedule a call of a function on the loop; False where the loop has been stopped."""
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
    """Raise this process's limit of open files to `wanted`, as far as the system allows."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # no such limit here
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if resource.RLIM_INFINITY != soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


# One request to one server


class DownError(InfraMindError):
    """A server cannot be sent to.

    Attributes:
        asleep: it sleeps.
        at_once: one such error means that it is down; False: its answer may only be late.
        status: HTTP status of an error; None: no answer.
    """

    def __init__(
        self, reason: str, *, asleep: bool = False, at_once: bool = True, status: int | None = None
    ) -> None:
        super().__init__(reason)
        self.asleep, self.at_once, self.status = asleep, at_once, status


def open_session(limit_s: float | None, key: str | None = None) -> aiohttp.ClientSession:
    """Open a session on the running loop, with `key` or else $VLLM_API_KEY.

    `limit_s` is the time of each request as a whole; None: requests have limits of their own.
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


async def read_most(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Read an answer; stop after more than `most_bytes`."""
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > most_bytes:
            break
    return bytes(data)


def system_words(error: Exception) -> str:
    """Return the system's message for an error of a connection, without the address; "": none."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number and number > 0 else ""


async def fetch(
    session: aiohttp.ClientSession, url: str, path: str = "", *, method: str = "GET"
) -> str:
    """Fetch a path of a server; the time limit is the session's. Redirects are not followed.

    Raises:
        DownError: there is no answer, an endless one, or another status than 200.
    """
    import aiohttp

    what = path or url
    try:
        async with session.request(method, url + path, allow_redirects=False) as response:
            data = await read_most(response, _MOST_BYTES)
            if len(data) > _MOST_BYTES:
                raise DownError(f"the answer to {what} has no end")
    except TimeoutError:
        reason = f"no answer to {what} in {session.timeout.total:g} s"
        raise DownError(reason, at_once=False) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = system_words(error) or f"{type(error).__name__}: {error}"
        raise DownError(f"no HTTP answer to {what} ({why})") from None
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
