"""Metrics of servers: gauges and latencies as vLLM's /metrics shows them, and their normalisation.

Latency is observed when a request finishes, so it does not show queued work; it is averaged over
the requests that finished between two polls. A reading can arrive some polls later (`faults`).
`note` normalises the metrics of simulated and of live servers; observations are written from its
latest results.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.server.engine import steps_begun
from inframind_gym.simulator.server.scheduler import blocks_held
from inframind_gym.simulator.server.state import E2E, KV, NEVER_S, QUEUE, TAKEN, Cluster

LOG_SCALE = math.log(300.0)  # 300 s are 1 on the logarithmic scale of time features
IN_FLIGHT = 3  # telemetry feature after QUEUE, E2E and KV: counted by the router, not polled
NO_NEWS = -1
_ONE = np.uint32(1)


@inner
def note(seen: Any, e: int, m: int, reading: Any, settings: Any) -> None:
    """Write a reading of one server's metrics into `seen`, normalised.

    Args:
        seen: (E, 3, M) float32. QUEUE: depth / queue_norm, clipped at queue_high; E2E:
            log(1 + s) / log 300; KV: share of the cache in use.
        reading: (3 or more, M) requests, seconds and share. Seconds are the mean latency of the
            requests that finished between two readings, NaN where none did: the last is held.
        settings: record with queue_norm and queue_high.
    """
    depth = reading[QUEUE, m] / settings.queue_norm
    seen[e, QUEUE, m] = np.float32(min(depth, settings.queue_high))
    e2e_s = reading[E2E, m]
    if e2e_s == e2e_s:  # not NaN
        seen[e, E2E, m] = np.float32(math.log(1.0 + e2e_s) / LOG_SCALE)
    seen[e, KV, m] = np.float32(reading[KV, m])


@inner
def read_metrics(cluster: Cluster, e: int, now_s: float, polls: int, with_kv: bool) -> None:
    """Read the metrics of the servers that are up, in poll number `polls`; they may arrive later.

    A server that is down keeps its last reading. The use of the cache is counted only if it is
    observed (`with_kv`), because that takes a loop over all running requests.
    """
    readings = cluster.reading.shape[1]
    slot, before = polls % readings, (polls - 1) % readings
    for m in range(cluster.card.shape[0]):
        for value in range(cluster.reading.shape[2]):
            cluster.reading[e, slot, value, m] = cluster.reading[e, before, value, m]
        if cluster.condition[e, m].down == 1:
            continue
        server = cluster.server[e, m]
        cluster.reading[e, slot, TAKEN, m] = now_s
        cluster.reading[e, slot, QUEUE, m] = server.running + server.waiting
        count = server.finished - server.polled_finished
        if count > 0:
            sum_s = server.e2e_sum_s - server.polled_e2e_sum_s
            cluster.reading[e, slot, E2E, m] = sum_s / count
        server.polled_finished = server.finished
        server.polled_e2e_sum_s = server.e2e_sum_s
        cluster.reading[e, slot, KV, m] = kv_frac(cluster, e, m, now_s) if with_kv else 0.0


@inner
def kv_frac(cluster: Cluster, e: int, m: int, now_s: float) -> float:
    """Return the share of the KV blocks in use at `now_s`, as `vllm:kv_cache_usage_perc`."""
    server = cluster.server[e, m]
    if server.running == 0:
        return 0.0
    clock = int(server.clock)
    if cluster.end_s[e, m] != NEVER_S and server.steps > 0:
        clock += steps_begun(server, now_s)
    return blocks_held(cluster, e, m, clock) / float(cluster.card[m].usable_blocks)


kv_use: Final = jit(kv_frac)  # for callers in Python


@inner
def news_of(cluster: Cluster, e: int, m: int, polls: int) -> int:
    """Return the index of a server's reading that has arrived since the last call, or NO_NEWS."""
    condition = cluster.condition[e, m]
    newest = polls - condition.late_polls
    if newest <= condition.shown:
        return NO_NEWS
    condition.shown = newest
    slot = newest % cluster.reading.shape[1]
    condition.taken_s = cluster.reading[e, slot, TAKEN, m]
    return int(slot)


@inner
def show_news(cluster: Cluster, e: int, m: int, polls: int, settings: Any) -> None:
    """Write a server's reading into `cluster.seen`, normalised, if one has arrived."""
    slot = news_of(cluster, e, m, polls)
    if slot != NO_NEWS:
        note(cluster.seen, e, m, cluster.reading[e, slot], settings)


@inner
def oldest_reading_s(cluster: Cluster, e: int, models_up: Any) -> float:
    """Return the time of the oldest reading shown, of the models that are up; of all if none is."""
    oldest_s, oldest_up_s = NEVER_S, NEVER_S
    for m in range(cluster.card.shape[0]):
        taken_s = float(cluster.condition[e, m].taken_s)
        oldest_s = min(oldest_s, taken_s)
        if models_up >> np.uint32(m) & _ONE:
            oldest_up_s = min(oldest_up_s, taken_s)
    return oldest_up_s if oldest_up_s < NEVER_S else oldest_s
