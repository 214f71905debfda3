"""Probes of one server: health, sleep, metrics and the models that it serves.

A server is up when `/health` and `/metrics` give valid answers, it serves the wanted model, and it
does not sleep: a sleeper reports that it is healthy, but requests to it hang. No answer is trusted:
each is a reading or an error.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.loop import LoopThread
from inframind_gym.live.metrics import MetricsError, Reading, parse_metrics
from inframind_gym.live.settings import ServerAddress, open_session

if TYPE_CHECKING:
    import aiohttp

_MOST_BYTES: Final = 1 << 23  # of an answer
_ASK_S: Final = 2.0
SIMULATED: Final = "inframind-simulated"  # whom models of simulated servers are owned by
_SHOWN: Final = 80  # characters of an answer that makes no sense

# Fetches a path of a server: HTTP status and text.
Get = Callable[[str], Awaitable[tuple[int, str]]]


class DownError(InfraMindError):
    """A server cannot be sent to.

    Attributes:
        asleep: it sleeps.
        at_once: it is down as soon as this is seen once; an answer that fails to come may be late.
        listens: something takes connections at its address.
        status: HTTP status of an error; None: no answer.
    """

    def __init__(
        self,
        reason: str,
        *,
        asleep: bool = False,
        at_once: bool = True,
        listens: bool = True,
        status: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.asleep = asleep
        self.at_once = at_once
        self.listens = listens
        self.status = status


def ask(url: str, *, method: str = "GET", limit_s: float = _ASK_S) -> str:
    """Send a request to a server and wait for its answer, with $VLLM_API_KEY where it is set.

    Raises:
        DownError: there is none, or another status than 200.
    """

    async def answer() -> tuple[int, str]:
        async with open_session(limit_s) as session:
            return await fetch(session, url, method=method)

    loop = LoopThread("ask")  # the caller's thread can have a loop that runs
    try:
        status, text = loop.run(answer())
    except DownError as error:
        error.args = (f"{url}: {error}",)
        raise
    finally:
        loop.stop()
    if status != 200:
        raise DownError(f"{url} says {status}: {text[:300].strip()}", status=status)
    return text


def unusable(url: str, model: str) -> str:
    """Return why a server is not healthy or does not serve a model; "" if it does."""
    try:
        ask(f"{url}/health")
        wrong = wrong_model(ask(f"{url}/v1/models"), model)
    except DownError as error:
        return str(error)
    return wrong and f"{url} {wrong}"


def is_simulated(url: str) -> bool:
    """Return whether a server answers that it is a simulated one (`simulated/`)."""
    try:
        return bool(json.loads(ask(f"{url}/v1/models"))["data"][0]["owned_by"] == SIMULATED)
    except (DownError, ValueError, LookupError, TypeError, RecursionError):
        return False


def is_dead(url: str) -> bool:
    """Return whether a server refuses connections, or reports that it has no engine."""
    try:
        ask(f"{url}/health")
    except DownError as error:
        return not error.listens or error.status == 503
    return False


def is_asleep(text: str) -> bool:
    """Read what a server answered to `/is_sleeping`.

    Raises:
        DownError: it makes no sense.
    """
    try:
        return bool(json.loads(text)["is_sleeping"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DownError(f"/is_sleeping answers {text[:_SHOWN]!r}") from None


def wrong_model(text: str, wanted: str) -> str:
    """Return why what a server answered to `/v1/models` lacks a model; "" if it does not."""
    try:
        served = [str(model["id"]) for model in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"/v1/models answers no list of models: {text[:_SHOWN]!r}: is this a vLLM server?"
    return "" if wanted in served else f"serves {', '.join(served) or 'nothing'}, not {wanted}"


class Probe:
    """Asks one server.

    Args:
        address: where it is, and what it should serve.
        get: fetches a path from it; raises `DownError` where it gives no answer.
    """

    def __init__(self, address: ServerAddress, get: Get) -> None:
        self._model = address.model
        self._get = get
        self._reports_sleep = True  # answers to /is_sleeping: only in vLLM's developer mode

    def reset(self) -> None:
        """Ask everything again: another server may be at the address."""
        self._reports_sleep = True

    async def check(self) -> None:
        """Ask one that was up whether it still is.

        Raises:
            DownError: it isn't.
        """
        status, _ = await self._get("/health")
        if status != 200:
            raise DownError(f"/health says {status}")
        if not self._reports_sleep:
            return
        status, text = await self._get("/is_sleeping")
        self._reports_sleep = status == 200
        if self._reports_sleep and is_asleep(text):
            raise DownError("asleep", asleep=True)

    async def meet(self) -> Reading:
        """Ask one that comes up: also for its metrics and its model.

        Raises:
            DownError: it isn't up.
        """
        await self.check()
        reading = await self.metrics()
        status, text = await self._get("/v1/models")
        wrong = wrong_model(text, self._model) if status == 200 else f"/v1/models says {status}"
        if wrong:
            raise DownError(wrong)
        return reading

    async def metrics(self) -> Reading:
        """Read the metrics.

        Raises:
            DownError: there are none, or they report that the server sleeps.
        """
        status, text = await self._get("/metrics")
        if status != 200:
            raise DownError(f"/metrics says {status}")
        try:
            reading = parse_metrics(text, time.monotonic())
        except MetricsError as error:
            raise DownError(str(error)) from None
        if reading.asleep:
            raise DownError("asleep", asleep=True)
        return reading


async def fetch(
    session: aiohttp.ClientSession, url: str, path: str = "", *, method: str = "GET"
) -> tuple[int, str]:
    """Fetch a path of a server; the time limit is the session's. Redirects are not followed.

    Returns:
        HTTP status, and the text.

    Raises:
        DownError: there is no answer, or one without end.
    """
    import aiohttp

    what = f" to {path}" if path else ""
    try:
        async with session.request(method, url + path, allow_redirects=False) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise DownError(f"the answer{what} has no end")
            return response.status, data.decode("utf-8", "replace")
    except TimeoutError:
        reason = f"no answer{what} in {session.timeout.total:g} s"
        raise DownError(reason, at_once=False) from None
    except aiohttp.ClientConnectorError as error:
        number = error.os_error.errno  # None: of several addresses, as localhost has them
        why = os.strerror(number) if number and number > 0 else str(error.os_error) or "OSError"
        refused = number in (errno.ECONNREFUSED, None)
        raise DownError(f"no connection ({why})", listens=not refused) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise DownError(f"no HTTP answer{what} ({type(error).__name__}: {error})") from None
