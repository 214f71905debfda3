"""Our two kernels on recorded scenarios, held against the trace: step for step, then in time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pytest

from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.state import card_record
from tests.simulator.reference import ReferenceKernel, RefRequest, RefServer
from tests.simulator.vllm_scheduler.scenarios import Scenario
from tests.simulator.vllm_scheduler.traces import Decision, Trace

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


def check(trace: Trace, seed: int) -> None:
    """The reference does in every step what vLLM's scheduler did; the compiled kernel agrees.

    The latter jumps over stretches of steps: it is held against the reference's times, also where
    steps have a real cost.
    """
    scenario, submit_s = trace.scenario, trace.submissions(seed)
    decisions, expected = reference_run(scenario, UNIT_STEP, submit_s)
    assert decisions == trace.decisions, scenario.server
    check_times(scenario, UNIT_STEP, expected)
    check_times(scenario, REAL_STEP, reference_run(scenario, REAL_STEP, submit_s)[1])


def check_times(scenario: Scenario, cost: StepCost, expected: list[RefRequest]) -> None:
    """The compiled kernel serves the requests when the reference did."""
    limits = limits_of(scenario)
    max_model_len = (limits["num_kv_blocks"] - 1) * limits["block_size"]
    served = replay_requests(
        card_record(ServerCard(**limits, max_model_len=max_model_len, step=cost)),
        np.zeros(len(expected)),
        [request.submit_s for request in expected],
        [request.prompt_tokens for request in expected],
        [request.output_tokens for request in expected],
        [request.priority for request in expected],
    )
    for field in served.dtype.names or ():
        wanted = [getattr(request, field) for request in expected]
        assert served[field] == pytest.approx(wanted, abs=1e-9), scenario.server


def limits_of(scenario: Scenario) -> dict[str, Any]:
    """Settings of our servers beside the cost of a step."""
    return {k: v for k, v in asdict(scenario.server).items() if k != "policy"}


def reference_run(
    scenario: Scenario, cost: StepCost, submit_s: list[float]
) -> tuple[list[Decision], list[RefRequest]]:
    """Decisions of the reference in each step, and the requests as it has served them."""
    kernel = ReferenceKernel([RefServer(**limits_of(scenario), **cost.model_dump())])
    fcfs = scenario.server.policy == "fcfs"  # one priority for all
    requests = kernel.run(
        RefRequest(
            id=i,
            server=0,
            submit_s=submit_s[i],
            priority=0.0 if fcfs else float(request.priority),
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
        )
        for i, request in enumerate(scenario.requests)
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
    return decisions, requests
