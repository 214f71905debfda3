"""What the watcher knows of one server, for people and exporters."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from inframind_gym.live.vllm.metrics import Means, Reading
from inframind_gym.live.vllm.settings import ServerAddress


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What is known of one server.

    Times in s are means over the requests that finished between the last two readings between which
    any did; NaN: none yet.
    """

    alias: str
    url: str
    up: bool
    asleep: bool
    listens: bool  # something takes connections at its address
    reason: str  # why it is down, in words; empty where it is up
    age_s: float  # of the metrics; inf: never read
    running_req: float
    waiting_req: float
    kv_frac: float  # 0..1
    mean_s: Mapping[str, float]  # e2e, ttft, itl, queue, prefill, decode, inference
    counters: Mapping[str, float]  # since its start: preemptions, prompt_tokens, generation_tokens
    finished: Mapping[str, float]  # requests since its start, by reason

    @classmethod
    def of(
        cls,
        address: ServerAddress,
        reading: Reading | None,
        means: Means,
        *,
        up: bool,
        asleep: bool,
        listens: bool,
        reason: str,
    ) -> ServerStatus:
        """The status of a server whose metrics were read last as `reading`; None: never yet."""
        return cls(
            alias=address.alias,
            url=address.url,
            up=up,
            asleep=asleep,
            listens=listens,
            reason=reason,
            age_s=time.monotonic() - reading.taken_s if reading else math.inf,
            running_req=reading.running_req if reading else 0.0,
            waiting_req=reading.waiting_req if reading else 0.0,
            kv_frac=reading.kv_frac if reading else 0.0,
            mean_s=dict(means.of),
            counters=dict(reading.counters) if reading else {},
            finished=dict(reading.finished) if reading else {},
        )
