"""What one engine step serves: the rules of vLLM V1's scheduler, a function each.

Running requests first, in order of admission; then waiting ones by (priority, submission) while the
token budget and the slots last. Prefill is chunked, so at most one request, the last of the
running, is ever partly prefilled. A waiting request is admitted only if all it has to prefill fits
the free KV blocks, and the head of the queue blocks those behind it. If a running request cannot
get a block, the running request with the largest (priority, submission) is evicted and later
recomputed; a step that evicts admits nobody. Source: vLLM 0.33 `v1/core/sched/scheduler.py`.

Time advances by the *clock*, the number of engine steps a server has done. A decoding request is
described by two numbers that do not change while it runs: the clock at which it ends and its
computed tokens less the clock; a whole stretch of steps therefore needs no update per request.

Two of vLLM's options change what a step serves. *Async scheduling* plans a step while the one
before it runs: a request that arrives during a step is served by the next but one. *Prefix caching*
keeps freed blocks until they are overwritten, the longest unused first: an evicted request that
returns finds again those of its blocks that were not, and only computes the others.
"""

from __future__ import annotations

from inframind_gym._jit import inner
from inframind_gym.serving.surrogate.queue import pop, push
from inframind_gym.serving.surrogate.state import FAR_CLOCK, NO_REQUEST, Cluster


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
def remove_running(cluster: Cluster, e: int, m: int, index: int) -> None:
    """Take the request at `index` out of the running list, keeping the order of the others."""
    server = cluster.server[e, m]
    for i in range(index, server.running - 1):
        cluster.running[e, m, i] = cluster.running[e, m, i + 1]
        cluster.finish_clock[e, m, i] = cluster.finish_clock[e, m, i + 1]
        cluster.base_tokens[e, m, i] = cluster.base_tokens[e, m, i + 1]
    server.running -= 1


@inner
def last_served(cluster: Cluster, e: int, m: int) -> int:
    """Index of the running request with the largest (priority, submission): the next victim."""
    victim = 0
    for i in range(1, cluster.server[e, m].running):
        a = cluster.request[e, cluster.running[e, m, i]]
        b = cluster.request[e, cluster.running[e, m, victim]]
        if a.priority > b.priority or (a.priority == b.priority and a.seq > b.seq):
            victim = i
    return victim


@inner
def evict(cluster: Cluster, e: int, m: int, index: int, blocks: int) -> None:
    """Send the running request at `index`, which holds `blocks` blocks, back to the queue."""
    server = cluster.server[e, m]
    identity = cluster.running[e, m, index]
    request = cluster.request[e, identity]
    if cluster.finish_clock[e, m, index] == FAR_CLOCK:
        server.partial = NO_REQUEST
    else:
        request.computed = cluster.base_tokens[e, m, index] + server.clock
        still_to_emit = cluster.finish_clock[e, m, index] - server.clock
        request.generated = request.output_tokens - still_to_emit
    server.kv_tokens -= request.computed
    if cluster.card[m].prefix_caching:
        # Its last block is overwritten first; one that it was given in this step holds nothing.
        empty = blocks - blocks_for(request.computed, cluster.card[m].block_size)
        cluster.freed_before[e, identity] = server.freed_blocks + empty
        server.freed_blocks += blocks
    else:
        request.computed = 0
    request.evictions += 1
    server.evictions += 1
    remove_running(cluster, e, m, index)
    push(cluster.waiting[e, m], server.waiting, request.priority, request.seq, identity)
    server.waiting += 1


@inner
def start_decoding(cluster: Cluster, e: int, m: int, index: int, prefilled: int) -> None:
    """The step being planned completes a prefill: its last act is to emit the next token."""
    request = cluster.request[e, cluster.running[e, m, index]]
    after = cluster.server[e, m].clock + 1
    cluster.base_tokens[e, m, index] = prefilled - after
    cluster.finish_clock[e, m, index] = after + request.output_tokens - request.generated - 1


@inner
def serve_running(cluster: Cluster, e: int, m: int) -> tuple[int, int, float, int]:
    """Give every running request its tokens, when there are blocks enough for all of them.

    Returns:
        (decoders, prefill tokens, attention units, computed tokens of the served).
    """
    server = cluster.server[e, m]
    kv_tokens = int(server.kv_tokens)
    if server.partial == NO_REQUEST:
        return int(server.running), 0, 0.0, kv_tokens
    decoders = int(server.running) - 1
    request = cluster.request[e, server.partial]
    total = request.prompt_tokens + request.generated
    chunk = min(total - request.computed, cluster.card[m].max_num_batched_tokens - decoders)
    if chunk == 0:
        return decoders, 0, 0.0, kv_tokens - request.computed
    request.computed += chunk
    if request.computed == total:
        start_decoding(cluster, e, m, server.running - 1, total)
        server.partial = NO_REQUEST
    return decoders, int(chunk), float(chunk) * request.computed, kv_tokens


@inner
def serve_running_contended(cluster: Cluster, e: int, m: int) -> tuple[int, int, float, int, int]:
    """Give the running requests their tokens one by one, evicting where no block is free.

    Returns:
        (decoders, prefill tokens, attention units, computed tokens of the served, evictions).
    """
    server = cluster.server[e, m]
    card = cluster.card[m]
    held = blocks_held(cluster, e, m, server.clock)
    budget = card.max_num_batched_tokens
    evictions = 0
    index = 0
    partial_chunk = 0
    while index < server.running and budget > 0:
        identity = cluster.running[e, m, index]
        request = cluster.request[e, identity]
        partial = cluster.finish_clock[e, m, index] == FAR_CLOCK
        if partial:
            computed = int(request.computed)
            chunk = min(request.prompt_tokens + request.generated - computed, budget)
        else:
            computed = int(cluster.base_tokens[e, m, index]) + server.clock
            chunk = 1
        more = blocks_for(computed + chunk, card.block_size) - blocks_for(computed, card.block_size)
        itself = False
        while held + more > card.usable_blocks:
            victim = last_served(cluster, e, m)
            lost = blocks_held_by(cluster, e, m, victim)
            if victim < index:  # it had its tokens already: they go back to the budget
                lost += blocks_new_in_step(cluster, e, m, victim)
                budget += 1
                index -= 1
            itself = victim == index and cluster.running[e, m, victim] == identity
            held -= lost
            evict(cluster, e, m, victim, lost)
            evictions += 1
            if itself:
                break
        if itself:
            break
        held += more
        budget -= chunk
        if partial:
            partial_chunk = chunk
        index += 1

    # `index` requests are served; those behind them wait a step: their clocks move on by one.
    decoders = 0
    computed_served = 0
    attention = 0.0
    for i in range(server.running):
        if cluster.finish_clock[e, m, i] == FAR_CLOCK:
            if i < index:
                request = cluster.request[e, cluster.running[e, m, i]]
                computed_served += request.computed
                request.computed += partial_chunk
                attention = float(partial_chunk) * request.computed
                total = request.prompt_tokens + request.generated
                if request.computed == total:
                    start_decoding(cluster, e, m, i, total)
                    server.partial = NO_REQUEST
        elif i < index:
            decoders += 1
            computed_served += cluster.base_tokens[e, m, i] + server.clock
        else:
            cluster.finish_clock[e, m, i] += 1
            cluster.base_tokens[e, m, i] -= 1
    return decoders, partial_chunk, attention, computed_served, evictions


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


@inner
def found_again(cluster: Cluster, e: int, m: int, identity: int, held: int) -> int:
    """Blocks of an evicted request that are still in the cache, when `held` blocks are in use.

    Freed blocks are overwritten in the order in which they were freed. Of those freed since the
    eviction and of its own, as many were taken again as are neither free nor counted as freed.
    """
    server = cluster.server[e, m]
    card = cluster.card[m]
    request = cluster.request[e, identity]
    freed = server.freed_blocks - cluster.freed_before[e, identity]
    overwritten = max(freed - (card.usable_blocks - held), 0)
    left = blocks_for(request.computed, card.block_size) - overwritten
    return int(max(min(left, request.computed // card.block_size), 0))


@inner
def in_sight(cluster: Cluster, e: int, m: int, busy: bool) -> bool:
    """Whether the head of the queue arrived in time for the step that is being planned.

    With async scheduling a step of a busy server was scheduled when the one before it started.
    """
    if not (busy and cluster.card[m].async_scheduling):
        return True
    request = cluster.request[e, cluster.waiting[e, m, 0].request]
    return bool(request.submit_s <= cluster.server[e, m].last_step_s)


@inner
def admit_waiting(
    cluster: Cluster, e: int, m: int, now_s: float, budget: int, decoders: int, chunked: int
) -> tuple[int, float, int, int]:
    """Admit waiting requests while the budget, the slots and the cache last.

    Args:
        budget: tokens left after the running requests were served.
        decoders: running requests that decode in this step.
        chunked: prompt tokens that the step computes for a running request.

    Returns:
        (prefill tokens, attention units, requests admitted, tokens found in the cache).
    """
    server = cluster.server[e, m]
    card = cluster.card[m]
    tokens = 0
    attention = 0.0
    admitted = 0
    cached = 0
    busy = server.running > 0
    held = blocks_held_at_most(cluster, e, m, decoders + chunked)
    exact = False
    while server.waiting > 0 and budget > 0 and server.running < card.max_num_seqs:
        if not in_sight(cluster, e, m, busy):
            break
        identity = cluster.waiting[e, m, 0].request
        request = cluster.request[e, identity]
        total = request.prompt_tokens + request.generated
        needed = blocks_for(total, card.block_size)
        if (held + needed > card.usable_blocks or request.computed > 0) and not exact:
            held = blocks_held(cluster, e, m, server.clock + 1)
            exact = True
        if held + needed > card.usable_blocks:
            break
        found = 0
        if request.computed > 0:
            again = found_again(cluster, e, m, identity, held)
            server.freed_blocks -= again
            found = again * card.block_size
            server.kv_tokens += found
            cached += found
        pop(cluster.waiting[e, m], server.waiting)
        server.waiting -= 1
        if request.admitted_s != request.admitted_s:  # NaN: never admitted before
            request.admitted_s = now_s
        chunk = min(total - found, budget)
        budget -= chunk
        tokens += chunk
        attention += float(chunk) * (found + chunk)
        index = int(server.running)
        server.running += 1
        cluster.running[e, m, index] = identity
        request.computed = found + chunk
        if request.computed == total:
            start_decoding(cluster, e, m, index, total)
        else:
            cluster.finish_clock[e, m, index] = FAR_CLOCK
            server.partial = identity
        held += blocks_for(request.computed, card.block_size)
        admitted += 1
    return tokens, attention, admitted, cached
