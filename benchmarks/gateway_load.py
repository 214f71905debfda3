"""Loads on the gateway: `python -m benchmarks.gateway_load overhead|soak`.

Both start simulated servers and `inframind serve` as processes of their own. All run on one
machine: what a client measures includes their competition for its cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen, run
from typing import Annotated, Final

import aiohttp
import numpy as np
import psutil
import typer
import yaml

from inframind_gym.live.client import DownError, ask, fetch, open_session
from inframind_gym.live.processes import free_ports
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import load_workload

INFRAMIND: Final = (sys.executable, "-c", "from inframind_gym.cli import app; app()")
POOL: Final = "b200-2gpu"
WORKLOAD: Final = "mixed"
QUESTION: Final = [{"role": "user", "content": "What is six times seven? " * 20}]
PATIENCE_S: Final = 1200.0  # of a client, in the servers' seconds: longer than any budget
FAULTS: Final = ("kill", "hang", "sleep", "garbage", "error")
BROKEN_S: Final = 6.0  # length of a fault

app = typer.Typer(help=__doc__, no_args_is_help=True)


async def send(
    url: str, per_s: float, count: int, faults: Awaitable[None], speed: float = 1.0
) -> Counter[str]:
    """Send requests, `per_s` of them in a servers' second and every other as a stream.

    `speed` is the servers' seconds in a second; `faults` run until the last request has ended.

    Returns:
        The number of requests by how they ended: in time, late, twice, lost (without an answer or
        an error), failed.
    """
    rng, found = np.random.default_rng(0), Counter[str]()
    due_s = rng.exponential(1.0 / per_s, count).cumsum().tolist()
    budget_s = rng.choice(load_workload(WORKLOAD).budget_tiers_s, count).tolist()
    breaking, began_s = asyncio.ensure_future(faults), time.monotonic()
    async with open_session(PATIENCE_S / speed) as session:

        async def one(k: int) -> str:
            due = began_s + due_s[k] / speed
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            body = {"model": "inframind/auto", "messages": QUESTION, "stream": k % 2 == 1}
            body["inframind"] = {"budget_s": budget_s[k]}
            try:
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    data = await response.read()
            except (aiohttp.ClientError, TimeoutError):
                return "lost"
            if response.status != 200 or b'data: {"error"' in data:
                return "failed"
            answers = data.count(b"[DONE]") if k % 2 else data.count(b'"choices"')
            if answers != 1:
                return "twice" if answers else "lost"
            in_time = (time.monotonic() - due) * speed <= budget_s[k]
            return "in time" if in_time else "late"

        found.update(await asyncio.gather(*map(one, range(count))))
    breaking.cancel()
    return found


async def break_servers(servers: Sequence[str], every_s: float) -> None:
    """Break one server after the other, for BROKEN_S each; none where `every_s` is 0."""
    async with open_session(PATIENCE_S) as session:
        for k in itertools.count() if every_s else ():
            await asyncio.sleep(every_s - BROKEN_S)
            server, kind = servers[k % len(servers)], FAULTS[(k + k // len(FAULTS)) % len(FAULTS)]
            asleep = kind == "sleep"
            path = "/sleep?level=1&mode=wait" if asleep else f"/fault?kind={kind}&for_s={BROKEN_S}"
            with contextlib.suppress(DownError):
                await fetch(session, server, path, method="POST")
            await asyncio.sleep(BROKEN_S)
            with contextlib.suppress(DownError):
                if asleep:
                    await fetch(session, server, "/wake_up", method="POST")


async def first_tokens(url: str, model: str, streams: int, count: int) -> list[float]:
    """Return seconds to the first token of `count` streams, `streams` of them at a time."""
    body = {"model": model, "messages": QUESTION, "stream": True, "max_tokens": 20}
    left, found = iter(range(count)), list[float]()
    async with open_session(None) as session:

        async def one(k: int) -> None:
            await asyncio.sleep(k / streams)
            for _ in left:
                began_s, first_s = time.perf_counter(), 0.0
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    response.raise_for_status()
                    async for line in response.content:
                        if not first_s and b'"content"' in line and b'"content":""' not in line:
                            first_s = time.perf_counter() - began_s
                found.append(first_s)

        await asyncio.gather(*map(one, range(streams)))
    return found


@contextlib.contextmanager
def serving(policy: str, speed: float = 1.0) -> Iterator[tuple[list[str], str, psutil.Process]]:
    """Simulated servers and a gateway: addresses of the servers, the gateway's and its process."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    settings = {"port": port, "pool": POOL, "policy": policy, "workload": WORKLOAD, "speed": speed}
    settings |= {"admission": "best_effort", "limits": {"answer_s": PATIENCE_S}}
    with tempfile.TemporaryDirectory() as folder:
        path, on = Path(folder) / "gateway.yaml", ["--pool", POOL, "--state", folder]
        path.write_text(yaml.safe_dump(settings))
        up = ["up", *on, "--simulate", "--speed", str(speed), "--workload", WORKLOAD]
        run([*INFRAMIND, "pool", *up], check=True, stdout=DEVNULL)
        try:
            started = Popen([*INFRAMIND, "serve", "--config", str(path)], stdout=DEVNULL)
            try:
                while started.poll() is None:
                    with contextlib.suppress(DownError):
                        ask(f"{url}/ready")
                        break
                    time.sleep(0.1)
                else:
                    raise SystemExit("inframind serve has ended; its error is above")
                servers = [f"http://127.0.0.1:{model.port}" for model in load_pool(POOL).models]
                yield servers, url, psutil.Process(started.pid)
            finally:
                started.terminate()
                started.wait(90)
        finally:
            run([*INFRAMIND, "pool", "down", *on], check=True, stdout=DEVNULL)


@app.command()
def soak(
    per_min: Annotated[float, typer.Option(help="Of the servers' minutes.")] = 400.0,
    minutes: Annotated[float, typer.Option(help="Of the servers.")] = 30.0,
    speed: Annotated[float, typer.Option(help="Servers' seconds a second.")] = 10.0,
    policy: str = "bid_price",
    faults_every_s: Annotated[
        float, typer.Option(help="A server in turn breaks for 6 s, on the clock; 0: none does.")
    ] = 0.0,
) -> None:
    """Count requests that are in time, late, failed, lost (no answer, no error), answered twice.

    A broken server is killed, hangs, sleeps, answers nonsense or 503.
    """
    with serving(policy, speed) as (servers, url, _):
        faults = break_servers(servers, faults_every_s)
        found = asyncio.run(send(url, per_min / 60, int(per_min * minutes), faults, speed))
    shown = (f"{name} {found[name]}" for name in ("in time", "late", "failed", "lost", "twice"))
    typer.echo(f"{policy}: of {found.total()} requests {', '.join(shown)}")


@app.command()
def overhead(
    count: Annotated[int, typer.Option(help="Streams for each of 1, 50, 200.")] = 300,
) -> None:
    """Time to the first token directly and through the gateway, at 1, 50 and 200 open streams."""
    with serving("least_loaded") as (servers, url, process):
        fastest = load_pool(POOL).models[-1].name
        ways = {
            "direct": (servers[-1], fastest),
            "gateway, model's name": (url, fastest),
            "gateway, inframind/auto": (url, "inframind/auto"),
        }
        typer.echo("open  way                      first token, ms: p50      p99    CPU ms/request")
        for streams in (1, 50, 200):
            number = min(count, 20 * streams)
            for way, where in ways.items():
                before_s = sum(process.cpu_times()[:2])
                first_s = asyncio.run(first_tokens(*where, streams, number))
                cpu_ms = 1e3 * (sum(process.cpu_times()[:2]) - before_s) / number
                p50, p99 = 1e3 * np.percentile(first_s, [50, 99])
                typer.echo(f"{streams:4d}  {way:32s} {p50:8.1f} {p99:8.1f} {cpu_ms:17.1f}")


if __name__ == "__main__":
    app()
