"""Faults: servers that go down, are slow or show old readings; clients that give up.

A stream's faults are known when it starts, as a list of changes of the servers' conditions
(`inframind_gym.simulator.faults`). What happens is what live servers show:

- A server that goes down loses its calls and all that they computed. It is closed to routers at
  once, as one that refuses connections is, and its metrics stand still. It comes back empty, and
  its metrics are read at once.
- A slower pace begins with the next step.
- The readings of a poll that are late arrive so many polls later; those that are lost never do.
  Health checks are not concerned.

A client that waits no longer aborts its call. All calls of a cluster have one limit, so they time
out in the order in which they were sent: a list, linked both ways, that an answered call leaves at
once. vLLM learns of an abort between two steps. A waiting request loses its place; a running one
goes with the step under way, and all that it computed is lost.

At one instant faults come after the ends of steps and arrivals, then time-outs, then polls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.engine import clear_work, cut_short, release_request
from inframind_gym.simulator.server.scheduler import remove
from inframind_gym.simulator.server.state import (
    DIRTY,
    FAR_CLOCK,
    NEVER_S,
    NEWEST,
    NEXT_FAULT,
    NO_REQUEST,
    OLDEST,
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

ABORTED = -1  # as `query` of a request that nobody waits for
NO_NEWS = -1
_ONE = np.uint32(1)


@inner
def watch(cluster: Cluster, e: int, identity: int, attempt: int) -> None:
    """Begin to wait for a request that has just been submitted; `attempt` counts from 1."""
    counts = cluster.counts[e]
    timer = cluster.timer[e, identity]
    timer.attempt = attempt
    timer.older = counts[NEWEST]
    timer.newer = NO_REQUEST
    if counts[NEWEST] == NO_REQUEST:
        counts[OLDEST] = identity
    else:
        cluster.timer[e, counts[NEWEST]].newer = identity
    counts[NEWEST] = identity
    timer.watched = 1


@inner
def unwatch(cluster: Cluster, e: int, identity: int) -> None:
    """The request is answered, or given up: leave the list; nothing where it is in none."""
    counts = cluster.counts[e]
    timer = cluster.timer[e, identity]
    if timer.watched == 0:
        return
    timer.watched = 0
    if timer.older == NO_REQUEST:
        counts[OLDEST] = timer.newer
    else:
        cluster.timer[e, timer.older].newer = timer.newer
    if timer.newer == NO_REQUEST:
        counts[NEWEST] = timer.older
    else:
        cluster.timer[e, timer.newer].older = timer.older


@inner
def next_timeout(cluster: Cluster, e: int, limit_s: float) -> tuple[float, int]:
    """Time at which the next request times out, and its id; (infinity, -1) where none is watched.

    Args:
        cluster: the servers.
        e: environment of the batch.
        limit_s: from submission to time-out, the same for all.
    """
    oldest = int(cluster.counts[e, OLDEST])
    if oldest == NO_REQUEST:
        return NEVER_S, NO_REQUEST
    return float(cluster.request[e, oldest].submit_s + limit_s), oldest


@inner
def abort(cluster: Cluster, e: int, identity: int, now_s: float) -> None:
    """Take a request that is not watched any more out of its server."""
    request = cluster.request[e, identity]
    m = int(request.server)
    server = cluster.server[e, m]
    card = cluster.card[m]
    for i in range(server.running):
        if cluster.running[e, m, i] == identity:
            leave_with_step(cluster, e, m, i, now_s)
            return
    remove(cluster.waiting[e, m], server.waiting, identity)
    server.waiting -= 1
    if card.prefix_caching and request.evictions > 0:
        server.evicted -= 1
    server.finished += 1
    server.e2e_sum_s += now_s - request.submit_s
    if server.steps == 0:  # those behind it may fit
        cluster.counts[e, DIRTY] |= 1 << m
    elif server.waiting > 0 and server.running < card.max_num_seqs:
        cut_short(cluster, e, m, now_s, card.async_scheduling)
    release_request(cluster, e, identity)


@inner
def leave_with_step(cluster: Cluster, e: int, m: int, i: int, now_s: float) -> None:
    """The running request at `i` ends with the step under way, for nobody."""
    server = cluster.server[e, m]
    request = cluster.request[e, cluster.running[e, m, i]]
    request.query = ABORTED
    cut_short(cluster, e, m, now_s, 0)
    last = server.clock + server.steps
    if cluster.finish_clock[e, m, i] == FAR_CLOCK:
        server.partial = NO_REQUEST
        cluster.base_tokens[e, m, i] = request.computed - last
    cluster.finish_clock[e, m, i] = last
    server.next_finish = last


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
