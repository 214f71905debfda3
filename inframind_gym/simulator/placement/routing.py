"""Every δt1: waiting calls go to awake instances.

A model's calls go in the order in which they began to wait, each to the ACTIVE instance of least
drain latency (the lowest GPU among equals), and what was sent counts at once. An instance takes as
many calls as it has slots and queue places; what finds no room goes on waiting with the router.
The specification sends without limit. A limit is needed here: what was sent cannot be fetched back,
so copies made later would stand idle, and a server that is to sleep would drain for minutes.
"""

from __future__ import annotations

import numpy as np

from inframind_gym.simulator.placement.compiled import inner
from inframind_gym.simulator.placement.service import drain_latency, has_room, submit
from inframind_gym.simulator.placement.state import ACTIVE, NONE, Cluster, World


@inner
def route_model(world: World, cluster: Cluster, e: int, m: int, now_s: float, end_s: float) -> None:
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
def route(world: World, cluster: Cluster, e: int, now_s: float, end_s: float) -> None:
    """Route the waiting calls of every model that is awake somewhere."""
    for m in range(world.model.shape[0]):
        waiting = cluster.waiting[e, m]
        if waiting.count > 0 and waiting.active > 0:
            route_model(world, cluster, e, m, now_s, end_s)
