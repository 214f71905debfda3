"""KV blocks that the running requests of a server hold."""

from __future__ import annotations

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.state import FAR_CLOCK, Cluster


@inner
def blocks_for(tokens: int, block_size: int) -> int:
    """KV blocks that hold `tokens` tokens."""
    return (tokens + block_size - 1) // block_size


@inner
def blocks_held(cluster: Cluster, e: int, m: int, clock: int) -> int:
    """Blocks of the running requests when the clock stands at `clock`, counted one by one."""
    server = cluster.server[e, m]
    size = cluster.card[m].block_size
    held = 0
    for i in range(server.running):
        if cluster.finish_clock[e, m, i] == FAR_CLOCK:
            held += blocks_for(cluster.request[e, cluster.running[e, m, i]].computed, size)
        else:
            held += blocks_for(cluster.base_tokens[e, m, i] + clock, size)
    return held


@inner
def blocks_held_at_most(cluster: Cluster, e: int, m: int, more_tokens: int) -> int:
    """A bound on the blocks of the running requests, each one rounded up by a whole block."""
    server = cluster.server[e, m]
    blocks = (server.kv_tokens + more_tokens) // cluster.card[m].block_size
    return int(blocks + server.running)


@inner
def blocks_held_by(cluster: Cluster, e: int, m: int, index: int) -> int:
    """Blocks that the running request at `index` held before the step being planned."""
    size = cluster.card[m].block_size
    if cluster.finish_clock[e, m, index] == FAR_CLOCK:
        return blocks_for(cluster.request[e, cluster.running[e, m, index]].computed, size)
    return blocks_for(cluster.base_tokens[e, m, index] + cluster.server[e, m].clock, size)


@inner
def blocks_new_in_step(cluster: Cluster, e: int, m: int, index: int) -> int:
    """Blocks that an already served decoding request was given in the step being planned."""
    size = cluster.card[m].block_size
    computed = int(cluster.base_tokens[e, m, index]) + cluster.server[e, m].clock
    return blocks_for(computed + 1, size) - blocks_for(computed, size)
