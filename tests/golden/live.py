"""Live servers and the gateway: command lines, prompts, metrics, decisions."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from inframind_gym.errors import InfraMindError
from inframind_gym.live.gateway.choose import SingleCallPolicy, World
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.launcher import server_command
from inframind_gym.live.prompts import Prompts
from inframind_gym.live.simulated.answers import AnswerLengths
from inframind_gym.live.watcher import parse_metrics
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.server.open_loop import OpenLoop
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.backend import Call, Telemetry
from inframind_gym.simulator.workflow.topology import STRATEGIES
from inframind_gym.simulator.workload import load_profiles, load_workload
from inframind_gym.tasks import load_tasks
from tests.golden.net import Cases, digest_of
from tests.live.simulated.play import served, tiny_pool

_METRICS = Path(__file__).parents[1] / "live" / "vllm_server" / "metrics_vllm_0_32.txt"


def _commands() -> str:
    """Command lines and environments of the servers of shipped pools."""
    cache, os.environ["INFRAMIND_CACHE"] = os.environ.get("INFRAMIND_CACHE"), "/cache"
    try:
        made = []
        for name in ("b200-2gpu", "single-gpu", "cpu-tiny"):
            pool = load_pool(name)
            for model in pool.models:
                command = server_command(pool, model, Path("/python"), "0.0.0.0", "3,1")
                made.append([list(command.arguments), dict(command.env)])
        return digest_of(made)
    finally:
        del os.environ["INFRAMIND_CACHE"]
        if cache is not None:
            os.environ["INFRAMIND_CACHE"] = cache


def _prompts() -> str:
    """Messages of calls of every topology, phase and strategy, with room and without."""
    tasks = load_tasks("builtin")
    prompts, made = Prompts(tasks), []
    answers = {node: f"Answer {node}. " * (10 + 60 * node) for node in range(5)}
    for i in range(240):
        reads = tuple(range(i % 4))
        call = Call(
            id=i,
            query=0,
            task=(37 * i) % len(tasks.texts),
            topology=i % 7,
            node=i % 5,
            phase=i % 3,
            model=0,
            strategy=i % 3,
            role=i % 12,
            priority=1.0,
            deadline_s=1.0,
            prompt_tokens=100,
            max_tokens=64,
            reads=reads,
            sources=reads if i % 2 else (),
        )
        for limit in (100_000, 900, 300):
            try:
                made.append(list(map(dict, prompts.messages(call, answers, limit))))
            except InfraMindError as error:
                made.append([{"error": str(error)}])
    return digest_of(made)


def _metrics() -> str:
    reading = asdict(parse_metrics(_METRICS.read_text(encoding="utf-8"), 0.0))
    names = ("running_req", "waiting_req", "kv_frac", "asleep", "e2e_s", "finished_req")
    return json.dumps({name: reading[name] for name in names})


def _decisions(policy: str) -> str:
    """Routes that the gateway takes under a load in virtual time."""
    pool, workload, rng = load_pool("b200-2gpu"), load_workload("mixed"), np.random.default_rng(3)
    arrival_s = make_arrivals("poisson").sample(240.0, 60, rng).tolist()
    budgets_s = rng.choice(workload.budget_tiers_s, 60).tolist()
    parts = list(load_profiles(workload).values())
    weights = [part.weight for part in parts]
    domains = rng.choice([part.profile.domain for part in parts], 60, p=weights).tolist()
    desk, loop = SingleCallPolicy(GatewayConfig(policy=policy)), OpenLoop(cards(pool), 16_384)
    count, lengths = len(pool.models), AnswerLengths(workload, pool.aliases)
    seen = Telemetry(0, [0.0] * count, [0.0] * count, [math.nan] * count, [0.0] * count)
    in_flight, took_s = np.zeros(count, np.int64), [list[float]() for _ in range(count)]
    calls: dict[int, int] = {}  # by request: the query
    found: list[list[Any]] = [["", "", 0.0] for _ in arrival_s]
    for k, until_s in enumerate([*arrival_s, arrival_s[-1] + 1200.0]):
        due_s = 0.0
        while due_s <= until_s:
            due_s = (seen.polls + 1) * pool.metrics_poll_s
            while len(ended := loop.advance(min(due_s, until_s))):
                for query in map(calls.pop, ended["request"].tolist()):
                    server = pool.aliases.index(found[query][0])
                    found[query][2] = loop.now_s - arrival_s[query]
                    in_flight[server] -= 1
                    took_s[server].append(found[query][2])
            if due_s <= until_s:
                loads = [loop.load(server) for server in range(count)]
                means = zip(took_s, seen.e2e_s, strict=True)
                depths = [float(running + waiting) for running, waiting, _ in loads]
                e2e_s = [float(np.mean(took)) if took else before for took, before in means]
                polled = ([due_s] * count, depths, e2e_s, [kv for _, _, kv in loads])
                seen, took_s = Telemetry(seen.polls + 1, *polled), [[] for _ in range(count)]
        if k < len(arrival_s):
            world = World(until_s, (1 << count) - 1, in_flight, seen)
            order = desk.decide(world, until_s, budgets_s[k], domains[k])
            found[k][:2] = pool.aliases[order.model], STRATEGIES[order.strategy]
            drawn = lengths.draw(order.model, f"{k}", found[k][1])
            tokens = min(drawn, pool.max_output_tokens)
            calls[loop.submit(order.model, order.priority_s, 145, tokens)] = k
            in_flight[order.model] += 1
    assert not calls and all(math.isfinite(latency_s) for *_, latency_s in found)
    return digest_of(list(map(tuple, found)))


def _simulated() -> str:
    """What simulated servers say: texts, lengths and usages by seed."""
    import aiohttp

    async def ask() -> list[Any]:
        found: list[Any] = []
        async with aiohttp.ClientSession() as session:
            for url in urls:
                for seed in range(4):
                    body = {
                        "messages": [{"role": "user", "content": "Hello " * (seed + 1)}],
                        "seed": seed,
                        "max_tokens": 40,
                    }
                    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                        answer = await response.json()
                    choice, usage = answer["choices"][0], answer["usage"]
                    found.append([choice["message"]["content"], choice["finish_reason"]])
                    found.append([usage["prompt_tokens"], usage["completion_tokens"]])
                    async with session.post(
                        f"{url}/v1/chat/completions", json=body | {"stream": True}
                    ) as response:
                        lines = (await response.text()).split("\n\n")[:-2]
                    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
                    found.append("".join(delta.get("content", "") for delta in deltas))
        return found

    with served(tiny_pool(), speed=100.0) as urls:
        return digest_of(urls.loop.run(ask()))


CASES: Cases = {
    "command lines": _commands,
    "prompts": _prompts,
    "metrics": _metrics,
    **{
        f"decisions, {policy}": lambda policy=policy: _decisions(policy)  # type: ignore[misc]
        for policy in ("least_loaded", "bid_price", "lowest_expected_latency")
    },
    "simulated": _simulated,
}
