"""One server of a placement: its process is started and stopped, it is put to sleep and woken up.

All of this blocks: it is done on threads (`phases`).
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from inframind_gym.errors import InfraMindError
from inframind_gym.live.launch.launcher import Launch, Launcher, is_dead
from inframind_gym.live.launch.ports import free_ports
from inframind_gym.live.placement.config import LiveLimits
from inframind_gym.live.vllm.settings import ServerAddress, server_url
from inframind_gym.simulator.server.pool import PoolConfig

_LOOK_S: Final = 0.05
# Weights stay in the CPU's memory. After level 2 a server answers nonsense until they have been
# loaded again by other calls than /wake_up.
_LEVEL: Final = 1
_SHORT_S: Final = 5.0  # for an answer that takes no work


class ServerError(InfraMindError):
    """A server did not do as it was told."""


class LiveServer(Protocol):
    """What a placement does to a server."""

    def start(self, cancelled: Callable[[], bool]) -> ServerAddress:
        """Start the process; returns when it answers.

        Args:
            cancelled: asked now and then; once it is true, what was started is ended.

        Raises:
            InfraMindError: it did not come up; nothing is left of it.
        """

    def sleep(self) -> None:
        """Put it to sleep; returns when it says that it sleeps. A sleeper goes on sleeping.

        Raises:
            ServerError: it does not sleep.
        """

    def wake(self) -> None:
        """Wake it up; returns when it says that it is awake and healthy.

        Raises:
            ServerError: it is not.
        """

    def stop(self) -> None:
        """End its processes, all of them; nothing happens where there are none.

        Raises:
            InfraMindError: some are left.
        """

    def is_alive(self) -> bool:
        """Whether its process runs and takes connections."""


class SleepControl:
    """The developer endpoints of a vLLM server.

    Args:
        limits: `sleep_s` and `wake_s` are read.
    """

    def __init__(self, limits: LiveLimits) -> None:
        self.limits = limits
        self.url = ""

    def sleep(self) -> None:
        """As of `LiveServer.sleep`. What is in flight, of strangers', is waited for."""
        over_s = time.monotonic() + self.limits.sleep_s
        self._post(f"/sleep?level={_LEVEL}&mode=wait", over_s)
        self._wait(True, over_s)

    def wake(self) -> None:
        """As of `LiveServer.wake`."""
        over_s = time.monotonic() + self.limits.wake_s
        self._post("/wake_up", over_s)
        self._wait(False, over_s)
        self._ask("/health", "GET", _SHORT_S)

    def _post(self, path: str, over_s: float) -> None:
        self._ask(path, "POST", max(over_s - time.monotonic(), _LOOK_S))

    def _wait(self, asleep: bool, over_s: float) -> None:
        while True:
            text = self._ask("/is_sleeping", "GET", _SHORT_S)
            try:
                if bool(json.loads(text)["is_sleeping"]) == asleep:
                    return
            except (ValueError, KeyError, TypeError):
                raise ServerError(f"{self.url}/is_sleeping answers {text[:80]!r}") from None
            if time.monotonic() >= over_s:
                raise ServerError(
                    f"{self.url} {'does not sleep' if asleep else 'goes on sleeping'}"
                )
            time.sleep(_LOOK_S)

    def _ask(self, path: str, method: str, limit_s: float) -> str:
        """The answer to a request.

        Raises:
            ServerError: there is none, or it tells of an error.
        """
        request = urllib.request.Request(self.url + path, method=method)
        key = os.environ.get("VLLM_API_KEY")
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            # A proxy knows nothing of this machine's own servers.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=limit_s) as answer:
                return str(answer.read(1 << 16).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode("utf-8", "replace").strip()
            if error.code == 404:
                raise ServerError(
                    f"{self.url}{path}: not found: the server was started without "
                    "VLLM_SERVER_DEV_MODE=1. Set sleep_mode: true for this model in the pool."
                ) from None
            raise ServerError(f"{self.url}{path} says {error.code}: {said}") from None
        except TimeoutError:
            raise ServerError(f"{self.url}{path}: no answer in {limit_s:.1f} s") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise ServerError(f"{self.url}{path}: no answer in {limit_s:.1f} s") from None
            raise ServerError(f"{self.url}{path}: {reason or type(error).__name__}") from None


class _Cancelled(Exception):  # noqa: N818  (it is no error)
    """The start is to be given up."""


class VllmServer(SleepControl):
    """A vLLM process of this machine, on a port that is free when it starts.

    Args:
        pool: of this one model (`config.instance_pool`).
        limits: how long it is waited for.
        state: folder of what was started.
        python: interpreter that has vLLM.
    """

    _ports: Final[set[int]] = set()  # of the servers of this process
    _guard: Final = threading.Lock()

    def __init__(
        self, pool: PoolConfig, limits: LiveLimits, state: str | None, python: str | None
    ) -> None:
        super().__init__(limits)
        self._pool = pool
        self._state, self._python = state, python
        self._launcher = Launcher(pool, state=state, python=python)
        self._port: int | None = None

    def start(self, cancelled: Callable[[], bool]) -> ServerAddress:
        """As of `LiveServer.start`."""
        self._give_port_back()  # of a start that was not stopped
        self._port = self._take_port()
        try:
            return self._start(self._port, cancelled)
        except BaseException:
            self._give_port_back()
            raise

    def _start(self, port: int, cancelled: Callable[[], bool]) -> ServerAddress:
        model = self._pool.models[0].model_copy(update={"port": port})
        pool = self._pool.model_copy(update={"models": (model,)})
        self._launcher = Launcher(pool, state=self._state, python=self._python)
        self.url = server_url(model)

        def watch(launches: Sequence[Launch]) -> None:
            if cancelled():
                raise _Cancelled

        try:
            (launch,) = self._launcher.up(timeout_s=self.limits.start_s, watch=watch)
        except _Cancelled:
            raise ServerError("its start was given up") from None
        if launch.phase != "up":
            advice = f" What to do: {launch.advice}." if launch.advice else ""
            raise ServerError(f"{launch.note}.{advice} Its log: {launch.log}")
        return ServerAddress(alias=model.alias, url=self.url, model=model.name)

    def stop(self) -> None:
        """As of `LiveServer.stop`."""
        left = [pid for each in self._launcher.down(self.limits.stop_s) for pid in each.left]
        if left:
            raise ServerError(f"these processes still run: {', '.join(map(str, left))}")
        self._give_port_back()

    def is_alive(self) -> bool:
        """As of `LiveServer.is_alive`."""
        return self._launcher.is_running(self._pool.models[0].alias) and not is_dead(self.url)

    @classmethod
    def _take_port(cls) -> int:
        """A port that is free, and that no server of this process has or is about to have.

        Raises:
            ServerError: there is none.
        """
        with cls._guard:
            try:
                # More than are taken: one of them is not.
                for port in free_ports(len(cls._ports) + 1):
                    if port not in cls._ports:
                        cls._ports.add(port)
                        return port
                why = "none was offered"
            except OSError as error:
                why = str(error)
        raise ServerError(
            f"there is no free port for the server ({why}); {len(cls._ports)} are those of this "
            "process's servers. End what holds ports, or widen net.ipv4.ip_local_port_range."
        )

    def _give_port_back(self) -> None:
        with self._guard:
            self._ports.discard(self._port or 0)
        self._port = None
