"""KV blocks that running requests hold, and what freed blocks still hold (prefix caching).

vLLM keeps its free blocks in one queue and takes them from the head. A freed block goes to the end
if it is full of known tokens, a request's last one first; otherwise nothing can be found in it, and
it goes to the head. The later a request was evicted, the sooner it returns, so the blocks that a
waiting one left are overtaken by none behind them: how many were taken again follows from two
counts per server. They are kept only while evicted requests wait. Source: vLLM 0.32
`v1/core/block_pool.py`.
"""

from __future__ import annotations

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.state import FAR_CLOCK, NEVER_S, Cluster


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


# Prefix caching


@inner
def keep_blocks(cluster: Cluster, e: int, m: int, held: int, full_blocks: int) -> None:
    """Put full blocks at the end of the free queue, when `held` were in use until now."""
    server = cluster.server[e, m]
    free = cluster.card[m].usable_blocks - held
    server.cached_blocks = min(server.cached_blocks, free) + full_blocks
    server.freed_blocks += full_blocks


@inner
def findable_tokens(cluster: Cluster, e: int, m: int, index: int, served: bool) -> int:
    """Tokens that can be found of those that the decoding request at `index` has computed.

    With async scheduling, the last one isn't there yet, unless it is one of the prompt or the
    request was `served` in the step being planned. (The token that this would compute is entered at
    once, too. Nobody finds it: its block is the first to be taken.)
    """
    server = cluster.server[e, m]
    computed = int(cluster.base_tokens[e, m, index] + server.clock)
    if served or server.seen_s == NEVER_S:
        return computed
    return max(int(cluster.request[e, cluster.running[e, m, index]].computed), computed - 1)


@inner
def leave_blocks(cluster: Cluster, e: int, m: int, identity: int, held: int) -> None:
    """An evicted request, whose `computed` tokens are findable, frees its blocks."""
    server = cluster.server[e, m]
    if server.evicted == 0:
        server.cached_blocks = cluster.card[m].usable_blocks
    server.evicted += 1
    cluster.freed_before[e, identity] = server.freed_blocks
    full_blocks = cluster.request[e, identity].computed // cluster.card[m].block_size
    keep_blocks(cluster, e, m, held, full_blocks)


@inner
def take_blocks_back(cluster: Cluster, e: int, m: int, identity: int, held: int) -> int:
    """An evicted request returns when `held` blocks are in use: how many of its own it finds."""
    server = cluster.server[e, m]
    card = cluster.card[m]
    request = cluster.request[e, identity]
    server.evicted -= 1
    server.cached_blocks = min(server.cached_blocks, card.usable_blocks - held)
    freed = server.freed_blocks - cluster.freed_before[e, identity]
    overwritten = max(freed - server.cached_blocks, 0)
    found = int(max(request.computed // card.block_size - overwritten, 0))
    server.cached_blocks -= found
    server.freed_blocks -= found
    return found
