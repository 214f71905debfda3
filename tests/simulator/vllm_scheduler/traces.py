"""Recorded decisions of vLLM's scheduler: the file, what is in it, and when requests came."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.simulator.vllm_scheduler.scenarios import Scenario, from_json

RECORDED: Final = Path(__file__).with_name("traces.jsonl.gz")


@dataclass(frozen=True)
class Decision:
    """Decisions of a scheduler in one engine step, which computes tokens or at least evicts."""

    admitted: tuple[int, ...]  # requests in order of admission; evicted ones come back here, too
    evicted: tuple[int, ...]  # requests that have to start anew, in order of their ids
    # as the server counts them: with async scheduling, a request may be evicted while its last step
    # is computed, and loses nothing
    evictions: int
    finished: tuple[int, ...]  # requests that emit their last token, in order of their ids
    chunks: dict[int, int]  # tokens computed, of each request that is served
    # tokens in the cache after the step, of each request that is served; the reference tells none
    computed: dict[int, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Call:
    """One call of vLLM's `schedule`."""

    submitted: tuple[int, ...]  # requests handed in since the last call
    overlaps: bool  # with the computation of the step before: async scheduling
    decision: Decision


@dataclass(frozen=True)
class Trace:
    """A scenario, and all that vLLM's scheduler decided in it."""

    scenario: Scenario
    calls: tuple[Call, ...]

    @property
    def decisions(self) -> list[Decision]:
        """Without the calls that found nothing to do."""
        return [c.decision for c in self.calls if c.decision.chunks or c.decision.evicted]

    def submissions(self, seed: int) -> list[float]:
        """When the requests are submitted (s), where a step takes a second if it computes tokens.

        A request is submitted at a random instant (`seed`) between two calls of `schedule`: the
        last one that did not see it and the one that did.
        """
        rng = np.random.default_rng(seed)
        submit_s = [math.nan] * len(self.scenario.requests)
        unfinished = 0
        last_s = 0.0  # submission
        start_s = end_s = 0.0  # of the last step that computed something
        unseen_s = seen_s = -1.0  # submissions after the one and not after the other are seen now
        for call in self.calls:
            idle = unfinished == 0 and not call.overlaps
            now_s = start_s if call.overlaps else end_s + (float(rng.integers(1, 9)) if idle else 0)
            if now_s > seen_s:
                unseen_s, seen_s = seen_s, now_s
            parts = sorted(rng.choice([0.25, 0.5, 0.75], len(call.submitted)))
            for i, part in zip(call.submitted, parts, strict=True):
                between_s = unseen_s + float(part) * (seen_s - unseen_s)
                last_s = max(last_s, seen_s if idle else between_s)
                submit_s[i] = last_s
            unfinished += len(call.submitted) - len(call.decision.finished)
            if call.decision.chunks:
                start_s = max(now_s, end_s)
                end_s = start_s + 1.0
        return submit_s


def read_traces(lines: Iterable[str]) -> list[Trace]:
    """Parse the lines that `record.py` writes: one about vLLM, then one for each scenario."""
    return [_read_trace(json.loads(line)) for line in islice(lines, 1, None)]


def recorded_lines() -> list[str]:
    """The lines that are kept with the tests."""
    return gzip.decompress(RECORDED.read_bytes()).decode().splitlines()


def _read_trace(fields: dict[str, Any]) -> Trace:
    cached: dict[int, int] = {}  # tokens in the cache, by request
    ended: set[int] = set()
    calls = []
    for call in fields["calls"]:
        chunks = dict(call["tokens"])
        cached |= dict(call["admitted"])
        for i, chunk in chunks.items():
            cached[i] += chunk
        decision = Decision(
            admitted=tuple(i for i, _ in call["admitted"]),
            evicted=tuple(i for i in call["evicted"] if i not in ended),
            evictions=len(call["evicted"]),
            finished=tuple(sorted(call["finished"])),
            chunks=chunks,
            computed={i: cached[i] for i in chunks},
        )
        ended.update(call["finished"])
        calls.append(Call(tuple(call["submitted"]), call["overlaps"], decision))
    return Trace(from_json(fields["scenario"]), tuple(calls))
