"""Our kernels serve as vLLM's scheduler decides, the reference step for step.

`make live` records vLLM's decisions anew and draws other scenarios every day; INFRAMIND_LIVE_SEED=N
draws those of day N.
"""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.simulator.vllm_scheduler.agreement import Trace, check, read_traces, recorded_lines
from tests.simulator.vllm_scheduler.rerecord import RECORDED_SCENARIOS, VLLM_PYTHON, record
from tests.simulator.vllm_scheduler.scenarios import random_scenarios

FRESH_SEEDS = 12  # a day
LINES = recorded_lines()
TRACES = read_traces(LINES)
needs_vllm = pytest.mark.skipif(
    not VLLM_PYTHON.exists(), reason=f"no vLLM: {VLLM_PYTHON} is built by `make live`"
)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.scenario["name"])
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
    options = {"policy": policy, "prefix_caching": prefix_caching}
    options["async_scheduling"] = async_scheduling
    mine = [trace for trace in TRACES if options.items() <= trace.scenario["server"].items()]
    decisions = [decision for trace in mine for decision in trace.decisions]
    assert sum(decision.evictions for decision in decisions) >= 20
    assert sum(decision.evictions > 1 for decision in decisions) >= 1
    assert sum(len(decision.admitted) > 1 for decision in decisions) >= 20
    chunks_of_prompts = [
        request["prompt_tokens"] / trace.scenario["server"]["max_num_batched_tokens"]
        for trace in mine
        for request in trace.scenario["requests"]
    ]
    assert max(chunks_of_prompts) > 4
    calls = [call for trace in mine for call in trace.calls]
    found_tokens = [tokens for call in calls for _, tokens in call["admitted"]]
    assert sum(tokens > 0 for tokens in found_tokens) >= 10 * prefix_caching
    assert any(found_tokens) == prefix_caching


@pytest.mark.live
@needs_vllm
def test_the_recording_is_what_vllm_decides() -> None:
    version, *traces = record(RECORDED_SCENARIOS)
    assert version == LINES[0], "another version of vLLM was recorded"
    names = [scenario["name"] for scenario in RECORDED_SCENARIOS]
    differ = [n for n, a, b in zip(names, LINES[1:], traces, strict=True) if a != b]
    assert not differ, "vLLM decides otherwise in these; rerecord.py records it anew"


@pytest.mark.live
@needs_vllm
def test_our_kernels_decide_as_vllm_on_fresh_scenarios() -> None:
    day = int(os.environ.get("INFRAMIND_LIVE_SEED", time.time() // 86400))
    seeds = range(day * FRESH_SEEDS, (day + 1) * FRESH_SEEDS)
    traces = read_traces(record(random_scenarios(seeds)))
    print(f"INFRAMIND_LIVE_SEED={day}: {len(traces)} scenarios")  # shown if one of them fails
    for trace in traces:
        check(trace, day)
