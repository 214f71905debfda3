"""Loads on the gateway: `python -m benchmarks.gateway_load overhead|http|virtual`.

`overhead` and `http` start simulated servers and `inframind serve` as processes of their own. One
machine for all of them: what a client measures includes that they compete for its cores. `virtual`
puts the gateway's decisions in front of the same kernel, without HTTP, on any machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import aiohttp
import numpy as np
import psutil
import typer
import yaml

from inframind_gym.live.client import DownError, ask, fetch, open_session
from inframind_gym.live.gateway.choose import SingleCallPolicy, World
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.simulated.answers import AnswerLengths
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.server.open_loop import OpenLoop
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.topology import STRATEGIES
from inframind_gym.simulator.workload import load_profiles, load_workload

INFRAMIND: Final = (sys.executable, "-c", "from inframind_gym.cli import app; app()")
PORT: Final = int(os.environ.get("INFRAMIND_BENCH_PORT", "18080"))
QUESTION: Final = [{"role": "user", "content": "What is six times seven? " * 20}]
PROMPT_TOKENS: Final = 145  # of QUESTION with an instruction
PATIENCE_S: Final = 1200.0  # of a client, in virtual time: longer than any budget
FAULTS: Final = ("kill", "hang", "sleep", "garbage", "error")
HEAD: Final = "way                            in time, %    goodput, %   mean s    p95 s  failed"
PoolOption = Annotated[str, typer.Option("--pool", help="A pool's name; it is simulated.")]
TraceOption = Annotated[Path | None, typer.Option(help="CSV of arrivals; else Poisson.")]

app = typer.Typer(help=__doc__, no_args_is_help=True)


class Outcome:
    """Outcome of one request, as its client saw it."""

    def __init__(self, budget_s: float, domain: str) -> None:
        self.budget_s, self.domain = budget_s, domain
        self.status, self.model, self.latency_s, self.answers = 0, "", 0.0, 0
        self.strategy = "-"  # asked of the model

    @property
    def in_time(self) -> bool:
        """True for an answer within the budget."""
        return self.status == 200 and self.latency_s <= self.budget_s


class Load:
    """Requests of a workload at the times of a trace.

    Args:
        workload: Name or file; its budgets and domains are drawn.
        trace: CSV of arrivals; None: Poisson.
        per_min: Rate, in virtual time.
        count: Number of requests.
        speed: Virtual seconds a second.
        seed: Seed of all draws.
    """

    def __init__(
        self,
        workload: str,
        trace: Path | None,
        per_min: float,
        count: int,
        speed: float,
        *,
        seed: int = 0,
    ) -> None:
        rng, found = np.random.default_rng(seed), load_workload(workload)
        kind = "poisson" if trace is None else str(trace)
        self.arrival_s = make_arrivals(kind).sample(per_min, count, rng)
        self.budget_s = rng.choice(found.budget_tiers_s, count)
        parts = list(load_profiles(found).values())
        weights = [part.weight for part in parts]
        self.domain = rng.choice([part.profile.domain for part in parts], count, p=weights)
        self.streams = rng.random(count) < 0.5
        self.speed = speed

    def outcomes(self) -> list[Outcome]:
        """Return an empty outcome for each request."""
        pairs = zip(self.budget_s.tolist(), self.domain.tolist(), strict=True)
        return [Outcome(budget_s, domain) for budget_s, domain in pairs]

    async def send(self, model: str) -> list[Outcome]:
        """Send all requests to the gateway; half of them are streams."""
        found, began_s = self.outcomes(), time.monotonic()
        async with open_session(PATIENCE_S / self.speed) as session:

            async def one(k: int, out: Outcome) -> None:
                due_s = began_s + float(self.arrival_s[k]) / self.speed
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                body: dict[str, Any] = {"model": model, "messages": QUESTION}
                body |= {"stream": bool(self.streams[k])}
                body["inframind"] = {"budget_s": out.budget_s, "domain": out.domain}
                url = f"http://127.0.0.1:{PORT}/v1/chat/completions"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(url, json=body) as response:
                        data = await response.read()
                        out.status = response.status
                        out.model = response.headers.get("x-inframind-model", "")
                        out.strategy = response.headers.get("x-inframind-strategy", "-")
                        ends = data.count(b"[DONE]"), int(b'"choices"' in data)
                        out.answers = ends[0] if body["stream"] else ends[1]
                        if body["stream"] and b'data: {"error"' in data:
                            out.status = 599  # an error event in the stream
                out.latency_s = (time.monotonic() - due_s) * self.speed

            await asyncio.gather(*(one(k, out) for k, out in enumerate(found)))
        return found


# Scores


def right_answers(pool: PoolConfig, workload: str) -> dict[tuple[str, str, str], float]:
    """Return the chance that a model's answer is right, by domain, alias and strategy.

    The chance is the item-response model's for a single call; the strategy "-" stands for the
    workload's mix, from which simulated servers draw the lengths of such answers.
    """
    parts = load_profiles(load_workload(workload)).values()
    total: dict[str, float] = defaultdict(float)
    for weight, profile in parts:
        total[profile.domain] += weight
    found: dict[tuple[str, str, str], float] = defaultdict(float)
    for weight, profile in parts:
        quality, mix = profile.quality, profile.strategy_mix
        gains = {name: quality.strategy_gain[name] for name in mix}
        gains["-"] = sum(share * gains[name] for name, share in mix.items())
        ability = np.array([profile.models[alias].ability for alias in pool.aliases])
        slope, part = quality.discrimination, weight / total[profile.domain]
        for name, gain in gains.items():
            shares = accuracy(slope * (ability + gain), slope * quality.difficulty_sd)
            for alias, share in zip(pool.aliases, shares.tolist(), strict=True):
                found[profile.domain, alias, name] += part * share
    return found


def show(way: str, found: list[Outcome], pool: PoolConfig, workload: str) -> None:
    """Print a row of HEAD, and the shares of the models; ± is 95 %, of ten blocks of time."""
    right = right_answers(pool, workload)
    good = [right[out.domain, out.model, out.strategy] if out.in_time else 0.0 for out in found]
    cells = []
    for values in ([out.in_time for out in found], good):
        blocks = np.array([block.mean() for block in np.array_split(np.asarray(values, float), 10)])
        half = 196 * blocks.std(ddof=1) / np.sqrt(10)
        cells.append(f"{100 * blocks.mean():5.1f} ±{half:4.1f}")
    took_s = [out.latency_s for out in found if out.status == 200]
    cells.append(f"{np.mean(took_s):8.1f} {np.percentile(took_s, 95):8.1f}")
    failed = dict(Counter(out.status for out in found if out.status != 200))
    print(f"{way:28s} {'  '.join(cells)}  {failed or 0}")
    shares = Counter(out.model for out in found if out.status == 200)
    print(
        "   ", ", ".join(f"{m} {n / len(found):.0%}" for m, n in shares.most_common()), flush=True
    )


# In virtual time


class _Call(NamedTuple):
    out: Outcome
    gateway: int
    server: int
    arrival_s: float


def play(
    load: Load, desks: list[SingleCallPolicy], pool: PoolConfig, lengths: AnswerLengths
) -> list[Outcome]:
    """Send a load through gateways in turn, in virtual time; return the outcomes."""
    count, found = len(pool.models), load.outcomes()
    loop = OpenLoop(cards(pool), 16_384)
    seen = Telemetry(0, [0.0] * count, [0.0] * count, [math.nan] * count, [0.0] * count)
    in_flight = [np.zeros(count, np.int64) for _ in desks]
    calls: dict[int, _Call] = {}
    took_s: list[list[float]] = [[] for _ in range(count)]  # since the last poll

    def run(until_s: float) -> None:
        nonlocal seen, took_s
        while True:
            due_s = (seen.polls + 1) * pool.metrics_poll_s
            while len(ended := loop.advance(min(due_s, until_s))):
                for request in ended["request"].tolist():
                    out, gateway, server, arrival_s = calls.pop(request)
                    out.status, out.latency_s = 200, loop.now_s - arrival_s
                    in_flight[gateway][server] -= 1
                    took_s[server].append(out.latency_s)
            if due_s > until_s:
                return
            loads = [loop.load(server) for server in range(count)]
            pairs = zip(took_s, seen.e2e_s, strict=True)
            seen = Telemetry(
                polls=seen.polls + 1,
                taken_s=[due_s] * count,
                depth_req=[float(running + waiting) for running, waiting, _ in loads],
                e2e_s=[float(np.mean(took)) if took else before for took, before in pairs],
                kv_frac=[kv_frac for _, _, kv_frac in loads],
            )
            took_s = [[] for _ in range(count)]

    for k, (arrival_s, out) in enumerate(zip(load.arrival_s.tolist(), found, strict=True)):
        run(arrival_s)
        g = k % len(desks)
        world = World(arrival_s, (1 << count) - 1, in_flight[g], seen)
        order = desks[g].decide(world, arrival_s, out.budget_s, out.domain)
        out.model, out.strategy = pool.aliases[order.model], STRATEGIES[order.strategy]
        tokens = min(lengths.draw(order.model, f"{k}", out.strategy), pool.max_output_tokens)
        request = loop.submit(order.model, order.priority_s, PROMPT_TOKENS, tokens)
        calls[request] = _Call(out, g, order.model, arrival_s)
        in_flight[g][order.model] += 1
    run(float(load.arrival_s[-1]) + PATIENCE_S)
    return found


@app.command()
def virtual(
    trace: TraceOption = None,
    pool: PoolOption = "b200-2gpu",
    workload: str = "mixed",
    per_min: Annotated[str, typer.Option(help="Rates, with commas.")] = "200,400",
    minutes: float = 30.0,
    policies: str = "round_robin,least_loaded,lowest_expected_latency,bid_price",
    gateways: Annotated[int, typer.Option(help="Side by side, each with its own view.")] = 1,
    repeats: Annotated[int, typer.Option(help="Loads, each with its own seed.")] = 3,
) -> None:
    """Answers in time, and right answers in time, in virtual time."""
    true = load_pool(pool)
    lengths = AnswerLengths(load_workload(workload), true.aliases)
    print(HEAD)
    for policy in policies.split(","):
        config = GatewayConfig(pool=pool, workload=workload, policy=policy)
        for rate in map(float, per_min.split(",")):
            found = []
            for seed in range(repeats):
                load = Load(workload, trace, rate, int(rate * minutes), 1.0, seed=seed)
                desks = [SingleCallPolicy(config) for _ in range(gateways)]
                found += play(load, desks, true, lengths)
            show(f"{rate:g}/min, {policy[-18:]}", found, true, workload)


# Over HTTP


@contextlib.contextmanager
def gateway(pool: str, policy: str, port: int = PORT, **settings: Any) -> Iterator[psutil.Process]:
    """`inframind serve` on a port, ready, until the end of the block."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        path = Path(folder) / "gateway.yaml"
        path.write_text(yaml.safe_dump({"pool": pool, "policy": policy, "port": port} | settings))
        command = [*INFRAMIND, "serve", "--config", str(path)]
        started = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            if not _answers(f"http://127.0.0.1:{port}/ready", started):
                output.seek(0)
                raise SystemExit(output.read().decode("utf-8", "replace")[-2000:])
            yield psutil.Process(started.pid)
        finally:
            started.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.wait(30)
            started.kill()


def _answers(url: str, started: subprocess.Popen[bytes]) -> bool:
    """Wait until an address answers 200; return False where the process has ended."""
    for _ in range(1200):
        with contextlib.suppress(DownError):
            ask(url)
            return True
        if started.poll() is not None:
            return False
        time.sleep(0.1)
    return False


@contextlib.contextmanager
def simulated(pool: str, speed: float, workload: str) -> Iterator[str]:
    """`inframind pool up --simulate`, on ports of its own; yield the pool's file."""
    with tempfile.TemporaryDirectory() as folder:
        content = load_pool(pool).model_dump(mode="json", exclude_none=True)
        content["name"] += f"-{PORT}"
        for m, model in enumerate(content["models"]):
            model["port"] = PORT + 10 + m
        path = Path(folder) / "pool.yaml"
        path.write_text(yaml.safe_dump(content))
        on = ["--pool", str(path), "--state", folder]
        up = ["up", *on, "--simulate", "--speed", str(speed), "--workload", workload]
        subprocess.run([*INFRAMIND, "pool", *up], check=True, stdout=subprocess.DEVNULL)
        try:
            yield str(path)
        finally:
            down = [*INFRAMIND, "pool", "down", *on]
            subprocess.run(down, check=True, stdout=subprocess.DEVNULL)


@app.command()
def http(
    trace: TraceOption = None,
    pool: PoolOption = "b200-2gpu",
    workload: str = "mixed",
    per_min: float = 400.0,
    minutes: Annotated[float, typer.Option(help="In virtual time.")] = 30.0,
    speed: float = 10.0,
    policies: str = "round_robin,least_loaded,lowest_expected_latency,bid_price",
    faults_every_s: Annotated[
        float, typer.Option(help="A server in turn breaks for 6 s, on the clock; 0: none does.")
    ] = 0.0,
) -> None:
    """The same over HTTP; with faults also whether a request was lost or answered twice.

    A broken server is killed, hangs, sleeps, answers nonsense or 503. A request is lost if it ends
    without an answer or an error.
    """
    load = Load(workload, trace, per_min, int(per_min * minutes), speed)
    settings: dict[str, Any] = {"speed": speed, "metrics_poll_s": 5.0 / speed, "workload": workload}
    settings |= {"admission": "best_effort", "limits": {"answer_s": PATIENCE_S}}
    print(HEAD)
    for policy in policies.split(","):
        with simulated(pool, speed, workload) as file, gateway(file, policy, **settings) as served:
            held_mb: list[float] = []

            async def run(
                file: str = file, served: psutil.Process = served, held_mb: list[float] = held_mb
            ) -> list[Outcome]:
                breaking = asyncio.ensure_future(_break(load_pool(file), faults_every_s))
                watching = asyncio.ensure_future(_memory(served, held_mb))
                try:
                    return await load.send("inframind/auto")
                finally:
                    breaking.cancel()
                    watching.cancel()

            found = asyncio.run(run())
            show(policy[-28:], found, load_pool(file), workload)
        lost = sum(out.status == 0 or (out.status == 200 and not out.answers) for out in found)
        twice = sum(out.answers > 1 for out in found)
        tenths = " ".join(f"{part.mean():.1f}" for part in np.array_split(held_mb, 10) if len(part))
        print(f"    {len(found)} requests, lost {lost}, answered twice {twice}; MB: {tenths}")


async def _break(pool: PoolConfig, every_s: float) -> None:
    """Break one server after the other."""
    async with open_session(PATIENCE_S) as session:
        for k in range(1_000_000 if every_s else 0):
            await asyncio.sleep(every_s - 6.0)
            base = f"http://127.0.0.1:{pool.models[k % len(pool.models)].port}"
            kind = FAULTS[(k + k // len(FAULTS)) % len(FAULTS)]
            asleep = kind == "sleep"
            path = "/sleep?level=1&mode=wait" if asleep else f"/fault?kind={kind}&for_s=6"
            with contextlib.suppress(DownError):
                await fetch(session, base, path, method="POST")
            await asyncio.sleep(6.0)
            with contextlib.suppress(DownError):
                if asleep:
                    await fetch(session, base, "/wake_up", method="POST")


async def _memory(served: psutil.Process, held_mb: list[float]) -> None:
    """Note a process's memory every second."""
    while True:
        held_mb.append(served.memory_info().rss / 1e6)
        await asyncio.sleep(1.0)


@app.command()
def overhead(
    count: Annotated[int, typer.Option(help="Streams for each of 1, 50, 200.")] = 300,
) -> None:
    """Time to the first token directly and through the gateway, at 1, 50 and 200 open streams."""
    with simulated("b200-2gpu", 1.0, "mixed") as file:
        pool = load_pool(file)
        fastest = pool.models[-1]
        settings: dict[str, Any] = {"admission": "best_effort", "workload": "mixed"}
        with gateway(file, "least_loaded", **settings) as served:
            ways = {
                "direct": (fastest.port, fastest.name),
                "gateway, model's name": (PORT, fastest.name),
                "gateway, inframind/auto": (PORT, "inframind/auto"),
            }
            print("open  way                       first token, ms: p50      p99    CPU ms/request")
            for streams in (1, 50, 200):
                number = min(count, 20 * streams)
                for way, (port, model) in ways.items():
                    before_s = sum(served.cpu_times()[:2])
                    first_s = asyncio.run(
                        _streams(f"http://127.0.0.1:{port}", model, streams, number)
                    )
                    cpu_ms = 1e3 * (sum(served.cpu_times()[:2]) - before_s) / number
                    p50, p99 = 1e3 * np.percentile(first_s, [50, 99])
                    print(
                        f"{streams:4d}  {way:32s} {p50:8.1f} {p99:8.1f}  {cpu_ms:8.1f}", flush=True
                    )


async def _streams(url: str, model: str, streams: int, count: int) -> list[float]:
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

        await asyncio.gather(*(one(k) for k in range(streams)))
    return found


if __name__ == "__main__":
    app()
