"""Live servers and the gateway: command lines, prompts, streams, metrics, decisions."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gateway_load import Load, play
from inframind_gym.errors import InfraMindError
from inframind_gym.live.client import ChatResult, ChatStream
from inframind_gym.live.gateway.choose import SingleCallPolicy
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.prompts import Prompts
from inframind_gym.live.server_command import server_command
from inframind_gym.live.simulated.answers import AnswerLengths
from inframind_gym.live.watcher import parse_metrics
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.backend import Call
from inframind_gym.simulator.workload import load_workload
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


def _piece(delta: Any, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def _streams() -> str:
    """Results of streams that end well, short, with errors and with nonsense."""
    role = _piece({"role": "assistant", "content": ""})
    done = b"data: [DONE]\n\n"
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    times = {"time_to_first_token_ms": 20.0, "queue_time_ms": 5.0}
    scripts: list[tuple[bytes, ...]] = [
        (role, _piece({"content": "It is"}), _piece({"content": " 42"}, "stop"), done),
        (role, _piece({"content": "a"}, "length", usage=usage, metrics=times), done),
        (role, _piece({"content": "a"}, "abort"), done),
        (role, _piece({"content": "a"})),
        (role, b'data: {"error": {"message": "EngineCore died"}}\n\n', done),
        (b": ping\n\n", _piece({"content": "\ud83d"}), _piece({"content": "\ude00"}, "stop"), done),
        (_piece({"content": "x"}, "stop", usage={"completion_tokens": -4}), done),
        (_piece({"content": 5}), done),
        (b"data: {<html>\n\n", done),
        (b"da", b"ta: " + _piece({"content": "split"}, "stop")[6:], done),
    ]
    found = []
    for script in scripts:
        stream, result = ChatStream(16), ChatResult(0.0)
        try:
            for i, data in enumerate(script):
                stream.feed(data, float(i))
        except InfraMindError as error:
            stream.error = str(error)
        stream.write(result)
        found.append(asdict(result))
    return digest_of(found)


def _metrics() -> str:
    reading = asdict(parse_metrics(_METRICS.read_text(encoding="utf-8"), 0.0))
    names = ("running_req", "waiting_req", "kv_frac", "asleep", "e2e_s", "finished_req")
    return json.dumps({name: reading[name] for name in names})


def _decisions(policy: str) -> str:
    """Routes that the gateway takes under a load in virtual time."""
    pool = load_pool("b200-2gpu")
    lengths = AnswerLengths(load_workload("mixed"), pool.aliases)
    load = Load("mixed", None, 240.0, 60, 1.0, seed=3)
    found = play(load, [SingleCallPolicy(GatewayConfig(policy=policy))], pool, lengths)
    assert all(math.isfinite(out.latency_s) for out in found)
    return digest_of([(out.model, out.strategy, out.latency_s) for out in found])


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
    "streams": _streams,
    "metrics": _metrics,
    **{
        f"decisions, {policy}": lambda policy=policy: _decisions(policy)  # type: ignore[misc]
        for policy in ("least_loaded", "bid_price", "lowest_expected_latency")
    },
    "simulated": _simulated,
}
