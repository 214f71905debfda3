"""Loads on simulated servers behind gateways: goodput of policies, and a soak with faults."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Annotated, Any, Final

import aiohttp
import numpy as np
import psutil
import typer

from benchmarks.gateway.overhead import LiteLlm
from benchmarks.gateway.processes import (
    PORT,
    QUESTION,
    gateway,
    litellm,
    simulated,
    with_cards_of,
)
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.item_response import accuracy
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.workload import load_profiles, load_workload

HEAD: Final = "way                            in time, %    goodput, %   mean s    p95 s  failed"
PoolOption = Annotated[str, typer.Option("--pool", help="A pool's name; it is simulated.")]
STRATEGIES: Final = ("least-busy", "latency-based-routing")  # of LiteLLM
_PATIENCE_S: Final = 1200.0  # of a client, in virtual time: longer than any budget
_CODE: Final = re.compile(rb'"code": "(\w+)"')
_OPEN: Final = re.compile(r"^inframind_queries_in_flight (\S+)", re.MULTILINE)


class Outcome:
    """Outcome of one request, as its client saw it."""

    def __init__(self, budget_s: float, domain: str) -> None:
        self.budget_s, self.domain = budget_s, domain
        self.status, self.model, self.latency_s, self.answers = 0, "", 0.0, 0
        self.strategy, self.code = "-", ""  # asked of the model; of an error
        self.began_late_s = 0.0  # on the clock: a machine that is too busy to measure on


class Load:
    """Requests of a workload at the times of a trace, the same for everybody.

    Args:
        workload: whose budgets and domains are drawn.
        trace: CSV of arrivals; None: Poisson.
        per_min: rate, in virtual time.
        count: of requests.
        speed: virtual seconds a second.
        seed: of what is drawn.
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

    async def send(self, ports: list[int], model: str, *, streams: bool = False) -> list[Outcome]:
        """Send all requests; gateways take turns."""
        pairs = zip(self.budget_s, self.domain, strict=True)
        outcomes = [Outcome(float(budget_s), str(domain)) for budget_s, domain in pairs]
        limit = aiohttp.ClientTimeout(total=_PATIENCE_S / self.speed)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=limit
        ) as session:
            began_s = time.monotonic()

            async def one(k: int) -> None:
                due_s = began_s + float(self.arrival_s[k]) / self.speed
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                outcomes[k].began_late_s = time.monotonic() - due_s
                port = ports[k % len(ports)]
                await _ask(session, port, model, outcomes[k], streams and bool(self.streams[k]))
                outcomes[k].latency_s = (time.monotonic() - due_s) * self.speed

            await asyncio.gather(*(one(k) for k in range(len(outcomes))))
        return outcomes


async def _ask(
    session: aiohttp.ClientSession, port: int, model: str, out: Outcome, is_stream: bool
) -> None:
    body: dict[str, Any] = {"model": model, "messages": QUESTION, "stream": is_stream}
    if model.startswith("inframind/"):
        body["inframind"] = {"budget_s": out.budget_s, "domain": out.domain}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(url, json=body) as response:
            data = await response.read()
            out.status = response.status
            base = response.headers.get("x-litellm-model-api-base", "")
            out.model = response.headers.get("x-inframind-model", base)
            out.strategy = response.headers.get("x-inframind-strategy", "-")
            out.answers = data.count(b"[DONE]") if is_stream else int(b'"choices"' in data)
            if is_stream and b'data: {"error"' in data:
                out.status = 599  # said in the stream
            if out.status != 200 and (code := _CODE.search(data)):
                out.code = code[1].decode()


def right_answers(pool: PoolConfig, workload: str) -> dict[tuple[str, str, str], float]:
    """Chance that a model's answer is right, by domain, alias and strategy.

    That of the workload's item-response model for a single call; "-" is no strategy: the
    workload's mix of them, as the simulated servers draw the lengths of such answers.
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


def _interval(values: Any) -> str:
    """Mean of a share in %, and half of its 95 % interval from ten blocks of time."""
    blocks = np.array([block.mean() for block in np.array_split(np.asarray(values, float), 10)])
    return f"{100 * blocks.mean():5.1f} ±{196 * blocks.std(ddof=1) / np.sqrt(10):4.1f}"


def goodput(
    command: LiteLlm = None,
    trace: Annotated[
        Path | None, typer.Option(help="CSV of arrivals, for example Azure's.")
    ] = None,
    pool: PoolOption = "b200-2gpu",
    workload: str = "mixed",
    per_min: float = 400.0,
    minutes: float = 30.0,
    speed: float = 10.0,
    policies: str = "round_robin,least_loaded,lowest_expected_latency,bid_price",
    gateways: Annotated[int, typer.Option(help="Side by side, each with its own view.")] = 1,
    admission: str = "best_effort",
    believed: Annotated[
        str | None, typer.Option(help="Pool whose server cards gateways believe; else the true.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Log of the first gateway; half of the requests stream.")
    ] = None,
) -> None:
    """Answers in time, and right answers in time, on the same arrivals at simulated servers."""
    load = Load(workload, trace, per_min, int(per_min * minutes), speed)
    print(HEAD)
    for policy in filter(None, policies.split(",")):
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(simulated(pool, speed, workload))
            ports = [PORT + 40 + k for k in range(gateways)]
            for port in ports:
                settings: dict[str, Any] = {"speed": speed, "metrics_poll_s": 5.0 / speed}
                settings |= {"workload": workload, "admission": admission}
                settings["limits"] = {"answer_s": _PATIENCE_S}
                if record is not None and port == ports[0]:
                    settings["log"] = str(record)
                seen = file if believed is None else with_cards_of(file, believed)
                stack.enter_context(gateway(seen, policy, port, **settings))
            streams = record is not None
            found = asyncio.run(load.send(ports, "inframind/auto", streams=streams))
            way = policy if gateways == 1 else f"{policy}, {gateways} gateways"
            show(way, found, load_pool(file), workload)
            _show_lateness(found)
    for strategy in STRATEGIES if command else ():
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(simulated(pool, speed, workload))
            stack.enter_context(litellm(command, load_pool(file), strategy))  # type: ignore[arg-type]
            found = asyncio.run(load.send([PORT + 1], "auto"))
            show(f"LiteLLM, {strategy}", found, load_pool(file), workload)
            _show_lateness(found)


def show(way: str, found: list[Outcome], pool: PoolConfig, workload: str) -> None:
    """Print a row of HEAD, and the shares of the models; ± is of ten blocks of time."""
    right = right_answers(pool, workload)
    at = {f"http://127.0.0.1:{model.port}/v1": model.alias for model in pool.models}
    for out in found:
        out.model = at.get(out.model, out.model)
    in_time = [out.status == 200 and out.latency_s <= out.budget_s for out in found]
    good = [
        right[out.domain, out.model, out.strategy] if on_time else 0.0
        for out, on_time in zip(found, in_time, strict=True)
    ]
    took_s = [out.latency_s for out in found if out.status == 200]
    shown = f"{np.mean(took_s):8.1f} {np.percentile(took_s, 95):8.1f}"
    failed = dict(Counter(out.status for out in found if out.status != 200))
    print(f"{way:28s} {_interval(in_time)}  {_interval(good)} {shown}  {failed or 0}", flush=True)
    shares = Counter(out.model for out in found if out.status == 200)
    used = (f"{model} {n / len(found):.0%}" for model, n in shares.most_common())
    print("   ", ", ".join(used), flush=True)


def _show_lateness(found: list[Outcome]) -> None:
    late_ms = 1e3 * np.percentile([out.began_late_s for out in found], 99)
    print(f"    the client was late by {late_ms:.0f} ms, p99", flush=True)


def soak(
    pool: PoolOption = "b200-2gpu",
    workload: str = "mixed",
    per_min: float = 400.0,
    minutes: Annotated[float, typer.Option(help="On the clock.")] = 5.0,
    speed: float = 10.0,
    policy: str = "bid_price",
    every_s: Annotated[float, typer.Option(help="Between two faults.")] = 10.0,
    record: Annotated[Path | None, typer.Option(help="Access log of the gateway.")] = None,
) -> None:
    """Requests under faults: none lost, none answered twice, memory flat.

    Servers in turn are killed, hung, put to sleep, and answer nonsense or 503, for 6 s each. Half
    of the requests are streams. A request is lost if it ends without an answer or an error.
    """
    count = int(per_min * speed * minutes)
    load = Load(workload, None, per_min, count, speed)
    settings: dict[str, Any] = {"speed": speed, "metrics_poll_s": 5.0 / speed}
    settings |= {"admission": "best_effort", "limits": {"answer_s": _PATIENCE_S}}
    if record is not None:
        settings["log"] = str(record)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(simulated(pool, speed, workload))
        served = stack.enter_context(gateway(file, policy, **settings))
        held: list[tuple[float, float]] = []

        async def run() -> list[Outcome]:
            faults = asyncio.ensure_future(_faults(load_pool(file), every_s))
            memory = asyncio.ensure_future(_memory(served, held))
            try:
                return await load.send([PORT], "inframind/auto", streams=True)
            finally:
                faults.cancel()
                memory.cancel()

        found = asyncio.run(run())
    said = Counter(out.status for out in found)
    lost = sum(out.status == 0 or (out.status == 200 and out.answers == 0) for out in found)
    twice = sum(out.answers > 1 for out in found)
    print(f"{len(found)} requests in {minutes:g} min: lost {lost}, answered twice {twice}")
    print("status:", dict(said.most_common()), "(599: a stream ended with an error)")
    print("errors:", dict(Counter(out.code for out in found if out.code).most_common()))
    on_time = np.mean([out.status == 200 and out.latency_s <= out.budget_s for out in found])
    print(f"in time: {on_time:.1%}")
    tenths = [part.mean(axis=0) for part in np.array_split(np.array(held), 10) if len(part)]
    _show_lateness(found)
    print("memory, MB:", " ".join(f"{rss:.1f}" for rss, _ in tenths))
    print("open requests:", " ".join(f"{requests:.0f}" for _, requests in tenths))


async def _faults(pool: PoolConfig, every_s: float) -> None:
    """Break one server after the other."""
    kinds = ("kill", "hang", "sleep", "garbage", "error")
    async with aiohttp.ClientSession() as session:
        for k in range(1_000_000):
            await asyncio.sleep(every_s - 6.0)
            model = pool.models[k % len(pool.models)]
            kind, base = kinds[(k + k // len(kinds)) % len(kinds)], f"http://127.0.0.1:{model.port}"
            url = f"{base}/fault?kind={kind}&for_s=6"
            with contextlib.suppress(aiohttp.ClientError):
                await session.post(f"{base}/sleep?level=1&mode=wait" if kind == "sleep" else url)
                await asyncio.sleep(6.0)
                if kind == "sleep":
                    await session.post(f"{base}/wake_up")


async def _memory(served: psutil.Process, held: list[tuple[float, float]]) -> None:
    """Note the gateway's memory in MB and its open requests, every second."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{PORT}/metrics") as response:
                requests = _OPEN.search(await response.text())
            held.append((served.memory_info().rss / 1e6, float(requests[1]) if requests else 0.0))
            await asyncio.sleep(1.0)
