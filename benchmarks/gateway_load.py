"""Loads on the gateway: `python -m benchmarks.gateway_load overhead|http`.

Both start simulated servers and `inframind serve` as processes of their own. One machine for all of
them: what a client measures includes that they compete for its cores.
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
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, Popen, run
from typing import Annotated, Any, Final

import aiohttp
import numpy as np
import psutil
import typer
import yaml

from inframind_gym.live.client import DownError, ask, fetch, open_session
from inframind_gym.live.processes import free_ports
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workload import TaskProfile, load_profiles, load_workload

INFRAMIND: Final = (sys.executable, "-c", "from inframind_gym.cli import app; app()")
QUESTION: Final = [{"role": "user", "content": "What is six times seven? " * 20}]
PATIENCE_S: Final = 1200.0  # of a client, in the servers' seconds: longer than any budget
FAULTS: Final = ("kill", "hang", "sleep", "garbage", "error")
BROKEN_S: Final = 6.0  # length of a fault

app = typer.Typer(help=__doc__, no_args_is_help=True)


@dataclass
class Request:
    """A request and its outcome, as its client saw it; times in the servers' seconds."""

    due_s: float
    budget_s: float
    stream: bool
    profile: TaskProfile  # whose question it stands for
    status: int = 0  # of HTTP; 599: an error in a stream, 0: no answer
    answers: int = 0
    latency_s: float = 0.0
    model: str = ""
    strategy: str = ""

    @property
    def in_time(self) -> bool:
        """True for an answer within the budget."""
        return self.status == 200 and self.latency_s <= self.budget_s

    @property
    def goodput(self) -> float:
        """Chance of a right answer in time, by the item-response model of a single call."""
        if not self.in_time:
            return 0.0
        quality, slope = self.profile.quality, self.profile.quality.discrimination
        ability = self.profile.models[self.model].ability
        ability += quality.strategy_gain.get(self.strategy, 0.0)
        return float(accuracy(np.array([slope * ability]), slope * quality.difficulty_sd)[0])


def draw(workload: str, trace: Path | None, per_min: float, count: int) -> list[Request]:
    """Draw requests of a workload at the times of a trace, or of a Poisson process; half stream."""
    rng, found = np.random.default_rng(0), load_workload(workload)
    kind = "poisson" if trace is None else str(trace)
    due_s = make_arrivals(kind).sample(per_min, count, rng).tolist()
    budget_s = rng.choice(found.budget_tiers_s, count).tolist()
    parts = list(load_profiles(found).values())
    chosen = rng.choice(len(parts), count, p=[part.weight for part in parts]).tolist()
    streams = (rng.random(count) < 0.5).tolist()
    profiles = [parts[number].profile for number in chosen]
    return list(map(Request, due_s, budget_s, streams, profiles))


async def send(url: str, requests: list[Request], speed: float, faults: Awaitable[None]) -> None:
    """Send requests to a gateway when they are due, and note their outcomes.

    `speed` is the servers' seconds in a second; `faults` run until the last request has ended.
    """
    breaking, began_s = asyncio.ensure_future(faults), time.monotonic()
    async with open_session(PATIENCE_S / speed) as session:

        async def one(request: Request) -> None:
            due_s = began_s + request.due_s / speed
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            body = {"model": "inframind/auto", "messages": QUESTION, "stream": request.stream}
            body["inframind"] = {"budget_s": request.budget_s, "domain": request.profile.domain}
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    data = await response.read()
                request.status = response.status
                request.model = response.headers.get("x-inframind-model", "")
                request.strategy = response.headers.get("x-inframind-strategy", "")
                request.answers = data.count(b"[DONE]") if request.stream else b'"choices"' in data
                if request.stream and b'data: {"error"' in data:
                    request.status = 599
            request.latency_s = (time.monotonic() - due_s) * speed

        await asyncio.gather(*map(one, requests))
    breaking.cancel()


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
    left, found = iter(range(count)), []
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
def simulated(pool: str, speed: float, workload: str) -> Iterator[list[str]]:
    """`inframind pool up --simulate`, until the end of the block: addresses of the servers."""
    with tempfile.TemporaryDirectory() as folder:
        on = ["--pool", pool, "--state", folder]
        up = ["up", *on, "--simulate", "--speed", str(speed), "--workload", workload]
        run([*INFRAMIND, "pool", *up], check=True, stdout=DEVNULL)
        try:
            yield [f"http://127.0.0.1:{model.port}" for model in load_pool(pool).models]
        finally:
            run([*INFRAMIND, "pool", "down", *on], check=True, stdout=DEVNULL)


@contextlib.contextmanager
def gateway(**settings: Any) -> Iterator[tuple[str, psutil.Process]]:
    """`inframind serve`, ready, until the end of the block: its address and its process."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(yaml.safe_dump({"port": port, "admission": "best_effort"} | settings))
        started = Popen([*INFRAMIND, "serve", "--config", str(path)], stdout=DEVNULL)
        try:
            while started.poll() is None:
                with contextlib.suppress(DownError):
                    ask(f"{url}/ready")
                    break
                time.sleep(0.1)
            else:
                raise SystemExit("inframind serve has ended; its error is above")
            yield url, psutil.Process(started.pid)
        finally:
            started.terminate()
            started.wait(90)


@app.command()
def http(
    trace: Annotated[Path | None, typer.Option(help="CSV of arrivals; else Poisson.")] = None,
    pool: Annotated[str, typer.Option(help="A pool's name; it is simulated.")] = "b200-2gpu",
    workload: str = "mixed",
    per_min: Annotated[float, typer.Option(help="Of the servers' minutes.")] = 400.0,
    minutes: Annotated[float, typer.Option(help="Of the servers.")] = 30.0,
    speed: Annotated[float, typer.Option(help="Servers' seconds a second.")] = 10.0,
    policies: str = "round_robin,least_loaded,lowest_expected_latency,bid_price",
    faults_every_s: Annotated[
        float, typer.Option(help="A server in turn breaks for 6 s, on the clock; 0: none does.")
    ] = 0.0,
) -> None:
    """Answers in time, right answers in time, and requests that were lost or answered twice.

    A broken server is killed, hangs, sleeps, answers nonsense or 503. ± is 95 %, of ten blocks of
    time. A request is lost if it ends without an answer or an error.
    """
    settings = {"speed": speed, "workload": workload, "limits": {"answer_s": PATIENCE_S}}
    for policy in policies.split(","):
        requests = draw(workload, trace, per_min, int(per_min * minutes))
        with (
            simulated(pool, speed, workload) as servers,
            gateway(pool=pool, policy=policy, **settings) as (url, _),
        ):
            asyncio.run(send(url, requests, speed, break_servers(servers, faults_every_s)))
        shares = []
        for values in ([r.in_time for r in requests], [r.goodput for r in requests]):
            blocks = [100.0 * np.mean(block) for block in np.array_split(values, 10)]
            half = 1.96 * np.std(blocks, ddof=1) / 10**0.5
            shares.append(f"{np.mean(blocks):.1f} ±{half:.1f} %")
        lost = sum(r.status == 0 or (r.status == 200 and not r.answers) for r in requests)
        twice = sum(r.answers > 1 for r in requests)
        failed = dict(Counter(r.status for r in requests if r.status != 200))
        typer.echo(
            f"{policy}: in time {shares[0]}, goodput {shares[1]}; of {len(requests)} requests lost "
            f"{lost}, answered twice {twice}, failed {failed or 0}"
        )


@app.command()
def overhead(
    count: Annotated[int, typer.Option(help="Streams for each of 1, 50, 200.")] = 300,
) -> None:
    """Time to the first token directly and through the gateway, at 1, 50 and 200 open streams."""
    with (
        simulated("b200-2gpu", 1.0, "mixed") as servers,
        gateway(pool="b200-2gpu", policy="least_loaded", workload="mixed") as (url, process),
    ):
        fastest = load_pool("b200-2gpu").models[-1].name
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
