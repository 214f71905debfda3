"""vLLM's own scheduler, driven here and now: it decides what was recorded, and what our kernels do.

Run by `make live`. Other scenarios are drawn every day; INFRAMIND_LIVE_SEED=N draws those of day N.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.simulator.vllm_scheduler.agreement import check
from tests.simulator.vllm_scheduler.rerecord import RECORDED_SCENARIOS, VLLM_PYTHON, record
from tests.simulator.vllm_scheduler.scenarios import random_scenarios
from tests.simulator.vllm_scheduler.traces import read_traces, recorded_lines

FRESH_SEEDS = 12  # a day

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        not VLLM_PYTHON.exists(), reason=f"no vLLM: {VLLM_PYTHON} is built by `make live`"
    ),
]


def test_the_recording_is_what_vllm_decides() -> None:
    recorded, (version, *traces) = recorded_lines(), record(RECORDED_SCENARIOS)
    assert version == recorded[0], "another version of vLLM was recorded"
    names = [scenario.name for scenario in RECORDED_SCENARIOS]
    differ = [n for n, a, b in zip(names, recorded[1:], traces, strict=True) if a != b]
    assert not differ, "vLLM decides otherwise in these; rerecord.py records it anew"


def test_our_kernels_decide_as_vllm_on_fresh_scenarios() -> None:
    day = int(os.environ.get("INFRAMIND_LIVE_SEED", time.time() // 86400))
    seeds = range(day * FRESH_SEEDS, (day + 1) * FRESH_SEEDS)
    traces = read_traces(record(random_scenarios(seeds)))
    print(f"INFRAMIND_LIVE_SEED={day}: {len(traces)} scenarios")  # shown if one of them fails
    for trace in traces:
        check(trace, day)
