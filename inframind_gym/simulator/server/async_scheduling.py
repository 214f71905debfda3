"""Async scheduling: a step is planned while the one before it runs, not knowing what comes of it.

A request that arrives during a step is served by the next but one: it is *unseen* by the step being
planned. A request that ends with a step keeps its slot and its blocks from the next one's requests:
it is *leaving*, and may even be evicted. A step with nothing to do otherwise is planned again, with
everything known. Source: vLLM 0.32 `v1/core/sched/async_scheduler.py`, `v1/engine/core.py`.
"""

from __future__ import annotations

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.kv_cache import (
    blocks_for,
    blocks_held,
    findable_tokens,
    keep_blocks,
)
from inframind_gym.simulator.server.queue import pop, push
from inframind_gym.simulator.server.state import NEVER_S, Cluster


@inner
def join_leaving(cluster: Cluster, e: int, m: int, index: int, computed: int) -> None:
    """The running request at `index` has ended, while the next step is scheduled already."""
    server = cluster.server[e, m]
    request = cluster.request[e, cluster.running[e, m, index]]
    leaving = cluster.leaving[e, m, server.leaving]
    leaving.priority = request.priority
    leaving.seq = request.seq
    leaving.computed = computed
    leaving.findable = findable_tokens(cluster, e, m, index, False)
    server.leaving += 1
    server.leaving_blocks += blocks_for(computed, cluster.card[m].block_size)


@inner
def last_leaving(cluster: Cluster, e: int, m: int, victim: int) -> int:
    """Index of the leaving request that is evicted before the running one at `victim`, or -1."""
    request = cluster.request[e, cluster.running[e, m, victim]]
    priority, seq = request.priority, request.seq
    last = -1
    for i in range(cluster.server[e, m].leaving):
        other = cluster.leaving[e, m, i]
        if other.priority > priority or (other.priority == priority and other.seq > seq):
            priority, seq = other.priority, other.seq
            last = i
    return last


@inner
def release_leaving(cluster: Cluster, e: int, m: int, index: int, held: int, known: bool) -> int:
    """Free the blocks of a leaving request, and return how many.

    Args:
        held: Blocks in use, its own included.
        known: Whether its last step is over for the scheduler, too.
    """
    server = cluster.server[e, m]
    size = cluster.card[m].block_size
    request = cluster.leaving[e, m, index]
    blocks = blocks_for(request.computed, size)
    if server.evicted > 0:
        findable = request.computed if known else request.findable
        keep_blocks(cluster, e, m, held, findable // size)
    server.leaving_blocks -= blocks
    server.leaving -= 1
    for i in range(index, server.leaving):
        ahead, behind = cluster.leaving[e, m, i], cluster.leaving[e, m, i + 1]
        ahead.priority = behind.priority
        ahead.seq = behind.seq
        ahead.computed = behind.computed
        ahead.findable = behind.findable
    return blocks


@inner
def see_the_last_step(cluster: Cluster, e: int, m: int) -> None:
    """The next step is planned: from now on the scheduler knows what came of the one before."""
    server = cluster.server[e, m]
    server.seen_s = NEVER_S
    if server.leaving > 0:
        held = 0
        if server.evicted > 0:
            held = blocks_held(cluster, e, m, server.clock + 1) + server.leaving_blocks
        while server.leaving > 0:
            held -= release_leaving(cluster, e, m, 0, held, True)


@inner
def hide_unseen(cluster: Cluster, e: int, m: int, hidden: int) -> int:
    """Lay aside the requests before the first one that the step being planned sees.

    Args:
        hidden: How many have been laid aside so far, at the far end of the queue's array.

    Returns:
        How many there are now.
    """
    server = cluster.server[e, m]
    heap = cluster.waiting[e, m]
    while server.waiting > 0 and cluster.request[e, heap[0].request].submit_s > server.seen_s:
        identity = pop(heap, server.waiting)
        server.waiting -= 1
        hidden += 1
        heap[len(heap) - hidden].request = identity
    return hidden


@inner
def show_hidden(cluster: Cluster, e: int, m: int, hidden: int) -> None:
    """Put the requests that were laid aside back into the queue."""
    server = cluster.server[e, m]
    heap = cluster.waiting[e, m]
    for i in range(len(heap) - hidden, len(heap)):
        identity = heap[i].request
        request = cluster.request[e, identity]
        push(heap, server.waiting, request.priority, request.seq, identity)
        server.waiting += 1
