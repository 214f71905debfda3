"""Server of one instance: its process is started and stopped, it is put to sleep and woken up.

All of this blocks: it runs on threads (`instance.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.config import LiveLimits
from inframind_gym.live.launcher import Launch, Launcher
from inframind_gym.live.probe import DownError, ask, is_asleep, is_dead
from inframind_gym.live.processes import free_ports
from inframind_gym.live.settings import ServerAddress, server_url
from inframind_gym.simulator.server.pool import PoolConfig

_POLL_S: Final = 0.05
# Weights stay in the CPU's memory. After level 2 a server answers nonsense until they have been
# loaded again by other calls than /wake_up.
_LEVEL: Final = 1
_SHORT_S: Final = 5.0  # for an answer that takes no work


class VllmServer:
    """A vLLM process of this machine, on a port that is free when it starts.

    Args:
        pool: of this one model (`config.instance_pool`).
        limits: of phases.
        state: folder of what was started.
        python: interpreter that has vLLM.

    Attributes:
        url: of the server that runs; "" before the first start.
    """

    _ports: Final[set[int]] = set()  # of the servers of this process
    _guard: Final = threading.Lock()

    def __init__(
        self, pool: PoolConfig, limits: LiveLimits, state: str | None, python: str | None
    ) -> None:
        self.limits = limits
        self.url = ""
        self._launcher = Launcher(pool, state=state, python=python)
        self._port = 0

    def start(self, cancelled: Callable[[], bool]) -> ServerAddress:
        """Start the process; returns when it answers.

        Args:
            cancelled: called now and then; once it is true, what was started is ended.

        Raises:
            InfraMindError: it did not come up; nothing is left of it.
        """
        self._release_port()  # of a start that was not stopped
        self._port = self._reserve_port()
        try:
            return self._start(self._port, cancelled)
        except BaseException:
            self._release_port()
            raise

    def _start(self, port: int, cancelled: Callable[[], bool]) -> ServerAddress:
        launcher = self._launcher
        model = launcher.pool.models[0].model_copy(update={"port": port})
        launcher.pool = launcher.pool.model_copy(update={"models": (model,)})
        self.url = server_url(model)

        def watch(launches: Sequence[Launch]) -> None:
            if cancelled():
                raise InfraMindError("its start was given up")

        (launch,) = launcher.up(timeout_s=self.limits.start_s, watch=watch)
        if launch.phase != "up":
            advice = f" What to do: {launch.advice}." if launch.advice else ""
            raise InfraMindError(f"{launch.note}.{advice} Its log: {launch.log}")
        return ServerAddress(alias=model.alias, url=self.url, model=model.name)

    def stop(self) -> None:
        """End all its processes, if there are any.

        Raises:
            InfraMindError: some are left.
        """
        left = [pid for each in self._launcher.down(self.limits.stop_s) for pid in each.left]
        if left:
            raise InfraMindError(f"these processes still run: {', '.join(map(str, left))}")
        self._release_port()

    def is_alive(self) -> bool:
        """Return whether its process runs and takes connections."""
        (alias,) = self._launcher.pool.aliases
        return self._launcher.is_running(alias) and not is_dead(self.url)

    def sleep(self) -> None:
        """Put it to sleep; returns when it reports that. A sleeper goes on sleeping.

        Requests of others that are in flight are waited for.

        Raises:
            InfraMindError: it does not sleep.
        """
        self._switch(f"/sleep?level={_LEVEL}&mode=wait", True, self.limits.sleep_s)

    def wake(self) -> None:
        """Wake it up; returns when it reports that it is awake and healthy.

        Raises:
            InfraMindError: it is not.
        """
        self._switch("/wake_up", False, self.limits.wake_s)
        ask(f"{self.url}/health", limit_s=_SHORT_S)

    def _switch(self, path: str, asleep: bool, limit_s: float) -> None:
        over_s = time.monotonic() + limit_s
        self._ask(path, "POST", max(limit_s, _POLL_S))
        while True:
            if is_asleep(self._ask("/is_sleeping", "GET", _SHORT_S)) == asleep:
                return
            if time.monotonic() >= over_s:
                why = "does not sleep" if asleep else "goes on sleeping"
                raise InfraMindError(f"{self.url} {why}")
            time.sleep(_POLL_S)

    def _ask(self, path: str, method: str, limit_s: float) -> str:
        try:
            return ask(self.url + path, method=method, limit_s=limit_s)
        except DownError as error:
            if error.status == 404:
                raise InfraMindError(
                    f"{self.url}{path}: not found: the server was started without "
                    "VLLM_SERVER_DEV_MODE=1. Set sleep_mode: true for this model in the pool."
                ) from None
            raise

    @classmethod
    def _reserve_port(cls) -> int:
        """Return a port that is free, and not reserved by another server of this process.

        Raises:
            InfraMindError: there is none.
        """
        with cls._guard:
            try:
                offered = free_ports(len(cls._ports) + 1)  # at least one of them is not reserved
            except OSError as error:
                raise InfraMindError(
                    f"there is no free port for the server ({error}); {len(cls._ports)} are those "
                    "of this process's servers. End what holds ports, or widen "
                    "net.ipv4.ip_local_port_range."
                ) from None
            port = next(port for port in offered if port not in cls._ports)
            cls._ports.add(port)
            return port

    def _release_port(self) -> None:
        with self._guard:
            self._ports.discard(self._port)
        self._port = 0
