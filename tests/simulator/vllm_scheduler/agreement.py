"""Our two kernels on recorded scenarios, held against the trace: step for step, then in time."""

from __future__ import annotations

from dataclasses import asdict, astuple
from typing import Any, Final

import numpy as np
import pytest

from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.state import card_record
from tests.simulator.reference import ReferenceKernel, RefRequest, RefServer
from tests.simulator.vllm_scheduler.scenarios import Scenario
from tests.simulator.vllm_scheduler.traces import Decision, Served, Trace

UNIT_STEP: Final = StepCost(base_s=1.0)  # every step takes a second
# Every term of the cost counts, so that hardly a step can pass for another.
REAL_STEP: Final = StepCost(
    base_s=0.011,
    per_seq_s=3e-4,
    per_kv_token_s=7e-6,
    per_new_token_s=9e-5,
    per_attention_unit_s=1e-7,
    sparse_s=0.01,
    roofline_power=4.0,
)


def check_decisions(trace: Trace, seed: int) -> None:
    """The reference does in every step what vLLM's scheduler did."""
    submit_s = [request.submit_s for request in trace.serve(UNIT_STEP, seed)]
    decisions, _ = reference_run(trace.scenario, UNIT_STEP, submit_s)
    assert decisions == trace.decisions, trace.scenario.server


def check_times(trace: Trace, seed: int) -> None:
    """Both kernels serve requests when vLLM's steps would at a real cost, stretches merged."""
    scenario, expected = trace.scenario, trace.serve(REAL_STEP, seed)
    submit_s = [request.submit_s for request in expected]
    _, by_reference = reference_run(scenario, REAL_STEP, submit_s)
    for served in (compiled_serve(scenario, REAL_STEP, submit_s), by_reference):
        for want, have in zip(expected, served, strict=True):
            assert astuple(have) == pytest.approx(astuple(want), abs=1e-9), scenario.server


def priorities(scenario: Scenario) -> list[float]:
    """What the kernels are told: first come, first served is one priority for all."""
    fcfs = scenario.server.policy == "fcfs"
    return [0.0 if fcfs else float(request.priority) for request in scenario.requests]


def limits_of(scenario: Scenario) -> dict[str, Any]:
    """Settings of our servers beside the cost of a step."""
    return {k: v for k, v in asdict(scenario.server).items() if k != "policy"}


def compiled_serve(scenario: Scenario, cost: StepCost, submit_s: list[float]) -> list[Served]:
    """The requests' fates according to the compiled kernel, which jumps over stretches of steps."""
    limits = limits_of(scenario)
    max_model_len = (limits["num_kv_blocks"] - 1) * limits["block_size"]
    out = replay_requests(
        card_record(ServerCard(**limits, max_model_len=max_model_len, step=cost)),
        np.zeros(len(submit_s)),
        submit_s,
        [request.prompt_tokens for request in scenario.requests],
        [request.output_tokens for request in scenario.requests],
        priorities(scenario),
    )
    return [Served(at_s, *row.item()) for at_s, row in zip(submit_s, out, strict=True)]


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
            chunks=dict(step.scheduled),
        )
        for step in kernel.steps[0]
    ]
    served = [
        Served(r.submit_s, r.admitted_s, r.first_token_s, r.finish_s, r.evictions) for r in requests
    ]
    return decisions, served
