"""Time that the gateway adds to a call, and calls that it carries: against direct, and LiteLLM."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Annotated

import aiohttp
import numpy as np
import typer

from benchmarks.gateway.processes import PORT, QUESTION, cpu_s, dummy, gateway, litellm
from inframind_gym.simulator.server.pool import load_pool

LiteLlm = Annotated[Path | None, typer.Option(help="LiteLLM's command `litellm`.")]


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
            spent_s = dict.fromkeys(ways, 0.0)
            for _ in range(rounds):
                for way, (url, model, served_by) in ways.items():
                    before = cpu_s(served_by)
                    found[way] += asyncio.run(_streams(url, model, open_streams, count))
                    spent_s[way] += cpu_s(served_by) - before
            for way, times in found.items():
                first, whole = ([t[k] for t in times] for k in (0, 1))
                per = 1e3 * spent_s[way] / len(times)
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
            before, began_s = cpu_s(served_by), time.perf_counter()
            count = requests if port == PORT else requests // 10
            asyncio.run(_many(port, model, count, connections))
            wall_s, busy_s = time.perf_counter() - began_s, cpu_s(served_by) - before
            print(
                f"{way:26s} {count / wall_s:7.0f} /s by clock, {count / busy_s:7.0f} /s of a core"
            )


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
