"""A log of requests, replayed over HTTP on simulated servers and through the kernel alone.

`python -m tests.live.simulated.replay --speed 10 --requests 400` prints the latencies of both.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.live.client import ChatRequest, ChatResult, Client
from inframind_gym.live.config import LiveSettings, ServerAddress
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.server.state import cards
from tests.live.simulated.play import served


@dataclass(frozen=True)
class Replay:
    """Latencies of n requests in virtual s, over HTTP and of the kernel; and processor seconds."""

    e2e_s: NDArray[np.float64]  # (2, n)
    ttft_s: NDArray[np.float64]  # (2, n)
    cpu_s: float  # of servers and clients, which share a process
    results: list[ChatResult]

    def error(self, name: str) -> tuple[float, float, float]:
        """Relative errors of the mean, the median and the 95th percentile."""
        ours, kernel = getattr(self, name)
        pairs = [(each.mean(), np.median(each), np.quantile(each, 0.95)) for each in (ours, kernel)]
        return tuple(float(a / b - 1.0) for a, b in zip(*pairs, strict=True))  # type: ignore


def replay(requests: int, per_s: float, speed: float, seed: int = 0) -> Replay:
    """Send Poisson arrivals to the testbed's models, with deadlines as priorities.

    Args:
        requests: n.
        per_s: arrivals a virtual second.
        speed: virtual seconds a second.
        seed: of the log.
    """
    pool, rng = load_pool("b200-2gpu"), np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / per_s, requests))
    model = rng.integers(0, len(pool.models), requests)
    prompt = rng.integers(50, 2000, requests)
    output = np.minimum(rng.lognormal(5.0, 0.8, requests).astype(int) + 1, 1500)
    priority = rng.integers(0, 10**6, requests)
    kernel = replay_requests(cards(pool), model, arrival_s, prompt, output, priority)
    began_cpu_s = time.process_time()
    with served(pool, speed=speed) as urls:
        servers = [
            ServerAddress(alias=each.alias, url=url, model=each.name)
            for each, url in zip(pool.models, urls, strict=True)
        ]

        async def scene() -> list[ChatResult]:
            client = Client(servers, LiveSettings(sampling={"ignore_eos": True}))
            await client.open()
            began_s = time.monotonic() + 0.05

            async def one(i: int) -> ChatResult:
                await asyncio.sleep(began_s + arrival_s[i] / speed - time.monotonic())
                content = "x" * (4 * (int(prompt[i]) - 4))
                return await client.chat(
                    ChatRequest(
                        int(model[i]),
                        [{"role": "user", "content": content}],
                        int(output[i]),
                        600.0,
                        priority=int(priority[i]),
                    )
                )

            results = await asyncio.gather(*map(one, range(requests)))
            await client.close()
            return results

        results = asyncio.run(scene())
        cpu_s = time.process_time() - began_cpu_s

    def virtual(field: str) -> Any:
        return [speed * (getattr(r, field) - r.submit_s) for r in results]

    return Replay(
        np.array([virtual("last_token_s"), kernel["finish_s"] - arrival_s]),
        np.array([virtual("first_token_s"), kernel["first_token_s"] - arrival_s]),
        cpu_s,
        results,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--per-s", type=float, default=4.0)
    parser.add_argument("--speed", type=float, default=1.0)
    given = parser.parse_args()
    found = replay(given.requests, given.per_s, given.speed)
    for name in ("e2e_s", "ttft_s"):
        mean_s = getattr(found, name).mean(axis=1)
        errors = ", ".join(f"{error:+.1%}" for error in found.error(name))
        print(f"{name}: mean {mean_s[0]:.3f}, kernel {mean_s[1]:.3f}; mean, median, p95: {errors}")
    pieces = sum(result.pieces for result in found.results)
    tokens = sum(result.output_tokens or 0 for result in found.results)
    print(f"{found.cpu_s:.1f} s of a processor, {tokens} tokens in {pieces} pieces")
