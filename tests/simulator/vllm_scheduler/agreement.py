"""How our kernels are held against a recorded trace: decision for decision, then in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from inframind_gym.simulator.server.pool import StepCost
from tests.simulator.vllm_scheduler.decisions import first_difference
from tests.simulator.vllm_scheduler.our_kernels import (
    UNIT_STEP,
    compiled_serve,
    reference_run,
)
from tests.simulator.vllm_scheduler.traces import Served, Trace

# Every term of the cost counts, so that hardly a step can pass for another.
REAL_STEP: Final = StepCost(
    base_s=0.011,
    per_seq_s=3e-4,
    per_kv_token_s=7e-6,
    per_new_token_s=9e-5,
    per_attention_unit_s=1e-7,
    sparse_s=0.01,
)


def check_decisions(trace: Trace, seed: int) -> None:
    """The reference does in every step what vLLM's scheduler did."""
    submit_s = [request.submit_s for request in trace.serve(UNIT_STEP, seed)]
    decisions, _ = reference_run(trace.scenario, UNIT_STEP, submit_s)
    difference = first_difference(trace.decisions, decisions, ("vLLM", "reference"))
    if difference:
        pytest.fail(f"{trace.scenario.name}, {trace.scenario.server}: {difference}", pytrace=False)


def check_times(trace: Trace, seed: int) -> None:
    """Both kernels serve requests when vLLM's steps would at a real cost, stretches merged."""
    expected = trace.serve(REAL_STEP, seed)
    submit_s = [request.submit_s for request in expected]
    _compare_served(trace, expected, compiled_serve(trace.scenario, REAL_STEP, submit_s), "kernel")
    _, served = reference_run(trace.scenario, REAL_STEP, submit_s)
    _compare_served(trace, expected, served, "reference")


def _compare_served(
    trace: Trace, expected: Sequence[Served], actual: Sequence[Served], name: str
) -> None:
    for i, (want, have) in enumerate(zip(expected, actual, strict=True)):
        times_s = [(r.admitted_s, r.first_token_s, r.finish_s) for r in (want, have)]
        if want.evictions != have.evictions or times_s[1] != pytest.approx(times_s[0], abs=1e-9):
            pytest.fail(
                f"{trace.scenario.name}, {trace.scenario.server}: request {i} is not served alike"
                f"\n  vLLM: {want}\n  {name}: {have}",
                pytrace=False,
            )
