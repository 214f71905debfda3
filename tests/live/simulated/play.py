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
    """Addresses of simulated servers."""

    loop: LoopThread  # that they run on


@contextlib.contextmanager
def served(
    pool: PoolConfig, models: Sequence[int] | None = None, **simulation: Any
) -> Iterator[Servers]:
    """Serve a pool, or some of its models."""
    chosen = range(len(pool.models)) if models is None else models
    ports = dict(zip(chosen, free_ports(len(chosen)), strict=True))
    all_models = enumerate(pool.models)
    at_ports = tuple(each.model_copy(update={"port": ports.get(m)}) for m, each in all_models)
    pool = pool.model_copy(update={"models": at_ports})
    out = Servers()
    out.loop = LoopThread("simulated")

    async def start() -> tuple[Engine, list[ModelServer]]:
        engine, servers = make_servers(pool, Simulation(**simulation))
        for server in servers:
            await server.listen()
            out.append(f"http://127.0.0.1:{server.port}")
        return engine, servers

    async def stop() -> None:
        for server in servers:
            await server.die()
        engine.close()

    try:
        engine, servers = out.loop.run(start())
        yield out
        out.loop.run(stop())
    finally:
        out.loop.stop()
