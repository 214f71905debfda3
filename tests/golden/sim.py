"""Frozen results of the simulator: the kernel from outside, backends, the files that it reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
from typer.testing import CliRunner

from inframind_gym.configs import list_configs
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.placement.config import load_cluster, load_demand
from inframind_gym.simulator.server.faults import Fault, Faults
from inframind_gym.simulator.server.open_loop import OpenLoop, replay_requests
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workload import estimates, load_profiles, load_workload
from tests.golden.net import digest_of
from tests.simulator.workflow import backend_play

FAULTS: list[dict[str, Any]] = [
    {"kind": "down", "model": "qwen-14b", "from_s": 5.0, "to_s": 20.0},
    {"kind": "down", "every_s": 15.0, "lasts_s": 10.0},
    {"kind": "slow", "every_s": 10.0, "lasts_s": 10.0, "factor": 2.0},
    {"kind": "telemetry", "every_s": 10.0, "lasts_s": 10.0, "delay_s": 12.0},
]
ARRIVALS: list[Any] = [
    *("poisson", "burst", "diurnal", "mmpp"),
    {"kind": "profile", "rates": [1.0, 4.0, 2.0], "step_s": 7.0},
    {"kind": "burst", "factor": 4, "duration_s": 2, "period_s": 9},
]
ENDED = ("submit_s", "admitted_s", "first_token_s", "request", "evictions")
TRACE = "timestamp,input,output\n0,10,5\n1.5,20,7\n1.5,30,9\n4,8,8\n9.25,100,1\n"
ESTIMATES = (
    "--placing first --gpu H100-80GB:2 --models llama-3.1-8b,qwen2.5-14b:fp8,phi-4:awq",
    "--placing first --gpu B200:4 --models big=llama-3.3-70b:fp8,qwen3-30b-a3b --max-num-seqs 64",
)


def _changes(pool: PoolConfig, key: int) -> np.ndarray[Any, Any]:
    faults = Faults([Fault(**fault) for fault in FAULTS], pool, (1 << len(pool.models)) - 1)
    return faults.changes(key, 60.0)


def _open_loop(name: str) -> str:
    """Digest submissions, aborts and looks at random times."""
    card, rng = cards(load_pool(name)), np.random.default_rng(1)
    loop, seen = OpenLoop(card, 400), []
    flying: list[int] = []
    for _ in range(250):
        until_s = loop.now_s + float(rng.exponential(0.05))
        while len(ended := loop.advance(until_s)):
            seen.append((loop.now_s, [ended[field].tolist() for field in ENDED]))
            flying = [request for request in flying if request not in ended["request"]]
        prompt, output = int(rng.integers(20, 3000)), int(rng.integers(1, 500))
        server, order = int(rng.integers(len(card))), float(rng.integers(1000))
        flying.append(loop.submit(server, order, prompt, output))
        if rng.random() < 0.2:
            loop.abort(flying.pop(int(rng.integers(len(flying)))))
        if rng.random() < 0.3:
            times = loop.look()
            seen.append((*times, loop.tokens[flying], loop.evictions(flying), loop.load(server)))
    while len(ended := loop.advance(1e6)):
        seen.append((loop.now_s, [ended[field].tolist() for field in ENDED]))
    return digest_of(seen)


def _replay(name: str, **arguments: Any) -> str:
    pool, rng, n = load_pool(name), np.random.default_rng(2), 400
    card = cards(pool)
    if arguments.pop("faulty", False):
        arguments["faults"] = _changes(pool, 5)
    order = rng.integers(0, 99, n).astype(float)
    times = np.cumsum(rng.exponential(0.1, n))
    prompt, output = rng.integers(20, 3000, n), rng.integers(1, 500, n)
    server = rng.integers(0, len(card), n)
    return digest_of(replay_requests(card, server, times, prompt, output, order, **arguments))


def _driven(**arguments: Any) -> str:
    """Digest a stream on the surrogate behind the protocol of live servers."""
    _, driven = backend_play.both(arguments.pop("one_query", False), 3, 200.0, **arguments)
    return digest_of([getattr(driven, field) for field in vars(driven)])


def _scripted() -> str:
    def reply(call: backend_play.Call) -> backend_play.Reply:
        return backend_play.Reply(1.0 + call.model, failed=call.id % 7 == 3, right=call.id % 2 == 0)

    outages = (backend_play.Outage(1, 2.0, 9.0), backend_play.Outage(2, 4.0))
    script = backend_play.Scripted(reply, outages=outages, retries=1, num_queries=12)
    sweep = script.play(backend_play.by_node([1, 2, 0]))
    return digest_of([*(getattr(sweep, field) for field in vars(sweep)), script.opened[0].calls])


def _arrivals() -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.csv")
        path.write_text(TRACE)
        kept = {"kind": "trace", "path": str(path), "rescale": False}
        return digest_of(
            [
                make_arrivals(spec).sample(rate, 400, np.random.default_rng(4))
                for spec in (*ARRIVALS, str(path), kept)
                for rate in (3.0, 200.0)
            ]
        )


def _workloads(*draws: str) -> str:
    found = []
    for name in list_configs("workloads"):
        for draw in draws if name not in ("copies", "unseen") else ("",):
            workload = load_workload(name + draw)
            parts = load_profiles(workload).values()
            found += [(w, profile.model_dump(mode="json")) for w, profile in parts]
            found.append((workload.num_queries, workload.rates_per_min, estimates(workload)))
    return digest_of(found)


def _pools() -> str:
    pools = [load_pool(name) for name in list_configs("pools")]
    calls = [model.server.call_s(500.0, 200.0) for pool in pools for model in pool.models]
    return digest_of([[pool.model_dump(mode="json"), cards(pool)] for pool in pools] + [calls])


def _estimate(options: str) -> str:
    from inframind_gym.cli import app

    with TemporaryDirectory() as folder:
        path = Path(folder, "pool.yaml")
        with patch.object(sys, "argv", ["inframind"]):  # which the file names
            done = CliRunner().invoke(app, ["pool", "new", *options.split(), "--out", str(path)])
        assert done.exit_code == 0, done.output
        return digest_of(path.read_text("utf-8"))


def _placement() -> str:
    found: list[Any] = []
    for name in list_configs("placement/clusters"):
        config, models = load_cluster(name)
        found.append([config.model_dump(mode="json"), *(m.model_dump(mode="json") for m in models)])
    found += [
        load_demand(name).model_dump(mode="json") for name in list_configs("placement/demands")
    ]
    return digest_of(found)


CASES: dict[str, Callable[[], str]] = {
    "open loop b200-2gpu": lambda: _open_loop("b200-2gpu"),
    "open loop single-gpu": lambda: _open_loop("single-gpu"),
    "replay b200-2gpu": lambda: _replay("b200-2gpu"),
    "replay timeouts": lambda: _replay("single-gpu", timeout_s=9.0),
    "replay faults": lambda: _replay("b200-2gpu", timeout_s=20.0, faulty=True),
    "changes": lambda: digest_of([_changes(load_pool("b200-2gpu"), key) for key in (1, 2, 3)]),
    "driven": lambda: _driven(level="joint"),
    "driven timeouts": lambda: _driven(call_timeout_s=7.3, call_attempts=2, level="executor"),
    "driven faults": lambda: _driven(faults=FAULTS, call_timeout_s=30.0, call_attempts=2),
    "driven one query": lambda: _driven(one_query=True, execution="sequential", faults=FAULTS),
    "scripted": _scripted,
    "arrivals": _arrivals,
    "workloads": lambda: _workloads(""),
    "workloads, draws": lambda: _workloads("#3"),
    "pools": _pools,
    **{f"estimate {i}": (lambda o=options: _estimate(o)) for i, options in enumerate(ESTIMATES)},
    "clusters and demands": _placement,
}
