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

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.engine import (
    clear_work,
    cut_short,
    flush,
    next_end,
    release_request,
)
from inframind_gym.simulator.server.scheduler import remove
from inframind_gym.simulator.server.state import (
    DIRTY,
    FAR_CLOCK,
    KV,
    NEVER_S,
    NEWEST,
    NEXT_FAULT,
    NO_REQUEST,
    OLDEST,
    QUEUE,
    TAKEN,
    Cluster,
)

ABORTED = -1  # as `query` of a request that nobody waits for

# What happens next at the servers (`next_event`), in the order in which it does at one instant.
STRETCH_ENDS, OUTSIDE, CHANGES, TIMES_OUT, POLL = range(5)


@inner
def next_event(
    cluster: Cluster, e: int, now_s: float, outside_s: float, poll_s: float, limit_s: float
) -> tuple[int, float, int]:
    """Start the steps that begin now, and find what happens next.

    Args:
        now_s: the present.
        outside_s: time of the caller's own next event: an arrival, or where it wants to stop.
        poll_s: time of the next poll.
        limit_s: from submission to time-out, the same for all; infinity: none.

    Returns:
        Kind of the event, its time, and which server (STRETCH_ENDS) or request (TIMES_OUT) it is.
    """
    fault_s = NEVER_S
    if cluster.fault.shape[1] > 0:
        fault_s = cluster.fault[e, cluster.counts[e, NEXT_FAULT]].at_s
    others_s = min(fault_s, min(outside_s, poll_s))
    end_s, m = next_end(cluster, e)
    if cluster.counts[e, DIRTY] and min(end_s, others_s) > now_s:
        flush(cluster, e, now_s)
        end_s, m = next_end(cluster, e)
    timeout_s, oldest = NEVER_S, int(cluster.counts[e, OLDEST])
    if limit_s < NEVER_S and oldest != NO_REQUEST:
        timeout_s = cluster.request[e, oldest].submit_s + limit_s
    next_s = min(min(end_s, others_s), timeout_s)
    if end_s == next_s:
        return STRETCH_ENDS, next_s, m
    if outside_s == next_s:
        return OUTSIDE, next_s, 0
    if fault_s == next_s:
        return CHANGES, next_s, 0
    if timeout_s == next_s:
        return TIMES_OUT, next_s, oldest
    return POLL, next_s, 0


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
def abort(cluster: Cluster, e: int, identity: int, now_s: float) -> None:
    """Take a request that is not watched any more out of its server."""
    request = cluster.request[e, identity]
    m = int(request.server)
    server = cluster.server[e, m]
    card = cluster.card[m]
    for i in range(server.running):
        if cluster.running[e, m, i] == identity:  # it ends with the step under way, for nobody
            request.query = ABORTED
            cut_short(cluster, e, m, now_s, 0)
            last = server.clock + server.steps
            if cluster.finish_clock[e, m, i] == FAR_CLOCK:
                server.partial = NO_REQUEST
                cluster.base_tokens[e, m, i] = request.computed - last
            cluster.finish_clock[e, m, i] = last
            server.next_finish = last
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
def change_condition(cluster: Cluster, e: int, now_s: float, polls: int) -> int:
    """The next change happens now.

    The calls of a server that goes down are taken out of it; whoever waits for them gives them up.

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
