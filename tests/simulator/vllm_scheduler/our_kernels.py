"""Our two kernels on recorded scenarios: the compiled one and the reference."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.replay import replay_requests
from inframind_gym.simulator.server.state import card_record
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
