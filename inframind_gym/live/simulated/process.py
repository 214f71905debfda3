"""The process of a simulated pool: `python -m inframind_gym.live.simulated.process FOLDER`.

The launcher starts it, with the pool in the environment: $INFRAMIND_SIMULATED is JSON. It listens
on the port of every model, and writes each model's log into the folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from inframind_gym.configs import Positive, StrictModel
from inframind_gym.live.server_command import ServerCommand
from inframind_gym.live.simulated.answers import AnswerLengths
from inframind_gym.live.simulated.engine import Engine
from inframind_gym.live.simulated.server import ModelServer
from inframind_gym.simulator.server.open_loop import OpenLoop
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workload import load_workload

ENV: Final = "INFRAMIND_SIMULATED"


class Simulation(StrictModel):
    """Settings of servers that are simulated in place of vLLM's."""

    speed: Positive = 1.0  # virtual seconds a second
    workload: str = "mixed"  # from which the lengths of answers are drawn
    seed: int = 0


class _Process(StrictModel):
    pool: PoolConfig
    host: str
    simulation: Simulation


def simulation_command(
    pool: PoolConfig, simulation: Simulation, folder: Path, host: str
) -> ServerCommand:
    """Return the command of the process that simulates a pool.

    Args:
        pool: its models with a port are served.
        simulation: how.
        folder: of the logs.
        host: address to listen on.

    Raises:
        ConfigError: there is no such workload.
    """
    load_workload(simulation.workload)
    if Path(simulation.workload).is_file():  # the process runs in another folder
        workload = str(Path(simulation.workload).absolute())
        simulation = simulation.model_copy(update={"workload": workload})
    content = _Process(pool=pool, host=host, simulation=simulation)
    arguments = (sys.executable, "-m", __name__, str(folder))
    env = {ENV: content.model_dump_json(), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    return ServerCommand(arguments, env)


def make_servers(pool: PoolConfig, simulation: Simulation) -> tuple[Engine, list[ModelServer]]:
    """Return the servers of a pool, which do not listen yet; to be called on their loop."""
    OpenLoop(cards(pool), 2).use_all()  # clients do not wait for compilation
    lengths = AnswerLengths(load_workload(simulation.workload), pool.aliases)
    engine, peers = Engine(cards(pool), simulation.speed), dict[str, ModelServer]()
    for index, model in enumerate(pool.models):
        if model.port is not None:
            ModelServer(
                engine,
                index,
                model,
                lengths,
                seed=simulation.seed,
                peers=peers,
                password=os.environ.get("VLLM_API_KEY"),
            )
    return engine, list(peers.values())


async def run(process: _Process, folder: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    engine, servers = make_servers(process.pool, process.simulation)
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    for server in servers:
        _log_to(server.log, folder / f"{server.config.alias}.log")
        await server.start(process.host)
        server.log.info(
            "simulated server of %s, speed %g, on %s port %d: no model runs here",
            server.config.name,
            process.simulation.speed,
            process.host,
            server.port,
        )
    await over.wait()
    for server in servers:
        await server.kill()
    engine.close()


def _log_to(log: logging.Logger, file: Path) -> None:
    """Write what a server says into a file, in vLLM's form."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(
        logging.Formatter("%(levelname)s %(asctime)s %(message)s", "%m-%d %H:%M:%S")
    )
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


if __name__ == "__main__":
    asyncio.run(run(_Process.model_validate_json(os.environ[ENV]), Path(sys.argv[1])))
