"""One model on one block of GPUs: its vLLM process, and the phases that it goes through.

    LOADING    start the process, connect
    WAKING     POST /wake_up, wait until the watcher sees it up
    SLEEPING   POST /sleep, after it was drained
    VANISHING  disconnect, end the process

The process of a phase that fails is ended. Phases block: they run on threads, one at a time for an
instance, and always end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from inframind_gym.errors import ConfigError, InfraMindError, unknown
from inframind_gym.live.backend import Connections
from inframind_gym.live.chat import ChatResult
from inframind_gym.live.client import ask
from inframind_gym.live.config import LiveLimits, ServerAddress, server_url
from inframind_gym.simulator.placement.config import ClusterConfig, ModelCard
from inframind_gym.simulator.placement.state import LOADING, SLEEPING, VANISHING, WAKING
from inframind_gym.simulator.server.pool import GpuConfig, ModelConfig, PoolConfig

if TYPE_CHECKING:
    from inframind_gym.live.launcher import Launch

_log = logging.getLogger(__name__)
_POLL_S: Final = 0.05
# Weights stay in the CPU's memory. After level 2 a server answers nonsense until they have been
# loaded again by other calls than /wake_up.
_SLEEP: Final = "/sleep?level=1&mode=wait"
_DEAD_S: Final = 2.0  # a server counts as gone after it was down for so long
_SEEN_UP_S: Final = 60.0  # for the watcher to see a server that has come up


class VllmServer:
    """A vLLM process of this machine, of the one model of a pool (`instance_pool`)."""

    def __init__(
        self, pool: PoolConfig, limits: LiveLimits, state: str | None, python: str | None
    ) -> None:
        from inframind_gym.live.launcher import Launcher  # needs psutil

        self.limits = limits
        self.url = ""  # before the first start
        self._launcher = Launcher(pool, state=state, python=python)

    def start(self, cancelled: Callable[[], bool]) -> ServerAddress:
        """Start the process on a free port; return its address once it answers.

        `cancelled` is called now and then; once it is true, what was started is ended. An
        InfraMindError: it did not come up; nothing is left of it.
        """
        from inframind_gym.live.launcher import last_lines
        from inframind_gym.live.processes import free_ports

        launcher = self._launcher
        (model,) = launcher.pool.models
        (port,) = free_ports(1)
        model = model.model_copy(update={"port": port})
        launcher.pool = launcher.pool.model_copy(update={"models": (model,)})
        self.url = server_url(model)

        def watch(launches: Sequence[Launch]) -> None:
            if cancelled():
                raise InfraMindError("its start was given up")

        (launch,) = launcher.up(timeout_s=self.limits.start_s, watch=watch)
        if launch.phase != "up":
            last = "".join(last_lines(launch.log, 1)) if launch.log else ""
            raise InfraMindError(f"{launch.note}: {last} (its log: {launch.log})")
        return ServerAddress(alias=model.alias, url=self.url, model=model.name)

    def stop(self) -> None:
        """End all its processes, if there are any."""
        self._launcher.down(self.limits.stop_s)


class Instance:
    """One model on one block of GPUs; `connect` makes the connections to a server that is up."""

    def __init__(
        self, name: str, server: VllmServer, connect: Callable[[ServerAddress], Connections]
    ) -> None:
        self.name, self.server = name, server
        self.link: Connections | None = None  # None: there is no server
        self.phase: threading.Thread | None = None  # the last one
        self.busy = False  # a phase is under way
        self.closed_until_s = 0.0  # it failed to come up, and is not tried again before
        self._connect = connect
        self._one_ends = threading.Lock()

    def run(self, phase: int, cancelled: Callable[[], bool]) -> tuple[float, str]:
        """Go through a phase; return how long it took, in s, and why it failed ("": it did not)."""
        began_s, why = time.monotonic(), ""
        url, limits = self.server.url, self.server.limits
        try:
            if phase == LOADING:
                self.link = self._connect(self.server.start(cancelled))
            elif phase == WAKING:
                ask(f"{url}/wake_up", method="POST", limit_s=limits.wake_s)
            elif phase == SLEEPING:
                ask(url + _SLEEP, method="POST", limit_s=limits.sleep_s)
            elif phase == VANISHING:
                self._end()
            if phase in (LOADING, WAKING) and self.link is not None:
                self.link.watcher.suspect(0)
                self.link.watcher.wait_up(_SEEN_UP_S)
        except Exception as error:  # a bug must not leave a phase without an end
            if not isinstance(error, InfraMindError):
                _log.error("%s", self.name, exc_info=error)
            why = str(error) or type(error).__name__
        took_s = time.monotonic() - began_s
        if why:
            try:
                self._end()
            except InfraMindError as error:
                why = f"{why}; {error}"
        return took_s, why

    def send(self, on_result: Callable[[ChatResult], object], *request: Any, **more: Any) -> None:
        """Send a call, as `Connections.chat`, to the server; calls `on_result` on the loop."""
        assert self.link is not None
        link = self.link

        async def chat() -> None:
            on_result(await link.chat(0, *request, **more))

        asyncio.run_coroutine_threadsafe(chat(), link.loop.loop)

    def give_up(self, why: str) -> None:
        """End what is in flight to the server, if there is one: vLLM drops it."""
        if self.link is not None:
            self.link.loop.call(self.link.give_up, 0, why)

    def is_gone(self, *, serves: bool) -> bool:
        """Return whether a server seen down stays away; one that need not serve may sleep."""
        over_s = time.monotonic() + _DEAD_S
        while (link := self.link) is not None and time.monotonic() < over_s:
            (server,) = link.watcher.status()
            if server.up or (server.asleep and not serves):
                return False
            link.watcher.suspect(0)
            time.sleep(_POLL_S)
        return True

    def _end(self) -> None:
        with self._one_ends:  # a phase that fails while everything is stopped ends it, too
            link, self.link = self.link, None
            if link is not None:
                link.close()
            self.server.stop()


def served_models(
    pool: PoolConfig, cluster: ClusterConfig, cards: Sequence[ModelCard]
) -> tuple[ModelConfig, ...]:
    """Return the pool's entry of each model of a cluster; a ConfigError where they disagree."""
    devices = [gpu for gpu in pool.gpus if not gpu.is_cpu]
    if devices and len(devices) < cluster.num_gpus:
        raise ConfigError(
            f"pool {pool.name!r}: gpus: has {len(devices)}, cluster {cluster.name!r} has "
            f"{cluster.num_gpus}. Name as many in the pool, or lower `count` in the cluster."
        )
    served = []
    for card in cards:
        if card.alias not in pool.aliases:
            raise ConfigError(
                f"cluster {cluster.name!r}: models: {unknown('model', card.alias, pool.aliases)} "
                f"Those are the models of pool {pool.name!r}: add it there, or remove it here."
            )
        model = pool.models[pool.index(card.alias)]
        wrong = ""
        if model.url is not None:
            wrong = "url: servers of a placement are started and stopped. Give it a port."
        elif any(group.alpha > 0.0 for group in cluster.gpus) and not model.sleep_mode:
            wrong = (
                f"sleep_mode is off, but cluster {cluster.name!r} lets models sleep. Set "
                "sleep_mode: true, or alpha: 0 in the cluster."
            )
        elif card.slots != model.server.slots:
            wrong = (
                f"server.max_num_seqs is {model.server.slots} (of all engines), the card of "
                f"cluster {cluster.name!r} has slots: {card.slots}. Make them equal."
            )
        if wrong:
            raise ConfigError(f"pool {pool.name!r}: models: {card.alias}: {wrong}")
        served.append(model)
    return tuple(served)


def instance_pool(
    pool: PoolConfig, cluster: ClusterConfig, model: ModelConfig, card: ModelCard, leader: int
) -> PoolConfig:
    """Return the pool of one instance: a model on the block of GPUs that begins at `leader`."""
    if all(gpu.is_cpu for gpu in pool.gpus):  # slots that exist in the books alone
        gpus = tuple(GpuConfig(name=f"slot{g}", device="CPU") for g in range(cluster.num_gpus))
    else:
        gpus = tuple(gpu for gpu in pool.gpus if not gpu.is_cpu)
    block = slice(leader, leader + card.tp_min)
    names = tuple(gpu.name for gpu in gpus[block])
    vram = [group.vram_total_MB for group in cluster.gpus for _ in range(group.count)]
    served = model.model_copy(
        update={
            "gpu": names[0],
            "gpus": names if len(names) > 1 else (),
            "tensor_parallel": card.tp_min,
            "gpu_memory_frac": card.active_mem_MB / min(vram[block]),
            "port": None,
        }
    )
    name = f"{pool.name}+{card.alias}+{leader}"  # of no pool file: they have no plus signs
    return pool.model_copy(update={"name": name, "gpus": gpus, "models": (served,)})
