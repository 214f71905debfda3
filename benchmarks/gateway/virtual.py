"""Decisions of the gateway in virtual time: its desk in front of the kernel, without HTTP.

Load, lengths and scores are those of `goodput`; all servers are up, and no poll is missed.
"""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.gateway.load import HEAD, Load, Outcome, PoolOption, show
from inframind_gym.live.gateway.config import GatewayConfig
from inframind_gym.live.gateway.desk import Desk, World
from inframind_gym.live.simulated.lengths import AnswerLengths
from inframind_gym.simulator.server.open_loop import OpenLoop
from inframind_gym.simulator.server.pool import PoolConfig, load_pool
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.backend import Telemetry
from inframind_gym.simulator.workflow.topology import STRATEGIES
from inframind_gym.simulator.workload import load_workload

_PROMPT_TOKENS: Final = 145  # of `processes.QUESTION` with an instruction
_MOST_REQUESTS: Final = 16_384
_DRAIN_S: Final = 1200.0  # after the last arrival


@dataclass
class _Call:
    """A call on its way."""

    out: Outcome
    gateway: int
    server: int
    arrival_s: float
    tokens: int
    priority_s: float


@dataclass
class Log:
    """Request log of loads that follow one another."""

    file: IO[str]
    began_s: float = 0.0  # of the load that is played

    def write(self, call: _Call, first_token_s: float) -> None:
        """Write the line of a call that is over."""
        end_s = call.arrival_s + call.out.latency_s
        times_s = {"sent_ts": call.arrival_s, "first_token_ts": first_token_s, "end_ts": end_s}
        times_s |= {"last_token_ts": end_s, "priority": call.priority_s}
        line: dict[str, Any] = {"model": call.out.model, "status": "ok"}
        line |= {"input_toks": _PROMPT_TOKENS, "output_toks": call.tokens}
        line |= {name: self.began_s + at_s for name, at_s in times_s.items()}
        self.file.write(json.dumps(line) + "\n")


@dataclass
class _Servers:
    """Simulated servers of a pool, and what was polled of them last."""

    pool: PoolConfig
    log: Log | None
    loop: OpenLoop = field(init=False)
    telemetry: Telemetry = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.pool.models)
        self.loop = OpenLoop(cards(self.pool), _MOST_REQUESTS)
        self.telemetry = Telemetry(
            0, [0.0] * count, [0.0] * count, [math.nan] * count, [0.0] * count
        )
        self.calls: dict[int, _Call] = {}
        self.took_s: list[list[float]] = [[] for _ in range(count)]  # since the last poll

    def run(self, until_s: float, in_flight: list[NDArray[np.int64]]) -> None:
        """Let time run, with polls when they are due."""
        poll_s = self.pool.metrics_poll_s
        while True:
            due_s = (self.telemetry.polls + 1) * poll_s
            while len(ended := self.loop.advance(min(due_s, until_s))):
                for request, first_s in ended[["request", "first_token_s"]].tolist():
                    call = self.calls.pop(request)
                    latency_s = self.loop.now_s - call.arrival_s
                    call.out.status, call.out.latency_s = 200, latency_s
                    in_flight[call.gateway][call.server] -= 1
                    self.took_s[call.server].append(latency_s)
                    if self.log is not None:
                        self.log.write(call, first_s)
            if due_s > until_s:
                return
            self._poll(due_s)

    def _poll(self, now_s: float) -> None:
        loads = [self.loop.load(m) for m in range(len(self.took_s))]
        e2e_s = [
            float(np.mean(took_s)) if took_s else before_s
            for took_s, before_s in zip(self.took_s, self.telemetry.e2e_s, strict=True)
        ]
        self.took_s = [[] for _ in loads]
        self.telemetry = Telemetry(
            polls=self.telemetry.polls + 1,
            taken_s=[now_s] * len(loads),
            depth_req=[float(running + waiting) for running, waiting, _ in loads],
            e2e_s=e2e_s,
            kv_frac=[kv_frac for _, _, kv_frac in loads],
        )


def play(
    load: Load, desks: list[Desk], pool: PoolConfig, lengths: AnswerLengths, log: Log | None
) -> list[Outcome]:
    """Send a load through gateways in turn; returns what became of each request."""
    servers, everything = _Servers(pool, log), (1 << len(pool.models)) - 1
    in_flight = [np.zeros(len(pool.models), np.int64) for _ in desks]
    found = []
    for k, arrival_s in enumerate(load.arrival_s.tolist()):
        servers.run(arrival_s, in_flight)
        g, out = k % len(desks), Outcome(float(load.budget_s[k]), str(load.domain[k]))
        world = World(arrival_s, everything, in_flight[g], servers.telemetry)
        order = desks[g].decide(world, arrival_s, out.budget_s, out.domain)
        out.model, out.strategy = pool.aliases[order.model], STRATEGIES[order.strategy]
        tokens = min(lengths.draw(order.model, f"{k}", out.strategy), pool.max_output_tokens)
        request = servers.loop.submit(order.model, order.priority_s, _PROMPT_TOKENS, tokens)
        call = _Call(out, g, order.model, arrival_s, tokens, order.priority_s)
        servers.calls[request] = call
        in_flight[g][order.model] += 1
        found.append(out)
    servers.run(arrival_s + _DRAIN_S, in_flight)
    if log is not None:
        log.began_s += arrival_s + _DRAIN_S
    return found


def virtual(
    trace: Annotated[Path | None, typer.Option(help="CSV of arrivals; else Poisson.")] = None,
    pool: PoolOption = "b200-2gpu",
    workload: str = "mixed",
    per_min: Annotated[str, typer.Option(help="Rates, with commas.")] = "200,400",
    minutes: float = 30.0,
    policies: str = "round_robin,least_loaded,lowest_expected_latency,bid_price",
    gateways: Annotated[int, typer.Option(help="Side by side, each with its own view.")] = 1,
    believed: Annotated[
        str | None, typer.Option(help="Pool whose server cards gateways believe; else the true.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Loads, each with its own seed.")] = 3,
    record: Annotated[
        Path | None, typer.Option(help="Log of all requests, as `inframind calibrate` reads it.")
    ] = None,
) -> None:
    """Goodput as `goodput` has it, in virtual time: on any machine, however busy it is."""
    true = load_pool(pool)
    lengths = AnswerLengths(load_workload(workload), true.aliases)
    print(HEAD)
    with contextlib.ExitStack() as stack:
        log = None if record is None else Log(stack.enter_context(record.open("w")))
        for policy in policies.split(","):
            config = GatewayConfig(pool=believed or pool, workload=workload, policy=policy)
            for rate in map(float, per_min.split(",")):
                found = []
                for seed in range(repeats):
                    load = Load(workload, trace, rate, int(rate * minutes), 1.0, seed=seed)
                    desks = [Desk(config) for _ in range(gateways)]
                    found += play(load, desks, true, lengths, log)
                show(f"{rate:g}/min, {policy[-18:]}", found, true, workload)
