"""Where the servers of a live cluster run: this machine, taken by one process at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final

from inframind_gym.errors import InfraMindError
from inframind_gym.live.launch.state import PoolState
from inframind_gym.live.placement.config import PlacementLiveConfig, instance_pool
from inframind_gym.live.placement.link import Link
from inframind_gym.live.placement.phases import Instance
from inframind_gym.live.placement.server import LiveServer, VllmServer
from inframind_gym.live.vllm.loop import LoopThread
from inframind_gym.live.vllm.settings import LiveSettings, ServerAddress
from inframind_gym.simulator.placement.cards import ClusterConfig, ModelCard
from inframind_gym.simulator.server.pool import ModelConfig, PoolConfig

_SEEN_UP_S: Final = 60.0  # for a server that says it is up to be seen to be

MakeServer = Callable[[int, int], LiveServer]  # leader, model


class Machine:
    """Makes servers and the connections to them.

    Args:
        config: of the cluster.
        pool: how models are served.
        cluster: its GPUs.
        cards: (M,) of the models.
        served: (M,) how each model is served.
        make_server: makes the server of a model on the block that begins at a GPU; None: vLLM.
        seen: told by any thread that a server, by leader and model, was seen to be up or down.
    """

    def __init__(
        self,
        *,
        config: PlacementLiveConfig,
        pool: PoolConfig,
        cluster: ClusterConfig,
        cards: Sequence[ModelCard],
        served: Sequence[ModelConfig],
        make_server: MakeServer | None,
        seen: Callable[[int, int, bool], None],
    ) -> None:
        self._config = config
        self._pool, self._cluster = pool, cluster
        self._cards, self._served = cards, served
        self._make_server = make_server or self._vllm_server
        self._seen = seen
        self._settings = LiveSettings(sampling=config.sampling)
        self._loop: LoopThread | None = None  # there is one while servers may run
        self._lock = contextlib.ExitStack()

    @property
    def is_open(self) -> bool:
        """Whether servers may run."""
        return self._loop is not None

    def open(self) -> None:
        """Take the pool for ourselves.

        Raises:
            InfraMindError: another process has it.
        """
        state = PoolState(f"{self._pool.name}-placement", self._config.state)
        with contextlib.ExitStack() as lock:
            lock.enter_context(state.locked())
            self._loop = LoopThread("placement")
            self._lock = lock.pop_all()

    def close(self) -> None:
        """End all connections, and let others have the pool; the servers have to be stopped."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
        self._lock.close()

    def instance(self, g: int, m: int) -> Instance:
        """A new instance of a model on the block that begins at a GPU; nothing runs yet."""

        def changed(up: bool, asleep: bool, why: str) -> None:
            self._seen(g, m, up)

        def connect(address: ServerAddress) -> Link:
            if self._loop is None:
                raise InfraMindError("the cluster was closed")
            return Link(
                self._loop,
                address,
                self._config.live,
                self._settings,
                poll_s=self._pool.metrics_poll_s,
                on_change=changed,
                api_key=os.environ.get("VLLM_API_KEY"),
            )

        name = f"{self._cards[m].alias} on GPU {g}"
        return Instance(name, self._make_server(g, m), connect, _SEEN_UP_S)

    def _vllm_server(self, g: int, m: int) -> LiveServer:
        config = self._config
        pool = instance_pool(self._pool, self._cluster, self._served[m], self._cards[m], g)
        return VllmServer(pool, config.live, config.state, config.python)
