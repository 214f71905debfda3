"""Simulated servers on a thread of the test's own process, on ports that are free."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from inframind_gym.live.client import LoopThread
from inframind_gym.live.config import Simulation
from inframind_gym.live.processes import free_ports
from inframind_gym.live.simulated.server import Engine, ModelServer, make_servers
from inframind_gym.simulator.server.pool import PoolConfig, load_pool


def tiny_pool() -> PoolConfig:
    return load_pool("cpu-tiny")


class Servers(list[str]):
    """Addresses of simulated servers.

    Attributes:
        loop: that they run on.
        engine: their kernel.
        servers: themselves, by alias.
    """

    loop: LoopThread
    engine: Engine
    servers: dict[str, ModelServer]


@contextlib.contextmanager
def served(
    pool: PoolConfig, models: Sequence[int] | None = None, **simulation: Any
) -> Iterator[Servers]:
    """Serve a pool, or some of its models."""
    chosen = range(len(pool.models)) if models is None else models
    ports = dict(zip(chosen, free_ports(len(chosen)), strict=True))
    pool = pool.model_copy(
        update={
            "models": tuple(
                model.model_copy(update={"port": ports.get(m)})
                for m, model in enumerate(pool.models)
            )
        }
    )
    out = Servers()
    out.loop = LoopThread("simulated")

    async def start() -> None:
        out.engine, servers = make_servers(pool, Simulation(**simulation))
        out.servers = {server.config.alias: server for server in servers}
        for server in servers:
            await server.listen()
            out.append(f"http://127.0.0.1:{server.port}")

    async def stop() -> None:
        for server in out.servers.values():
            await server.die()
        out.engine.close()

    try:
        out.loop.run(start())
        yield out
        out.loop.run(stop())
    finally:
        out.loop.stop()
