"""Our kernels serve as vLLM's scheduler decided when it was recorded, the reference step for step.

`make live` records anew (`test_live.py`).
"""

from __future__ import annotations

import json

import pytest

from tests.simulator.vllm_scheduler.agreement import check
from tests.simulator.vllm_scheduler.rerecord import RECORDED_SCENARIOS
from tests.simulator.vllm_scheduler.traces import Trace, read_traces, recorded_lines

LINES = recorded_lines()
TRACES = read_traces(LINES)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.scenario.name)
def test_our_kernels_decide_as_vllm(trace: Trace) -> None:
    check(trace, seed=1)


def test_the_recording_is_of_these_scenarios_and_one_version() -> None:
    assert [trace.scenario for trace in TRACES] == RECORDED_SCENARIOS
    assert json.loads(LINES[0]) == {"vllm": "0.32.0"}


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_the_recording_has_what_is_hard(
    policy: str, prefix_caching: bool, async_scheduling: bool
) -> None:
    options = (policy, prefix_caching, async_scheduling)
    decisions = []
    chunks_of_prompts = []
    found_tokens = []
    for trace in TRACES:
        server = trace.scenario.server
        if (server.policy, server.prefix_caching, server.async_scheduling) != options:
            continue
        decisions += trace.decisions
        for request in trace.scenario.requests:
            chunks_of_prompts.append(request.prompt_tokens / server.max_num_batched_tokens)
        for decision in trace.decisions:
            found_tokens += [decision.computed[i] - decision.chunks[i] for i in decision.admitted]
    assert sum(decision.evictions for decision in decisions) >= 20
    assert sum(decision.evictions > 1 for decision in decisions) >= 1
    assert sum(len(decision.admitted) > 1 for decision in decisions) >= 20
    assert max(chunks_of_prompts) > 4
    assert sum(tokens > 0 for tokens in found_tokens) >= 10 * prefix_caching
    assert any(found_tokens) == prefix_caching
