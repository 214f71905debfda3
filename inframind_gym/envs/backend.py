"""A single closed loop on a backend of one's choice, with the face of a `RoutingSimulation`.

    simulation = BackendSimulation(config, open_backend, one_query=False)

Environments, policies and records are those of the compiled loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.core import Float32s, Ints
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_kernel import show
from inframind_gym.envs.routing_simulation import Load, RoutingSimulation
from inframind_gym.simulator.jit import Bound
from inframind_gym.simulator.workflow.backend import Backend
from inframind_gym.simulator.workflow.backend_loop import BackendLoop
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, STEP

# Opens the backend of a stream: what is run, and the key of the stream's random numbers.
OpenBackend = Callable[["BackendSimulation", int], Backend]


class BackendSimulation(RoutingSimulation):
    """One closed loop; every stream has a backend of its own.

    Args:
        config: what to run.
        open_backend: called at the start of a stream, just before its clock begins to run.
        one_query: as of `RoutingSimulation`.
        retries: how often a call that failed is sent again, where the config has no
            `call_timeout_s` and no `faults`, with which `call_attempts` says so.
        patience_s: how long to wait for a model while all are down.

    Raises:
        ConfigError: as of `RoutingSimulation`.
    """

    def __init__(
        self,
        config: EnvConfig,
        open_backend: OpenBackend,
        *,
        one_query: bool,
        retries: int = 0,
        patience_s: float = 600.0,
    ) -> None:
        self._open_backend = open_backend
        aborts = config.call_timeout_s is not None or config.faults
        self._retries = config.call_attempts - 1 if aborts else retries
        self._patience_s = patience_s
        self._loop: BackendLoop | None = None
        self._show = Bound(show)
        super().__init__(config, 1, one_query=one_query)

    def close(self) -> None:
        """Give up the stream and close its backend."""
        if self._loop is not None:
            self._loop.backend.close()
            self._loop = None

    def loads(self, e: int) -> tuple[Load, ...]:
        """Load of the servers at the last poll."""
        models = self.pool.models
        if self._loop is None:
            return (Load(0, 0, 0.0),) * len(models)
        read = self._loop.backend.telemetry()
        depths = [int(depth_req) for depth_req in read.depth_req]
        running = [min(n, model.server.slots) for n, model in zip(depths, models, strict=True)]
        return tuple(
            Load(busy, depth - busy, float(kv_frac))
            for busy, depth, kv_frac in zip(running, depths, read.kv_frac, strict=True)
        )

    def seen(self, e: int) -> Float32s:
        """The metrics as they were polled last, (3, M)."""
        nothing = np.zeros((3, len(self.pool.models)), np.float32)
        return nothing if self._loop is None else self._loop.seen[0]

    def _open_servers(self) -> int:
        """The servers are the backend's; while all are down, every query can come to wait."""
        return self.num_queries

    def _set_faults(self, e: int, key: int, last_s: float) -> None:
        """Faults are the backend's."""

    def drive(
        self, mode: int, rows: Ints, starts: NDArray[Any], actions: Ints, observations: Float32s
    ) -> None:
        """Run to the next decision; see `RoutingSimulation.drive`."""
        if mode == BEGIN:
            BackendSimulation.close(self)  # the stream before; what the streams share stays
            self._loop = BackendLoop(
                self.state,
                starts,
                self._open_backend(self, int(starts[0]["key"])),
                retries=self._retries,
                patience_s=self._patience_s,
            )
        if self._loop is None:
            raise RuntimeError("no stream was started")
        action = actions[0] if mode == STEP else np.zeros(1, np.int64)
        self.status[0] = status = self._loop.enter(mode, action)
        charged = mode == STEP and status == DECISION and self.one_query
        self.show(self._loop.read_metrics(), observations, charged=charged)

    def show(self, seen: Float32s, observations: Float32s, *, charged: bool = False) -> None:
        """Write what a step ends with: observation, decision, reward and cost.

        Args:
            seen: (1, 3, M) normalised metrics.
            observations: (1, d), written.
            charged: the tagged query still runs and pays for its latency so far.
        """
        written = observations[0], self.decisions, self.rewards, self.costs
        self._show(self.state, seen, charged, *written)
