"""Our two kernels held against recorded decisions of vLLM's scheduler: by step, then in time."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.pool import ServerCard, StepCost
from inframind_gym.simulator.server.state import card_record
from tests.simulator.reference import ReferenceKernel, RefRequest, RefServer
from tests.simulator.vllm_scheduler.scenarios import Scenario

RECORDED: Final = Path(__file__).with_name("traces.jsonl.gz")
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


class Decision(NamedTuple):
    """Decisions of a scheduler in one engine step, which computes tokens or at least evicts."""

    admitted: list[int]  # requests in order of admission; evicted ones come back here, too
    evicted: list[int]  # requests that have to start anew, in order of their ids
    # as the server counts them: with async scheduling, a request may be evicted while its last step
    # is computed, and loses nothing
    evictions: int
    finished: list[int]  # requests that emit their last token, in order of their ids
    chunks: dict[int, int]  # tokens computed, of each request that is served


class Trace(NamedTuple):
    """A scenario, and the calls of `schedule` in it as `record.py` writes them."""

    scenario: Scenario
    calls: list[dict[str, Any]]

    @property
    def decisions(self) -> list[Decision]:
        """Without the calls that found nothing to do."""
        found, ended = [], set[int]()
        for call in self.calls:
            evicted = [i for i in call["evicted"] if i not in ended]
            if call["tokens"] or evicted:
                admitted, count = [i for i, _ in call["admitted"]], len(call["evicted"])
                finished, chunks = sorted(call["finished"]), dict(call["tokens"])
                found.append(Decision(admitted, evicted, count, finished, chunks))
            ended.update(call["finished"])
        return found

    def submissions(self, seed: int) -> list[float]:
        """When the requests are submitted (s), where a step takes a second if it computes tokens.

        A request is submitted at a random instant (`seed`) between two calls of `schedule`: the
        last one that did not see it and the one that did.
        """
        rng = np.random.default_rng(seed)
        submit_s = [math.nan] * len(self.scenario["requests"])
        unfinished = 0
        last_s = 0.0  # submission
        start_s = end_s = 0.0  # of the last step that computed something
        unseen_s = seen_s = -1.0  # submissions after the one and not after the other are seen now
        for call in self.calls:
            overlaps, submitted = call["overlaps"], call["submitted"]
            idle = unfinished == 0 and not overlaps
            now_s = start_s if overlaps else end_s + (float(rng.integers(1, 9)) if idle else 0)
            if now_s > seen_s:
                unseen_s, seen_s = seen_s, now_s
            parts = sorted(rng.choice([0.25, 0.5, 0.75], len(submitted)))
            for i, part in zip(submitted, parts, strict=True):
                between_s = unseen_s + float(part) * (seen_s - unseen_s)
                last_s = max(last_s, seen_s if idle else between_s)
                submit_s[i] = last_s
            unfinished += len(submitted) - len(call["finished"])
            if call["tokens"]:
                start_s = max(now_s, end_s)
                end_s = start_s + 1.0
        return submit_s


def read_traces(lines: Iterable[str]) -> list[Trace]:
    """Parse the lines that `record.py` writes: one about vLLM, then one for each scenario."""
    return [Trace(**json.loads(line)) for line in islice(lines, 1, None)]


def recorded_lines() -> list[str]:
    """The lines that are kept with the tests."""
    return gzip.decompress(RECORDED.read_bytes()).decode().splitlines()


def check(trace: Trace, seed: int) -> None:
    """The reference does in every step what vLLM's scheduler did; the compiled kernel agrees.

    The latter jumps over stretches of steps: it is held against the reference's times, also where
    steps have a real cost.
    """
    for cost in (UNIT_STEP, REAL_STEP):
        decisions, expected = reference_run(trace.scenario, cost, trace.submissions(seed))
        if cost is UNIT_STEP:
            assert decisions == trace.decisions, trace.scenario["server"]
        limits = limits_of(trace.scenario)
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
            assert served[field] == pytest.approx(wanted, abs=1e-9), trace.scenario["server"]


def limits_of(scenario: Scenario) -> dict[str, Any]:
    """Settings of our servers beside the cost of a step."""
    return {k: v for k, v in scenario["server"].items() if k != "policy"}


def reference_run(
    scenario: Scenario, cost: StepCost, submit_s: list[float]
) -> tuple[list[Decision], list[RefRequest]]:
    """Decisions of the reference in each step, and the requests as it has served them."""
    kernel = ReferenceKernel([RefServer(**limits_of(scenario), **cost.model_dump())])
    fcfs = scenario["server"]["policy"] == "fcfs"  # one priority for all
    requests = kernel.run(
        RefRequest(
            id=i,
            server=0,
            submit_s=submit_s[i],
            priority=0.0 if fcfs else float(request["priority"]),
            prompt_tokens=request["prompt_tokens"],
            output_tokens=request["output_tokens"],
        )
        for i, request in enumerate(scenario["requests"])
    )
    ends: dict[float, list[int]] = {}
    for request in requests:
        ends.setdefault(request.finish_s, []).append(request.id)
    decisions = [
        Decision(
            admitted=step.admitted,
            evicted=sorted(i for i in step.evicted if requests[i].finish_s > step.start_s),
            evictions=len(step.evicted),
            finished=ends.get(step.end_s, []) if step.scheduled else [],
            chunks=dict(step.scheduled),
        )
        for step in kernel.steps[0]
    ]
    return decisions, requests
