"""What a router is told about the servers: gauges and latencies, as stale as the poll interval.

As with vLLM's /metrics, latency is observed when a request finishes, so that queued work is
invisible to it; the average is the one of the requests that finished between two polls, and the
last value is held when none did (`spec/inframind.md` §3).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from inframind_gym._jit import inner
from inframind_gym.serving.surrogate.engine import steps_begun
from inframind_gym.serving.surrogate.scheduler import blocks_held
from inframind_gym.serving.surrogate.state import NEVER_S, Cluster

LOG_SCALE = math.log(300.0)  # the spec's normalisation of seconds
QUEUE = 0  # telemetry features, by position in `inframind_gym.policy.layout.SYSTEM_FEATURES`
E2E = 1
KV = 2


@inner
def poll(cluster: Cluster, e: int, now_s: float, queue_norm: float, queue_high: float) -> None:
    """Read the metrics of all servers at `now_s` and keep them as the spec normalises them.

    QUEUE: (running + waiting) / queue_norm, clipped at queue_high; E2E: log(1 + s) / log 300; KV:
    share of the cache in use.
    """
    for m in range(cluster.card.shape[0]):
        server = cluster.server[e, m]
        depth = (server.running + server.waiting) / queue_norm
        cluster.seen[e, QUEUE, m] = np.float32(min(depth, queue_high))
        count = server.finished - server.polled_finished
        if count > 0:
            e2e_s = (server.e2e_sum_s - server.polled_e2e_sum_s) / count
            cluster.seen[e, E2E, m] = np.float32(math.log(1.0 + e2e_s) / LOG_SCALE)
        server.polled_finished = server.finished
        server.polled_e2e_sum_s = server.e2e_sum_s
        cluster.seen[e, KV, m] = np.float32(kv_frac(cluster, e, m, now_s))


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


@inner
def write_system(out: Any, cluster: Cluster, e: int, features: Any) -> None:
    """Write the telemetry of the last poll into `out`, a float32 array, M numbers a feature.

    Args:
        out: (F · M,) at least.
        features: (F,) which features, in order: QUEUE, E2E or KV.
    """
    models = cluster.card.shape[0]
    for f in range(features.shape[0]):
        for m in range(models):
            out[f * models + m] = cluster.seen[e, features[f], m]
