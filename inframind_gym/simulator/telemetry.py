"""What a router is shown of the servers: a few numbers a model, normalised as in the spec.

Whoever reads the metrics, simulated or those of real servers, notes them here; observations are
written from what was noted last (`spec/inframind.md` §3), and from the router's own count of the
calls it has in flight, which needs no metrics and is never old.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner

LOG_SCALE = math.log(300.0)  # the spec's normalisation of seconds
QUEUE = 0  # telemetry features, by position in `inframind_gym.policies.layout.SYSTEM_FEATURES`
E2E = 1
KV = 2
IN_FLIGHT = 3  # not noted but counted


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
def write_system(
    out: Any, seen: Any, e: int, features: Any, in_flight: Any, queue_norm: float
) -> None:
    """Write what is known of the servers into `out`, a float32 array, M numbers a feature.

    Args:
        out: (F · M,) at least.
        seen: (E, 3, M).
        e: environment of the batch.
        features: (F,) which features, in order: QUEUE, E2E, KV or IN_FLIGHT.
        in_flight: (M,) at least: the agent's calls, sent to each model and not answered.
        queue_norm: calls at which IN_FLIGHT is 1.
    """
    models = seen.shape[2]
    for f in range(features.shape[0]):
        if features[f] == IN_FLIGHT:
            for m in range(models):
                out[f * models + m] = np.float32(in_flight[m] / queue_norm)
        else:
            for m in range(models):
                out[f * models + m] = seen[e, features[f], m]
