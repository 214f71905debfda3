"""Processes that the measurements of the gateway run on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import yaml

from inframind_gym.simulator.server.pool import PoolConfig, load_pool

INFRAMIND: Final = (sys.executable, "-c", "from inframind_gym.cli import app; app()")
PORT: Final = int(os.environ.get("INFRAMIND_BENCH_PORT", "18080"))
QUESTION: Final = [{"role": "user", "content": "What is six times seven? " * 20}]


@contextlib.contextmanager
def process(command: list[str], ready: str) -> Iterator[psutil.Process]:
    """A process until the end of the block; waits until `ready` answers 200."""
    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            if not asyncio.run(answers(ready, started)):
                output.seek(0)
                raise SystemExit(output.read().decode("utf-8", "replace")[-2000:])
            yield psutil.Process(started.pid)
        finally:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(30)
            started.kill()


async def answers(url: str, started: subprocess.Popen[bytes]) -> bool:
    """Wait until an address answers 200; False where the process has ended."""
    async with aiohttp.ClientSession() as session:
        for _ in range(1200):
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return True
            if started.poll() is not None:
                return False
            await asyncio.sleep(0.1)
    return False


@contextlib.contextmanager
def gateway(pool: str, policy: str, port: int = PORT, **settings: Any) -> Iterator[psutil.Process]:
    """`inframind serve` on a port."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(yaml.safe_dump({"pool": pool, "policy": policy, "port": port} | settings))
        command = [*INFRAMIND, "serve", "--config", str(path)]
        with process(command, f"http://127.0.0.1:{port}/ready") as started:
            yield started


@contextlib.contextmanager
def litellm(command: Path, pool: PoolConfig, strategy: str) -> Iterator[psutil.Process]:
    """LiteLLM's proxy: the servers of a pool as deployments of a model "auto"."""
    with tempfile.TemporaryDirectory() as folder:
        models = [
            {
                "model_name": "auto",
                "litellm_params": {
                    "model": f"openai/{model.name}",
                    "api_base": f"{model.url or f'http://127.0.0.1:{model.port}'}/v1",
                    "api_key": "none",
                },
            }
            for model in pool.models
        ]
        path = Path(folder) / "litellm.yaml"
        settings = {"routing_strategy": strategy, "num_retries": 2}
        local = {"dangerously_permit_weak_or_unset_master_key": True}
        content = {"model_list": models, "router_settings": settings, "general_settings": local}
        path.write_text(yaml.safe_dump(content))
        arguments = [str(command), "--config", str(path), "--port", str(PORT + 1)]
        with process(arguments, f"http://127.0.0.1:{PORT + 1}/health/liveliness") as started:
            yield started


@contextlib.contextmanager
def simulated(pool: str, speed: float, workload: str) -> Iterator[str]:
    """`inframind pool up --simulate`, on ports of our own; yields the pool's file."""
    inframind = [*INFRAMIND, "pool"]
    with tempfile.TemporaryDirectory() as folder:
        found = load_pool(pool)
        models = [
            model.model_copy(update={"port": PORT + 10 + m}) for m, model in enumerate(found.models)
        ]
        moved = found.model_copy(update={"name": f"{found.name}-{PORT}", "models": tuple(models)})
        path = Path(folder) / "pool.yaml"
        path.write_text(yaml.safe_dump(moved.model_dump(mode="json", exclude_none=True)))
        on = ["--pool", str(path), "--state", folder]
        up = ["up", *on, "--simulate", "--speed", str(speed), "--workload", workload]
        subprocess.run([*inframind, *up], check=True, stdout=subprocess.DEVNULL)
        try:
            yield str(path)
        finally:
            subprocess.run([*inframind, "down", *on], check=True, stdout=subprocess.DEVNULL)


def with_cards_of(file: str, believed: str) -> str:
    """Write a pool's file again beside it, with the server cards of another; returns its path."""
    pool, other = load_pool(file), load_pool(believed)
    models = [
        model.model_copy(update={"server": other.models[other.index(model.alias)].server})
        for model in pool.models
    ]
    seen = pool.model_copy(update={"models": tuple(models), "gpus": other.gpus})
    path = Path(file).with_name("believed.yaml")
    path.write_text(yaml.safe_dump(seen.model_dump(mode="json", exclude_none=True)))
    return str(path)


@contextlib.contextmanager
def dummy(folder: Path) -> Iterator[str]:
    """A server that answers at once, behind all models of a pool; yields the pool's file."""
    pool = load_pool("b200-2gpu")
    url = f"http://127.0.0.1:{PORT + 2}"
    models = tuple(m.model_copy(update={"url": url, "port": None}) for m in pool.models)
    path = folder / "pool.yaml"
    written = pool.model_copy(update={"models": models}).model_dump(mode="json", exclude_none=True)
    path.write_text(yaml.safe_dump(written))
    served = "benchmarks.gateway.dummy:app"
    command = [sys.executable, "-m", "uvicorn", served, "--port", str(PORT + 2), "--loop", "uvloop"]
    with process([*command, "--log-level", "warning", "--no-access-log"], f"{url}/health"):
        yield str(path)


def cpu_s(served_by: psutil.Process | None) -> float:
    """CPU time of a process so far, in s."""
    return 0.0 if served_by is None else float(sum(served_by.cpu_times()[:2]))
