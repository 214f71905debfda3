"""Random workloads for a small server: what vLLM's scheduler and our kernel are both given."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

# As JSON: `name`; `server`: limits in vLLM's terms, of which block 0 is reserved, and its options;
# `requests`, whose place is their id and order of arrival: `prompt_tokens`, `output_tokens`,
# `priority` (lower first) and `step`. A request arrives before the server's engine step of that
# number, or when it is idle.
Scenario = dict[str, Any]

# What makes a scenario hard: ranges to draw from, both ends included.
PLAIN: Final[dict[str, Any]] = {
    "slots": (2, 8),
    "spare_budget": (16, 128),  # batched tokens beyond one for every slot
    "block_size": (1, 4, 16),
    "cache": (8.0, 20.0),  # room in the KV cache, in largest requests
    "prompt_tokens": (1, 60),
    "output_tokens": (1, 30),
    "requests": (8, 16),
    "steps_between": 4.0,  # between two arrivals, on average
    "burst": 0.3,  # chance that a request arrives together with the one before
    "last_first": False,  # the later a request comes, the more urgent it is
}
KINDS: Final[dict[str, dict[str, Any]]] = {
    "mixed": {},
    "long_prompts": {"spare_budget": (1, 24), "prompt_tokens": (40, 200)},
    "few_slots": {"slots": (1, 2), "requests": (12, 20)},
    "starved": {"cache": (1.0, 2.0), "output_tokens": (20, 80), "steps_between": 3.0},
    "starved_long": {
        "cache": (1.0, 1.6),
        "spare_budget": (1, 30),
        "prompt_tokens": (20, 90),
        "output_tokens": (10, 60),
    },
    "starved_tiny_blocks": {"block_size": (1, 2), "cache": (1.0, 2.5), "output_tokens": (10, 60)},
    "starved_many": {
        "slots": (4, 8),
        "block_size": (1, 2, 4),
        "cache": (1.2, 3.0),
        "prompt_tokens": (1, 20),
        "output_tokens": (1, 60),
        "requests": (16, 24),
        "steps_between": 2.0,
    },
    "starved_last_first": {
        "slots": (4, 7),
        "spare_budget": (1, 8),
        "block_size": (1, 2),
        "cache": (1.0, 1.3),
        "prompt_tokens": (5, 150),
        "output_tokens": (20, 60),
        "requests": (10, 16),
        "last_first": True,
    },
    "starved_in_step": {
        "slots": (10, 14),
        "block_size": (4,),
        "cache": (1.0, 1.2),
        "prompt_tokens": (4, 4),
        "output_tokens": (5, 40),
        "requests": (14, 20),
        "steps_between": 15.0,
        "burst": 0.85,
    },
    "bursts": {"burst": 0.85, "steps_between": 25.0, "requests": (14, 22)},
    "one_token": {
        "output_tokens": (1, 2),
        "burst": 0.6,
        "steps_between": 2.0,
        "requests": (14, 22),
    },
    "quiet": {"steps_between": 30.0, "burst": 0.5},
}


def random_scenario(kind: str, seed: int, *, async_scheduling: bool = False) -> Scenario:
    """A scenario of one of `KINDS`. Odd seeds cache prefixes, the latter two in four are fcfs."""
    rng = np.random.default_rng([seed, *kind.encode()])
    ranges = PLAIN | KINDS[kind]

    def draw(name: str) -> int:
        low, high = ranges[name]
        return int(rng.integers(low, high + 1))

    slots = draw("slots")
    block_size = int(rng.choice(ranges["block_size"]))
    largest = -(-(ranges["prompt_tokens"][1] + ranges["output_tokens"][1]) // block_size)
    server = {
        "max_num_seqs": slots,
        "max_num_batched_tokens": slots + draw("spare_budget"),
        "num_kv_blocks": 1 + int(largest * rng.uniform(*ranges["cache"])),
        "block_size": block_size,
        "prefix_caching": seed % 2 == 1,
        "async_scheduling": async_scheduling,
        "policy": "fcfs" if seed % 4 >= 2 else "priority",
    }
    levels = int(rng.choice([2, 4, 1000]))  # few levels give ties
    step = 0
    requests = []
    for i in range(draw("requests")):
        if rng.random() >= ranges["burst"]:
            step += int(rng.exponential(ranges["steps_between"]) + 0.5)
        tokens = {name: draw(name) for name in ("prompt_tokens", "output_tokens")}
        priority = int(rng.integers(levels)) - 1000 * i * ranges["last_first"]
        requests.append({"step": step, **tokens, "priority": priority})
    mode = "async" if async_scheduling else "sync"
    return {"name": f"{kind}-{seed}-{mode}", "server": server, "requests": requests}


def evicted_after_served() -> Scenario:
    """Two requests need a block in one step: the first is given the last one, and then evicted.

    Async, the block that its token of the step before completes can be found only because of that.
    """
    server = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "num_kv_blocks": 22,
        "block_size": 4,
        "prefix_caching": True,
        "async_scheduling": True,
        "policy": "priority",
    }
    less_urgent = {"step": 0, "prompt_tokens": 19, "output_tokens": 37, "priority": 1}
    urgent = {"step": 17, "prompt_tokens": 20, "output_tokens": 16, "priority": 0}
    name = "evicted_after_served-async"
    return {"name": name, "server": server, "requests": [less_urgent, urgent]}


def random_scenarios(seeds: range) -> list[Scenario]:
    """For every seed a scenario of each kind, with and without async scheduling."""
    return [
        random_scenario(kind, seed, async_scheduling=async_scheduling)
        for seed in seeds
        for kind in KINDS
        for async_scheduling in (False, True)
    ]
