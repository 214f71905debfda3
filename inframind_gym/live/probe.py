"""Probes of one server: health, sleep, metrics and the models that it serves.

A server is up when `/health` and `/metrics` give valid answers, it serves the wanted model, and it
does not sleep: a sleeper reports that it is healthy, but requests to it hang. No answer is trusted:
each is a reading or an error.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.metrics import MetricsError, Reading, parse_metrics
from inframind_gym.live.settings import ServerAddress, auth_headers

if TYPE_CHECKING:
    import aiohttp

_MOST_BYTES: Final = 1 << 23  # of an answer
_ASK_S: Final = 2.0
_SHOWN: Final = 80  # characters of an answer that makes no sense

# Fetches a path of a server: HTTP status and text.
Get = Callable[[str], Awaitable[tuple[int, str]]]


class DownError(InfraMindError):
    """A server cannot be sent to.

    Attributes:
        asleep: it sleeps.
        at_once: it is down as soon as this is seen once; an answer that fails to come may be late.
        listens: something takes connections at its address.
    """

    def __init__(
        self, reason: str, *, asleep: bool = False, at_once: bool = True, listens: bool = True
    ) -> None:
        super().__init__(reason)
        self.asleep = asleep
        self.at_once = at_once
        self.listens = listens


class AskError(InfraMindError):
    """A server gave no answer, or an HTTP error.

    Attributes:
        status: HTTP status; None: no answer.
        refused: nothing takes connections at the address.
    """

    def __init__(self, reason: str, *, status: int | None = None, refused: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.refused = refused


def ask(url: str, *, method: str = "GET", limit_s: float = _ASK_S) -> str:
    """Send a request to a server and wait for its answer, with $VLLM_API_KEY where it is set.

    Raises:
        AskError: there is none, or an HTTP error.
    """
    request = urllib.request.Request(url, method=method, headers=auth_headers())
    # A proxy cannot reach this machine's own servers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    late = AskError(f"{url}: no answer in {limit_s:.1f} s")
    try:
        with opener.open(request, timeout=limit_s) as answer:
            return bytes(answer.read(1 << 20)).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(300).decode("utf-8", "replace").strip()
        raise AskError(f"{url} says {error.code}: {said}", status=error.code) from None
    except TimeoutError:
        raise late from None
    except http.client.HTTPException as error:
        raise AskError(f"{url} does not speak HTTP ({type(error).__name__})") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise late from None
        why = str(getattr(reason, "strerror", None) or reason or type(error).__name__).lower()
        refused = isinstance(reason, ConnectionRefusedError)
        raise AskError(f"{url}: {why}", refused=refused) from None


def unusable(url: str, model: str) -> str:
    """Return why a server is not healthy or does not serve a model; "" if it does."""
    try:
        ask(f"{url}/health")
        wrong = wrong_model(model, parse_models(ask(f"{url}/v1/models")))
    except AskError as error:
        return str(error)
    except ValueError as error:
        return f"{url}{error}: is this a vLLM server?"
    return wrong and f"{url} {wrong}"


def is_dead(url: str) -> bool:
    """Return whether a server refuses connections, or reports that it has no engine."""
    try:
        ask(f"{url}/health")
    except AskError as error:
        return error.refused or error.status == 503
    return False


def parse_json(text: str) -> Any:
    """Read what a server answered.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_models(text: str) -> list[str]:
    """Read what a server answered to `/v1/models`: the names of what it serves.

    Raises:
        ValueError: it is no list of models.
    """
    try:
        return [str(model["id"]) for model in parse_json(text)["data"]]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"/v1/models answers no list of models: {text[:_SHOWN]!r}") from None


def wrong_model(wanted: str, served: list[str]) -> str:
    """Return why a server is not the wanted one; "" if it serves the model."""
    if wanted in served:
        return ""
    return f"serves {', '.join(served) or 'nothing'}, not {wanted}"


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
        if self._reports_sleep:
            await self._ask_sleep()

    async def meet(self) -> Reading:
        """Ask one that comes up: also for its metrics and its model.

        Raises:
            DownError: it isn't up.
        """
        await self.check()
        reading = await self.metrics()
        await self._ask_model()
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

    async def _ask_sleep(self) -> None:
        status, text = await self._get("/is_sleeping")
        if status != 200:
            self._reports_sleep = False
            return
        try:
            asleep = bool(parse_json(text)["is_sleeping"])
        except (ValueError, KeyError, TypeError):
            raise DownError(f"/is_sleeping answers {text[:_SHOWN]!r}") from None
        if asleep:
            raise DownError("asleep", asleep=True)

    async def _ask_model(self) -> None:
        if self._model is None:
            return
        status, text = await self._get("/v1/models")
        if status != 200:
            raise DownError(f"/v1/models says {status}")
        try:
            wrong = wrong_model(self._model, parse_models(text))
        except ValueError as error:
            raise DownError(str(error)) from None
        if wrong:
            raise DownError(wrong)


async def fetch(session: aiohttp.ClientSession, url: str, path: str) -> tuple[int, str]:
    """Fetch a path of a server; the time limit is the session's.

    Returns:
        HTTP status, and the text.

    Raises:
        DownError: there is no answer, or one without end.
    """
    import aiohttp

    try:
        async with session.get(url + path) as response:
            data = bytearray()
            async for chunk in response.content.iter_any():
                data += chunk
                if len(data) > _MOST_BYTES:
                    raise DownError(f"the answer to {path} has no end")
            return response.status, data.decode("utf-8", "replace")
    except TimeoutError:
        reason = f"no answer to {path} in {session.timeout.total:g} s"
        raise DownError(reason, at_once=False) from None
    except aiohttp.ClientConnectorError as error:
        why = error.os_error.strerror or str(error.os_error) or type(error.os_error).__name__
        raise DownError(f"no connection ({why})", listens=False) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise DownError(f"{type(error).__name__}: {error}") from None
