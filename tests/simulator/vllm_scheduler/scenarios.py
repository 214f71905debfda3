"""Random workloads for a small server: what vLLM's scheduler and our kernel are both given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Server:
    """Limits of one server, in vLLM's terms."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_kv_blocks: int  # block 0 is reserved
    block_size: int
    prefix_caching: bool
    async_scheduling: bool
    policy: str  # "priority" or "fcfs"


@dataclass(frozen=True)
class Request:
    """One request. Its place in the scenario is its id and its order of arrival."""

    step: int  # it arrives before the server's engine step of this number, or when it is idle
    prompt_tokens: int
    output_tokens: int
    priority: int  # lower first


@dataclass(frozen=True)
class Scenario:
    """A server and what it is asked."""

    name: str
    server: Server
    requests: tuple[Request, ...]


def from_json(fields: dict[str, Any]) -> Scenario:
    """The scenario of these fields, nested as `asdict` gives them."""
    return Scenario(
        name=fields["name"],
        server=Server(**fields["server"]),
        requests=tuple(Request(**request) for request in fields["requests"]),
    )


@dataclass(frozen=True)
class _Kind:
    """What makes a scenario hard: ranges to draw from, both ends included."""

    slots: tuple[int, int] = (2, 8)
    spare_budget: tuple[int, int] = (16, 128)  # batched tokens beyond one for every slot
    block_size: tuple[int, ...] = (1, 4, 16)
    cache: tuple[float, float] = (8.0, 20.0)  # room in the KV cache, in largest requests
    prompt_tokens: tuple[int, int] = (1, 60)
    output_tokens: tuple[int, int] = (1, 30)
    requests: tuple[int, int] = (8, 16)
    steps_between: float = 4.0  # between two arrivals, on average
    burst: float = 0.3  # chance that a request arrives together with the one before
    last_first: bool = False  # the later a request comes, the more urgent it is


KINDS = {
    "mixed": _Kind(),
    "long_prompts": _Kind(spare_budget=(1, 24), prompt_tokens=(40, 200)),
    "few_slots": _Kind(slots=(1, 2), requests=(12, 20)),
    "starved": _Kind(cache=(1.0, 2.0), output_tokens=(20, 80), steps_between=3.0),
    "starved_long": _Kind(
        cache=(1.0, 1.6), spare_budget=(1, 30), prompt_tokens=(20, 90), output_tokens=(10, 60)
    ),
    "starved_tiny_blocks": _Kind(block_size=(1, 2), cache=(1.0, 2.5), output_tokens=(10, 60)),
    "starved_many": _Kind(
        slots=(4, 8),
        block_size=(1, 2, 4),
        cache=(1.2, 3.0),
        prompt_tokens=(1, 20),
        output_tokens=(1, 60),
        requests=(16, 24),
        steps_between=2.0,
    ),
    "starved_last_first": _Kind(
        slots=(4, 7),
        spare_budget=(1, 8),
        block_size=(1, 2),
        cache=(1.0, 1.3),
        prompt_tokens=(5, 150),
        output_tokens=(20, 60),
        requests=(10, 16),
        steps_between=4.0,
        last_first=True,
    ),
    "starved_in_step": _Kind(
        slots=(10, 14),
        block_size=(4,),
        cache=(1.0, 1.2),
        prompt_tokens=(4, 4),
        output_tokens=(5, 40),
        requests=(14, 20),
        steps_between=15.0,
        burst=0.85,
    ),
    "bursts": _Kind(burst=0.85, steps_between=25.0, requests=(14, 22)),
    "one_token": _Kind(output_tokens=(1, 2), burst=0.6, steps_between=2.0, requests=(14, 22)),
    "quiet": _Kind(steps_between=30.0, burst=0.5),
}


def random_scenario(kind: str, seed: int, *, async_scheduling: bool = False) -> Scenario:
    """A scenario of one of `KINDS`. Odd seeds cache prefixes, the latter two in four are fcfs."""
    rng = np.random.default_rng([seed, *kind.encode()])
    ranges = KINDS[kind]

    def draw(bounds: tuple[int, int]) -> int:
        return int(rng.integers(bounds[0], bounds[1] + 1))

    slots = draw(ranges.slots)
    block_size = int(rng.choice(ranges.block_size))
    largest = -(-(ranges.prompt_tokens[1] + ranges.output_tokens[1]) // block_size)
    server = Server(
        max_num_seqs=slots,
        max_num_batched_tokens=slots + draw(ranges.spare_budget),
        num_kv_blocks=1 + int(largest * rng.uniform(*ranges.cache)),
        block_size=block_size,
        prefix_caching=seed % 2 == 1,
        async_scheduling=async_scheduling,
        policy="fcfs" if seed % 4 >= 2 else "priority",
    )
    levels = int(rng.choice([2, 4, 1000]))  # few levels give ties
    step = 0
    requests = []
    for i in range(draw(ranges.requests)):
        if rng.random() >= ranges.burst:
            step += int(rng.exponential(ranges.steps_between) + 0.5)
        requests.append(
            Request(
                step=step,
                prompt_tokens=draw(ranges.prompt_tokens),
                output_tokens=draw(ranges.output_tokens),
                priority=int(rng.integers(levels)) - 1000 * i * ranges.last_first,
            )
        )
    mode = "async" if async_scheduling else "sync"
    return Scenario(f"{kind}-{seed}-{mode}", server, tuple(requests))


def evicted_after_served() -> Scenario:
    """Two requests need a block in one step: the first is given the last one, and then evicted.

    Async, the block that its token of the step before completes can be found only because of that.
    """
    server = Server(
        max_num_seqs=2,
        max_num_batched_tokens=64,
        num_kv_blocks=22,
        block_size=4,
        prefix_caching=True,
        async_scheduling=True,
        policy="priority",
    )
    less_urgent = Request(step=0, prompt_tokens=19, output_tokens=37, priority=1)
    urgent = Request(step=17, prompt_tokens=20, output_tokens=16, priority=0)
    return Scenario("evicted_after_served-async", server, (less_urgent, urgent))


def random_scenarios(seeds: range) -> list[Scenario]:
    """For every seed a scenario of each kind, with and without async scheduling."""
    return [
        random_scenario(kind, seed, async_scheduling=async_scheduling)
        for seed in seeds
        for kind in KINDS
        for async_scheduling in (False, True)
    ]
