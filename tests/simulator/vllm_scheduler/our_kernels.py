"""Our two kernels on recorded scenarios: the compiled one and the reference."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import jit
from inframind_gym.simulator.server.engine import (
    cut_short,
    finish_stretch,
    flush,
    release_request,
    reset_cluster,
    submit,
)
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import (
    DIRTY,
    FAR_CLOCK,
    NEVER_S,
    Cluster,
    allocate,
    card_record,
)
from tests.simulator.reference.kernel import ReferenceKernel, RefRequest, RefServer
from tests.simulator.vllm_scheduler.decisions import Decision
from tests.simulator.vllm_scheduler.scenarios import Scenario
from tests.simulator.vllm_scheduler.traces import Served

UNIT_STEP = StepCost(base_s=1.0)  # every step takes a second


def priorities(scenario: Scenario) -> list[float]:
    """What the kernels are told: first come, first served is one priority for all."""
    fcfs = scenario.server.policy == "fcfs"
    return [0.0 if fcfs else float(request.priority) for request in scenario.requests]


def card_of(scenario: Scenario, cost: StepCost) -> NDArray[Any]:
    """The scenario's server as an array (1,) of CARD records."""
    limits = limits_of(scenario)
    max_model_len = (limits["num_kv_blocks"] - 1) * limits["block_size"]
    return card_record(ServerCard(**limits, max_model_len=max_model_len, step=cost))


def limits_of(scenario: Scenario) -> dict[str, Any]:
    """Settings of our servers beside the cost of a step."""
    return {k: v for k, v in asdict(scenario.server).items() if k != "policy"}


# --- the compiled kernel --------------------------------------------------------------------------


def compiled_serve(scenario: Scenario, cost: StepCost, submit_s: list[float]) -> list[Served]:
    """The requests' fates according to the compiled kernel, which jumps over stretches of steps."""
    out = replay_requests(
        card_of(scenario, cost),
        np.zeros(len(submit_s)),
        submit_s,
        [request.prompt_tokens for request in scenario.requests],
        [request.output_tokens for request in scenario.requests],
        priorities(scenario),
    )
    return [Served(at_s, *row.item()) for at_s, row in zip(submit_s, out, strict=True)]


def compiled_decisions(scenario: Scenario, submit_s: list[float], max_steps: int) -> list[Decision]:
    """What the compiled kernel decides in each step, when every step takes a second.

    Stops after `max_steps`, should the kernel never come to an end.
    """
    count = len(scenario.requests)
    new_tokens, server_evictions = np.zeros((2, max_steps), np.int64)
    place, computed, evictions, finished = (
        np.full((max_steps, count), value) for value in (-1, 0, 0, 0)
    )
    steps = _run_step_by_step(
        allocate(card_of(scenario, UNIT_STEP), 1, count),
        np.asarray(submit_s),
        np.asarray([request.prompt_tokens for request in scenario.requests]),
        np.asarray([request.output_tokens for request in scenario.requests]),
        np.asarray(priorities(scenario)),
        new_tokens,
        server_evictions,
        place,
        computed,
        evictions,
        finished,
    )
    evictions = np.maximum.accumulate(evictions)  # nothing is written of those that are done
    decisions = []
    cached = dict.fromkeys(range(count), 0)  # tokens in the cache, by request
    evictions_before = np.zeros(count, np.int64)
    for step in range(steps):
        running = [int(i) for i in np.argsort(place[step]) if place[step, i] >= 0]
        evicted = tuple(np.flatnonzero(evictions[step] > evictions_before).tolist())
        cached |= dict.fromkeys(evicted, 0)
        after = {i: int(computed[step, i]) for i in running}
        decisions.append(
            Decision(
                admitted=tuple(i for i in running if cached[i] == 0),
                evicted=evicted,
                evictions=int(server_evictions[step] - server_evictions[step - 1] * (step > 0)),
                finished=tuple(np.flatnonzero(finished[step]).tolist()),
                new_tokens=int(new_tokens[step]),
                computed={i: tokens for i, tokens in after.items() if tokens > cached[i]},
            )
        )
        cached |= after
        evictions_before = evictions[step]
    return decisions


@jit
def _run_step_by_step(
    cluster: Cluster,
    submit_s: NDArray[np.float64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    priority: NDArray[np.float64],
    new_tokens: NDArray[np.int64],
    server_evictions: NDArray[np.int64],
    place: NDArray[np.int64],
    computed: NDArray[np.int64],
    evictions: NDArray[np.int64],
    finished: NDArray[np.int64],
) -> int:
    """Run server 0 with every stretch cut to one step, and write down a row for each.

    Args:
        cluster: One environment with one server.
        submit_s: (n,) when the requests come, as are their fields in the next three arguments.
        prompt_tokens: (n,).
        output_tokens: (n,).
        priority: (n,).
        new_tokens: (steps,) out: tokens computed.
        server_evictions: (steps,) out: what the server has counted so far.
        place: (steps, n) out: place of a running request in order of admission.
        computed: (steps, n) out: tokens in the cache after the step, of a running request.
        evictions: (steps, n) out: how often a request was evicted so far.
        finished: (steps, n) out: 1 if a request ended with the step.

    Returns:
        The number of steps.
    """
    reset_cluster(cluster, 0)
    server = cluster.server[0, 0]
    arrived = 0
    now_s = 0.0
    step = 0
    while step < len(new_tokens):
        end_s = cluster.end_s[0, 0]
        arrival_s = submit_s[arrived] if arrived < len(submit_s) else NEVER_S
        next_s = min(end_s, arrival_s)
        if cluster.counts[0, DIRTY] and next_s > now_s:
            flush(cluster, 0, now_s)
            cut_short(cluster, 0, 0, now_s, 0)
            new_tokens[step] = server.lead_tokens if server.lead else server.decoders
            server_evictions[step] = server.evictions
            for i in range(server.running):
                request = cluster.request[0, cluster.running[0, 0, i]]
                place[step, request.query] = i
                evictions[step, request.query] = request.evictions
                computed[step, request.query] = request.computed
                if cluster.finish_clock[0, 0, i] != FAR_CLOCK:
                    computed[step, request.query] = cluster.base_tokens[0, 0, i] + server.clock + 1
            for i in range(server.waiting):
                request = cluster.request[0, cluster.waiting[0, 0, i].request]
                evictions[step, request.query] = request.evictions
            continue
        if next_s == NEVER_S:
            break
        now_s = next_s
        if end_s <= arrival_s:
            for i in range(finish_stretch(cluster, 0, 0, now_s)):
                finished[step, cluster.request[0, cluster.done[i]].query] = 1
                release_request(cluster, 0, cluster.done[i])
            step += 1
        else:
            identity = submit(
                cluster,
                0,
                0,
                now_s,
                priority[arrived],
                prompt_tokens[arrived],
                output_tokens[arrived],
            )
            cluster.request[0, identity].query = arrived
            arrived += 1
    return step


# --- the reference --------------------------------------------------------------------------------


def reference_run(
    scenario: Scenario, cost: StepCost, submit_s: list[float]
) -> tuple[list[Decision], list[Served]]:
    """What the reference decides in each step, and the requests' fates."""
    kernel = ReferenceKernel([RefServer(**limits_of(scenario), **cost.model_dump())])
    requests = kernel.run(
        RefRequest(
            id=i,
            server=0,
            submit_s=submit_s[i],
            priority=priority,
            prompt_tokens=scenario.requests[i].prompt_tokens,
            output_tokens=scenario.requests[i].output_tokens,
        )
        for i, priority in enumerate(priorities(scenario))
    )
    ends: dict[float, list[int]] = {}
    for request in requests:
        ends.setdefault(request.finish_s, []).append(request.id)
    decisions = [
        Decision(
            admitted=tuple(step.admitted),
            evicted=tuple(sorted(i for i in step.evicted if requests[i].finish_s > step.start_s)),
            evictions=len(step.evicted),
            finished=tuple(ends.get(step.end_s, ()) if step.scheduled else ()),
            new_tokens=sum(tokens for _, tokens in step.scheduled),
            chunks=dict(step.scheduled),
        )
        for step in kernel.steps[0]
    ]
    served = [
        Served(r.submit_s, r.admitted_s, r.first_token_s, r.finish_s, r.evictions) for r in requests
    ]
    return decisions, served
