"""Measurements of the gateway: `python -m benchmarks.gateway overhead|rate|goodput|soak`.

The gateway, LiteLLM's proxy (`--litellm PATH` of its command, in an environment of its own) and the
servers are processes of their own. One machine for all of them: what a client measures includes
that they compete for its cores, so ways are taken in turns, and CPU time is shown beside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import numpy as np
import psutil
import typer
import yaml

from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workload import load_workload

app = typer.Typer(help=__doc__, no_args_is_help=True)
INFRAMIND: Final = (sys.executable, "-c", "from inframind_gym.cli import app; app()")
PORT: Final = 18080
QUESTION: Final = [{"role": "user", "content": "What is six times seven? " * 20}]
PoolOption = Annotated[str, typer.Option("--pool", help="Simulated; its ports must be free.")]
LiteLlm = Annotated[Path | None, typer.Option(help="LiteLLM's command `litellm`.")]


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
            started.wait(30)


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
def simulated(pool: str, speed: float) -> Iterator[None]:
    """`inframind pool up --simulate`."""
    inframind = [*INFRAMIND, "pool"]
    subprocess.run(
        [*inframind, "up", "--pool", pool, "--simulate", "--speed", str(speed)], check=True
    )
    try:
        yield
    finally:
        subprocess.run([*inframind, "down", "--pool", pool], check=True)


@contextlib.contextmanager
def dummy(folder: Path) -> Iterator[str]:
    """A server that answers at once, behind all models of a pool; yields the pool's file."""
    pool = load_pool("b200-2gpu")
    url = f"http://127.0.0.1:{PORT + 2}"
    models = tuple(m.model_copy(update={"url": url, "port": None}) for m in pool.models)
    path = folder / "pool.yaml"
    written = pool.model_copy(update={"models": models}).model_dump(mode="json", exclude_none=True)
    path.write_text(yaml.safe_dump(written))
    served = "benchmarks.gateway_dummy:app"
    command = [sys.executable, "-m", "uvicorn", served, "--port", str(PORT + 2), "--loop", "uvloop"]
    with process([*command, "--log-level", "warning", "--no-access-log"], f"{url}/health"):
        yield str(path)


def percentiles(values: list[float], scale: float = 1e3) -> str:
    """p50 and p99, in ms."""
    p50, p99 = np.percentile(values, [50, 99]) * scale
    return f"{p50:8.2f} {p99:8.2f}"


async def stream(session: aiohttp.ClientSession, url: str, model: str) -> tuple[float, float]:
    """Seconds to the first token and to the end of a stream."""
    began_s, first_s = time.perf_counter(), 0.0
    body = {"model": model, "messages": QUESTION, "stream": True, "max_tokens": 20}
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if not first_s and b'"content"' in line and b'"content":""' not in line:
                first_s = time.perf_counter() - began_s
            if line.startswith(b"data: [DONE]"):
                break
    return first_s, time.perf_counter() - began_s


@app.command()
def overhead(
    command: LiteLlm = None,
    rounds: Annotated[int, typer.Option(help="Rounds of 10, 150, 400 streams.")] = 4,
) -> None:
    """Time to the first token through the gateway against direct, at 1, 50 and 200 open streams.

    Streams of 20 tokens in a second begin evenly; all ways are taken in turns.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(dummy(folder))
        name = load_pool(pool).models[0].name
        ways = {"direct": (f"http://127.0.0.1:{PORT + 2}", name, None)}
        served = stack.enter_context(gateway(pool, "least_loaded", admission="best_effort"))
        ways["gateway, model's name"] = (f"http://127.0.0.1:{PORT}", name, served)
        ways["gateway, inframind/auto"] = (f"http://127.0.0.1:{PORT}", "inframind/auto", served)
        if command is not None:
            for k, strategy in enumerate(("least-busy", "latency-based-routing")):
                if k == 0:
                    served = stack.enter_context(litellm(command, load_pool(pool), strategy))
                    ways[f"LiteLLM, {strategy}"] = (f"http://127.0.0.1:{PORT + 1}", "auto", served)
        print("open  way                          first token, ms      whole, ms        CPU")
        print("                                      p50      p99      p50      p99   ms/request")
        for open_streams, count in ((1, 10), (50, 150), (200, 400)):
            found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
            cpu_s = dict.fromkeys(ways, 0.0)
            for _ in range(rounds):
                for way, (url, model, served_by) in ways.items():
                    before = _cpu_s(served_by)
                    found[way] += asyncio.run(_streams(url, model, open_streams, count))
                    cpu_s[way] += _cpu_s(served_by) - before
            for way, times in found.items():
                first, whole = ([t[k] for t in times] for k in (0, 1))
                per = 1e3 * cpu_s[way] / len(times)
                shown = f"{percentiles(first)} {percentiles(whole)} {per:8.2f}"
                print(f"{open_streams:4d}  {way:26s} {shown}", flush=True)


async def _streams(
    url: str, model: str, open_streams: int, count: int
) -> list[tuple[float, float]]:
    """`count` streams, `open_streams` of them open at a time."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(stream(session, url, model) for _ in range(min(open_streams, 8))))
        left, found = iter(range(count)), []

        async def one(k: int) -> None:
            await asyncio.sleep(k / open_streams)  # a stream takes a second
            for _ in left:
                found.append(await stream(session, url, model))

        await asyncio.gather(*(one(k) for k in range(open_streams)))
    return found


def _cpu_s(served_by: psutil.Process | None) -> float:
    return 0.0 if served_by is None else sum(served_by.cpu_times()[:2])


@app.command()
def rate(command: LiteLlm = None, requests: int = 3000, connections: int = 32) -> None:
    """Requests a second that are not streamed: on the clock, and by CPU time of one core."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(dummy(folder))
        name = load_pool(pool).models[0].name
        served = stack.enter_context(gateway(pool, "least_loaded", admission="best_effort"))
        ways = [("gateway, model's name", PORT, name, served)]
        ways += [("gateway, inframind/auto", PORT, "inframind/auto", served)]
        if command is not None:
            served = stack.enter_context(litellm(command, load_pool(pool), "least-busy"))
            ways.append(("LiteLLM, least-busy", PORT + 1, "auto", served))
        for way, port, model, served_by in ways:
            asyncio.run(_many(port, model, 200, connections))
            before, began_s = _cpu_s(served_by), time.perf_counter()
            count = requests if port == PORT else requests // 10
            asyncio.run(_many(port, model, count, connections))
            wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s(served_by) - before
            print(f"{way:26s} {count / wall_s:7.0f} /s by clock, {count / cpu_s:7.0f} /s of a core")


async def _many(port: int, model: str, count: int, connections: int) -> None:
    url, left = f"http://127.0.0.1:{port}/v1/chat/completions", iter(range(count))
    body = {"model": model, "messages": QUESTION, "max_tokens": 20}
    async with aiohttp.ClientSession() as session:

        async def one() -> None:
            for _ in left:
                async with session.post(url, json=body) as response:
                    response.raise_for_status()
                    await response.read()

        await asyncio.gather(*(one() for _ in range(connections)))


class Outcome:
    """What a client got for one request."""

    def __init__(self) -> None:
        self.status, self.model, self.latency_s, self.answers = 0, "", 0.0, 0
        self.budget_s = 0.0


async def play(
    ports: list[int],
    model: str,
    arrival_s: Any,
    budgets_s: Any,
    speed: float,
    *,
    streams: float = 0.0,
    limit_s: float = 120.0,
) -> list[Outcome]:
    """Send requests at virtual times; gateways take turns."""
    outcomes = [Outcome() for _ in arrival_s]
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=limit_s)
    ) as session:
        began_s = time.monotonic()

        async def one(k: int) -> None:
            await asyncio.sleep(max(0.0, began_s + arrival_s[k] / speed - time.monotonic()))
            out, sent_s, is_stream = outcomes[k], time.monotonic(), random.random() < streams
            out.budget_s = budgets_s[k]
            body = {"model": model, "messages": QUESTION, "stream": is_stream}
            headers = {"X-InfraMind-Budget-S": f"{budgets_s[k]:g}", "X-Request-Id": f"q{k}"}
            url = f"http://127.0.0.1:{ports[k % len(ports)]}/v1/chat/completions"
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(url, json=body, headers=headers) as response:
                    data = await response.read()
                    out.status = response.status
                    out.model = response.headers.get("x-inframind-model", "")
                    out.answers = data.count(b"[DONE]") if is_stream else int(b'"choices"' in data)
                    if is_stream and b'"error"' in data:
                        out.status = 599  # said in the stream
                    if not out.model and out.status == 200:
                        out.model = str(json.loads(data).get("model", ""))
            out.latency_s = (time.monotonic() - sent_s) * speed

        await asyncio.gather(*(one(k) for k in range(len(arrival_s))))
    return outcomes


def right_by_model(pool: PoolConfig, workload: str) -> dict[str, float]:
    """Chance that a model's answer is right, by alias and name, of the workload's own models."""
    profile = load_workload(workload).profile
    mix = sum(s * profile.quality.strategy_gain[k] for k, s in profile.strategy_mix.items())
    ability = np.array([profile.models[alias].ability + mix for alias in pool.aliases])
    shares = accuracy(ability, profile.quality.difficulty_sd).tolist()
    names = [model.name for model in pool.models]
    return dict(zip([*pool.aliases, *names], [*shares, *shares], strict=True))


if __name__ == "__main__":
    app()
