"""Faults of servers: going down and coming back, a slower pace, readings that are late or lost.

A stream's faults are known when it starts, as a list of changes of the servers' conditions
(`inframind_gym.simulator.faults`). What happens is what live servers show:

- A server that goes down loses its calls and all that they computed. It is closed to routers at
  once, as one that refuses connections is, and its metrics stand still. It comes back empty, and
  its metrics are read at once.
- A slower pace begins with the next step.
- The readings of a poll that are late arrive so many polls later; those that are lost never do.
  Health checks are not concerned.

At one instant faults come after the ends of steps and arrivals, before time-outs and polls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.engine import clear_work, cut_short, release_request
from inframind_gym.simulator.server.state import (
    DIRTY,
    NEVER_S,
    NEXT_FAULT,
    Cluster,
)
from inframind_gym.simulator.server.telemetry import (
    E2E,
    KV,
    QUEUE,
    TAKEN,
    depth_req,
    kv_frac,
    note,
    recent_e2e_s,
)
from inframind_gym.simulator.server.timeouts import ABORTED

NO_NEWS = -1
_ONE = np.uint32(1)


@inner
def reset_conditions(cluster: Cluster, e: int) -> None:
    """Servers without a fault, at time 0; the stream's changes have been written."""
    if cluster.fault.shape[1] == 0:
        return
    for m in range(cluster.card.shape[0]):
        condition = cluster.condition[e, m]
        condition.pace = 1.0
        condition.taken_s = 0.0
        condition.late_polls = 0
        condition.shown = 0
        condition.down = 0
        for value in range(cluster.reading.shape[2]):
            cluster.reading[e, 0, value, m] = 0.0
        cluster.reading[e, 0, E2E, m] = np.nan


@inner
def next_fault_s(cluster: Cluster, e: int) -> float:
    """Time of the next change; infinity where no fault is left."""
    if cluster.fault.shape[1] == 0:
        return NEVER_S
    return float(cluster.fault[e, cluster.counts[e, NEXT_FAULT]].at_s)


@inner
def change_condition(cluster: Cluster, e: int, now_s: float, polls: int) -> int:
    """The next change happens now.

    The calls of a server that goes down are taken out of it; whoever waits for them has to give
    them up (`is_lost`).

    Returns:
        Its server m; m + M where it has come back.
    """
    fault = cluster.fault[e, cluster.counts[e, NEXT_FAULT]]
    cluster.counts[e, NEXT_FAULT] += 1
    m = int(fault.model)
    condition = cluster.condition[e, m]
    came_back = condition.down == 1 and fault.down == 0
    if fault.down == 1 and condition.down == 0:
        empty_server(cluster, e, m)
    elif fault.pace != condition.pace:
        cut_short(cluster, e, m, now_s, 0)
    condition.down = fault.down
    condition.pace = fault.pace
    condition.late_polls = fault.late_polls
    if not came_back:
        return m
    slot = polls % cluster.reading.shape[1]
    cluster.reading[e, slot, QUEUE, m] = 0.0
    cluster.reading[e, slot, KV, m] = 0.0
    cluster.reading[e, slot, TAKEN, m] = now_s
    condition.shown = min(condition.shown, polls - 1)  # this reading is news
    return int(m + cluster.card.shape[0])


@inner
def is_down(cluster: Cluster, e: int, m: int) -> bool:
    """Return whether server `m` is down."""
    return bool(cluster.fault.shape[1] > 0 and cluster.condition[e, m].down == 1)


@inner
def forget_future(cluster: Cluster, e: int, identity: int, now_s: float) -> None:
    """A call is lost: it has not had what its server had planned."""
    request = cluster.request[e, identity]
    if request.first_token_s > now_s:
        request.first_token_s = np.nan


@inner
def empty_servers_down(cluster: Cluster, e: int) -> None:
    """Take out what was sent to servers that are down, after it was given up."""
    for m in range(cluster.card.shape[0]):
        if cluster.condition[e, m].down == 1:
            empty_server(cluster, e, m)


@inner
def empty_server(cluster: Cluster, e: int, m: int) -> None:
    """Take all calls out of a server; the ids of those that are waited for are not released."""
    server = cluster.server[e, m]
    for i in range(server.running):
        identity = cluster.running[e, m, i]
        if cluster.request[e, identity].query == ABORTED:
            release_request(cluster, e, identity)
    clear_work(cluster, e, m)
    server.polled_finished = server.finished
    server.polled_e2e_sum_s = server.e2e_sum_s
    cluster.counts[e, DIRTY] |= 1 << m


@inner
def read_metrics(cluster: Cluster, e: int, now_s: float, polls: int, with_kv: bool) -> None:
    """Read the metrics of the servers that are up, in poll number `polls`; they may arrive later.

    Of a server that is down the last reading is kept.
    """
    kept = cluster.reading.shape[1]
    slot, before = polls % kept, (polls - 1) % kept
    for m in range(cluster.card.shape[0]):
        for value in range(cluster.reading.shape[2]):
            cluster.reading[e, slot, value, m] = cluster.reading[e, before, value, m]
        if cluster.condition[e, m].down == 1:
            continue
        cluster.reading[e, slot, TAKEN, m] = now_s
        cluster.reading[e, slot, QUEUE, m] = depth_req(cluster, e, m)
        e2e_s = recent_e2e_s(cluster, e, m)
        if e2e_s == e2e_s:
            cluster.reading[e, slot, E2E, m] = e2e_s
        cluster.reading[e, slot, KV, m] = kv_frac(cluster, e, m, now_s) if with_kv else 0.0


@inner
def news_of(cluster: Cluster, e: int, m: int, polls: int) -> int:
    """Return the place of a server's reading that has arrived since the last one, or NO_NEWS."""
    condition = cluster.condition[e, m]
    newest = polls - condition.late_polls
    if newest <= condition.shown:
        return NO_NEWS
    condition.shown = newest
    slot = newest % cluster.reading.shape[1]
    condition.taken_s = cluster.reading[e, slot, TAKEN, m]
    return int(slot)


@inner
def show_news(
    cluster: Cluster, e: int, m: int, polls: int, queue_norm: float, queue_high: float
) -> None:
    """Note a server's reading in `cluster.seen`, if one has arrived."""
    slot = news_of(cluster, e, m, polls)
    if slot != NO_NEWS:
        note(
            cluster.seen,
            e,
            m,
            cluster.reading[e, slot, QUEUE, m],
            cluster.reading[e, slot, E2E, m],
            cluster.reading[e, slot, KV, m],
            queue_norm,
            queue_high,
        )


@inner
def oldest_reading_s(cluster: Cluster, e: int, models_up: Any) -> float:
    """When the oldest reading shown of the models that are up was taken; of all where none is."""
    oldest_s, oldest_up_s = NEVER_S, NEVER_S
    for m in range(cluster.card.shape[0]):
        taken_s = float(cluster.condition[e, m].taken_s)
        oldest_s = min(oldest_s, taken_s)
        if models_up >> np.uint32(m) & _ONE:
            oldest_up_s = min(oldest_up_s, taken_s)
    return oldest_up_s if oldest_up_s < NEVER_S else oldest_s
