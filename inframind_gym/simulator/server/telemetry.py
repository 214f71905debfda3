"""Metrics of servers: gauges and latencies as vLLM's /metrics shows them, and their normalisation.

Latency is observed when a request finishes, so that queued work is invisible to it; the average is
the one of the requests that finished between two polls. Metrics of simulated and of real servers
are noted here; observations are written from what was noted last.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.server.engine import steps_begun
from inframind_gym.simulator.server.scheduler import blocks_held
from inframind_gym.simulator.server.state import NEVER_S, Cluster

LOG_SCALE = math.log(300.0)  # 300 s are 1 on the logarithmic scale of time features
QUEUE = 0  # telemetry features, by position in `inframind_gym.envs.layout.SYSTEM_FEATURES`
E2E = 1
KV = 2
IN_FLIGHT = 3  # not noted but counted
TAKEN = 3  # of a reading: when it was taken, s


@inner
def note(
    seen: Any,
    e: int,
    m: int,
    depth_req: float,
    e2e_s: float,
    kv_frac: float,
    queue_norm: float,
    queue_high: float,
) -> None:
    """Keep a reading of one server's metrics.

    Args:
        seen: (E, 3, M) float32. QUEUE: depth / queue_norm, clipped at queue_high; E2E:
            log(1 + s) / log 300; KV: share of the cache in use.
        e: environment of the batch.
        m: the server's model.
        depth_req: requests running and waiting.
        e2e_s: mean latency of the requests that finished between two readings; NaN where none
            did: the last value is held.
        kv_frac: 0..1.
        queue_norm: requests at which QUEUE is 1.
        queue_high: bound of QUEUE.
    """
    seen[e, QUEUE, m] = np.float32(min(depth_req / queue_norm, queue_high))
    if e2e_s == e2e_s:  # not NaN
        seen[e, E2E, m] = np.float32(math.log(1.0 + e2e_s) / LOG_SCALE)
    seen[e, KV, m] = np.float32(kv_frac)


@inner
def with_kv(features: Any) -> bool:
    """Return whether the use of the cache is among the observed features (F,)."""
    observed = False
    for f in range(features.shape[0]):
        observed = observed or features[f] == KV
    return observed


@inner
def poll(
    cluster: Cluster, e: int, now_s: float, features: Any, queue_norm: float, queue_high: float
) -> None:
    """Read the metrics of all servers at `now_s` and note them, normalised, in `cluster.seen`.

    The use of the cache is counted only where it is among the observed `features`: it means going
    through all running requests.
    """
    observed = with_kv(features)
    for m in range(cluster.card.shape[0]):
        note(
            cluster.seen,
            e,
            m,
            depth_req(cluster, e, m),
            recent_e2e_s(cluster, e, m),
            kv_frac(cluster, e, m, now_s) if observed else 0.0,
            queue_norm,
            queue_high,
        )


@inner
def depth_req(cluster: Cluster, e: int, m: int) -> float:
    """Requests in the server, running and waiting."""
    server = cluster.server[e, m]
    return float(server.running + server.waiting)


@inner
def recent_e2e_s(cluster: Cluster, e: int, m: int) -> float:
    """Mean latency of the requests that finished since this was last asked; NaN if none did."""
    server = cluster.server[e, m]
    count = server.finished - server.polled_finished
    e2e_s = np.nan
    if count > 0:
        e2e_s = (server.e2e_sum_s - server.polled_e2e_sum_s) / count
    server.polled_finished = server.finished
    server.polled_e2e_sum_s = server.e2e_sum_s
    return float(e2e_s)


@inner
def kv_frac(cluster: Cluster, e: int, m: int, now_s: float) -> float:
    """Share of the KV blocks in use at `now_s`, in 0..1, as `vllm:kv_cache_usage_perc`."""
    server = cluster.server[e, m]
    if server.running == 0:
        return 0.0
    clock = int(server.clock)
    if cluster.end_s[e, m] != NEVER_S and server.steps > 0:
        clock += steps_begun(server, now_s)
    return blocks_held(cluster, e, m, clock) / float(cluster.card[m].usable_blocks)


@jit
def kv_use(cluster: Cluster, e: int, m: int, now_s: float) -> float:
    """`kv_frac` for those who are not compiled."""
    return kv_frac(cluster, e, m, now_s)
