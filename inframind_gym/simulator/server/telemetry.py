"""The simulated servers' metrics: gauges and latencies as vLLM's /metrics shows them.

Latency is observed when a request finishes, so that queued work is invisible to it; the average is
the one of the requests that finished between two polls (`spec/inframind.md` §3).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.server.engine import steps_begun
from inframind_gym.simulator.server.kv_blocks import blocks_held
from inframind_gym.simulator.server.state import NEVER_S, Cluster
from inframind_gym.simulator.telemetry import KV, note


@inner
def poll(
    cluster: Cluster, e: int, now_s: float, features: Any, queue_norm: float, queue_high: float
) -> None:
    """Read the metrics of all servers at `now_s` and note them, normalised, in `cluster.seen`.

    The use of the cache is counted only where it is among the observed `features`: it means going
    through all running requests.
    """
    with_kv = False
    for f in range(features.shape[0]):
        with_kv = with_kv or features[f] == KV
    for m in range(cluster.card.shape[0]):
        note(
            cluster.seen,
            e,
            m,
            depth_req(cluster, e, m),
            recent_e2e_s(cluster, e, m),
            kv_frac(cluster, e, m, now_s) if with_kv else 0.0,
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
