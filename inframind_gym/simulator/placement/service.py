"""Routing and serving: calls go to awake instances, which batch continuously.

*Routing*, every δt1. A model's calls go in the order in which they began to wait, each to the
ACTIVE instance of least drain latency (the lowest GPU among equals), and what was sent counts at
once. An instance takes as many calls as it has slots and queue places; the others go on waiting
with the router. Without that limit copies made later would find no work, since what was sent cannot
be fetched back, and a server that is to sleep would drain for minutes.

*Serving*. B running calls advance together: an engine step takes `base_s + per_seq_s · B` and gives
each a token, so that a call takes longer in a fuller batch. The step that computes a prompt takes
longer, and all that run wait for it: a call that starts first stops the engine's clock for its
`prefill_s`. Otherwise the clock runs evenly between two events of a server, and the next call to
end is the one of least finish clock: time jumps from end to end. A call whose slot is taken waits
in the server, first come first served. Servers do not see each other within a routing interval,
because calls are routed at ticks only. docs/placement.md compares this with the kernel of the
routing environments.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from inframind_gym.simulator.placement.compiled import inner
from inframind_gym.simulator.placement.jobs import call_done
from inframind_gym.simulator.placement.state import (
    ACTIVE,
    NONE,
    SERVER,
    ClusterParams,
    ClusterState,
)

ONE_STEP: Final = 1e-9  # on the clock: answers that are so close end with the same step

_SERVER: Final = np.zeros(1, SERVER)


@inner
def open_server(cluster: ClusterState, e: int, g: int, m: int, now_s: float) -> None:
    """Put an empty server of model `m` at leader `g`."""
    cluster.server[e, g] = _SERVER[0]
    server = cluster.server[e, g]
    server.model = m
    server.next_finish = np.inf
    server.last_s = now_s
    server.mean_s = cluster.waiting[e, m].latency_s
    server.next_slot = NONE


@inner
def drain_latency(cluster: ClusterState, e: int, g: int) -> float:
    """Return num_requests · Δlatency_sum / Δlatency_count of the server at leader `g`.

    The deltas are those of the last decision interval in which a call ended.
    """
    server = cluster.server[e, g]
    return float((server.running + server.queued) * server.mean_s)


@inner
def has_room(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> bool:
    """Return whether the server takes one more call."""
    server = cluster.server[e, g]
    model = world.model[server.model]
    return bool(server.running + server.queued < model.slots + model.queue)


@inner
def submit(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    g: int,
    identity: int,
    now_s: float,
    end_s: float,
) -> None:
    """Send a request to the server at leader `g`, which has room."""
    server = cluster.server[e, g]
    cluster.request[e, identity].submit_s = now_s
    if server.running < world.model[server.model].slots:
        start(cluster, e, g, identity, now_s, end_s)
    else:
        places = cluster.queue.shape[2]
        cluster.queue[e, g, (server.queue_head + server.queued) % places] = identity
        server.queued += 1


@inner
def start(cluster: ClusterState, e: int, g: int, identity: int, now_s: float, end_s: float) -> None:
    """Let a request run in a free slot."""
    server = cluster.server[e, g]
    episode = cluster.episode[e]
    server.prefill_s += cluster.request[e, identity].prefill_s
    finish = server.clock + cluster.request[e, identity].work
    cluster.run_finish[e, g, server.running] = finish
    cluster.run_request[e, g, server.running] = identity
    if finish < server.next_finish:
        server.next_finish = finish
        server.next_slot = server.running
    server.running += 1
    left_s = end_s - now_s
    episode.waiting -= 1
    episode.waiting_s -= left_s
    episode.serving += 1
    episode.service_s += left_s


@inner
def take_out(cluster: ClusterState, e: int, g: int, now_s: float, end_s: float) -> int:
    """Remove the running call at `next_slot`, keeping the order of the others: its request."""
    server = cluster.server[e, g]
    episode = cluster.episode[e]
    slot = int(server.next_slot)
    identity = int(cluster.run_request[e, g, slot])
    server.running -= 1
    for i in range(slot, server.running):
        cluster.run_request[e, g, i] = cluster.run_request[e, g, i + 1]
        cluster.run_finish[e, g, i] = cluster.run_finish[e, g, i + 1]
    least = np.inf
    where = NONE
    for i in range(server.running):
        if cluster.run_finish[e, g, i] < least:
            least = cluster.run_finish[e, g, i]
            where = i
    server.next_finish = least
    server.next_slot = where
    episode.serving -= 1
    episode.service_s -= end_s - now_s
    return identity


@inner
def start_next(cluster: ClusterState, e: int, g: int, now_s: float, end_s: float) -> None:
    """Give the slot that has become free to the call that waits longest in the server, if any."""
    server = cluster.server[e, g]
    if server.queued > 0:
        following = int(cluster.queue[e, g, server.queue_head])
        server.queue_head = (server.queue_head + 1) % cluster.queue.shape[2]
        server.queued -= 1
        start(cluster, e, g, following, now_s, end_s)


@inner
def count_answer(cluster: ClusterState, e: int, g: int, identity: int, now_s: float) -> None:
    """Count a call that the server at leader `g` has answered into its metrics."""
    server = cluster.server[e, g]
    server.latency_sum_s += now_s - cluster.request[e, identity].submit_s
    server.latency_count += 1
    server.last_s = now_s


@inner
def serve(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    g: int,
    from_s: float,
    to_s: float,
    end_s: float,
) -> None:
    """Run the server at leader `g` from one tick to the next.

    Args:
        from_s: this tick.
        to_s: the next; calls that become ready are stamped with it.
        end_s: end of the decision interval.
    """
    server = cluster.server[e, g]
    if server.running == 0:
        return
    model = world.model[server.model]
    now_s = from_s
    while server.running > 0:
        step_s = model.base_s + model.per_seq_s * server.running
        left_s = server.prefill_s + (server.next_finish - server.clock) * step_s
        finish_s = max(now_s, now_s + left_s)
        if finish_s > to_s:
            prefill_s = min(server.prefill_s, to_s - now_s)
            server.prefill_s -= prefill_s
            server.clock += (to_s - now_s - prefill_s) / step_s
            return
        now_s = finish_s
        server.prefill_s = 0.0
        server.clock = server.next_finish
        ended = 0
        while server.next_finish <= server.clock + ONE_STEP:
            identity = take_out(cluster, e, g, now_s, end_s)
            count_answer(cluster, e, g, identity, now_s)
            call_done(world, cluster, e, identity, now_s, to_s, end_s)
            ended += 1
        for _ in range(ended):
            start_next(cluster, e, g, now_s, end_s)


@inner
def route_model(
    world: ClusterParams, cluster: ClusterState, e: int, m: int, now_s: float, end_s: float
) -> None:
    """Route the waiting calls of model `m`."""
    waiting = cluster.waiting[e, m]
    open_servers = 0
    for g in range(0, world.gpu.shape[0], world.model[m].tp):
        if cluster.instance[e, g, m].state == ACTIVE and has_room(world, cluster, e, g):
            cluster.target[open_servers] = g
            open_servers += 1
    while waiting.count > 0 and open_servers > 0:
        least_s = np.inf
        where = 0
        for i in range(open_servers):
            drain_s = drain_latency(cluster, e, cluster.target[i])
            if drain_s < least_s:
                least_s = drain_s
                where = i
        identity = int(waiting.head)
        request = cluster.request[e, identity]
        waiting.head = request.next
        waiting.count -= 1
        waiting.stamp_sum_s -= request.stamp_s
        request.next = NONE
        g = int(cluster.target[where])
        submit(world, cluster, e, g, identity, now_s, end_s)
        if not has_room(world, cluster, e, g):
            open_servers -= 1
            for i in range(where, open_servers):
                cluster.target[i] = cluster.target[i + 1]


@inner
def route(world: ClusterParams, cluster: ClusterState, e: int, now_s: float, end_s: float) -> None:
    """Route the waiting calls of every model that is awake somewhere."""
    for m in range(world.model.shape[0]):
        waiting = cluster.waiting[e, m]
        if waiting.count > 0 and waiting.active > 0:
            route_model(world, cluster, e, m, now_s, end_s)


@inner
def poll(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> None:
    """Read the metrics of the server at leader `g`: the deltas since the last poll."""
    server = cluster.server[e, g]
    count = server.latency_count - server.polled_count
    if count > 0:
        server.mean_s = (server.latency_sum_s - server.polled_sum_s) / count
        ema = world.settings[0].ema
        waiting = cluster.waiting[e, server.model]
        waiting.latency_s = (1.0 - ema) * waiting.latency_s + ema * server.mean_s
    server.polled_sum_s = server.latency_sum_s
    server.polled_count = server.latency_count
