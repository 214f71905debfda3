"""Time-outs of calls: a client that waits no longer aborts its call.

All calls of a cluster have one limit, so they time out in the order in which they were sent: a
list, linked both ways, that an answered call leaves at once. vLLM learns of an abort between two
steps. A waiting request loses its place; a running one goes with the step under way, and all that
it computed is lost. At one instant time-outs come last, after the steps that start at it.
"""

from __future__ import annotations

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.engine import cut_short, release_request
from inframind_gym.simulator.server.queue import remove
from inframind_gym.simulator.server.state import (
    DIRTY,
    FAR_CLOCK,
    NEVER_S,
    NEWEST,
    NO_REQUEST,
    OLDEST,
    Cluster,
)

ABORTED = -1  # as `query` of a request that nobody waits for


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
