"""Scheduling of one engine step: the rules of vLLM V1's scheduler, one function for each.

Running requests first, in order of admission; then waiting ones by (priority, submission), the
order of `goes_before` (`workflow.lifecycle.priority` sets priorities), while the
token budget and the slots last. Prefill is chunked, so at most one request, the last of the
running, is ever partly prefilled. A waiting request is admitted only if all it has to prefill fits
the free KV blocks, and the head of the queue blocks those behind it. If a running request cannot
get a block, the running request with the largest (priority, submission) is evicted and later
recomputed; a step that evicts admits none. With one priority for all, that is vLLM's policy `fcfs`,
too. Source: vLLM 0.32 `v1/core/sched/scheduler.py`; tests compare the decisions of both
(`tests/simulator/vllm_scheduler`).

Time advances by the *clock*, the number of engine steps a server has done. A decoding request is
described by two numbers that do not change while it runs: the clock at which it ends and its
computed tokens less the clock; a whole stretch of steps therefore needs no update per request.

Two of vLLM's options change what a step serves.

*Prefix caching* lets an evicted request find again those of its blocks that were not overwritten,
and compute only the others. vLLM keeps its free blocks in one queue and takes them from the head. A
freed block goes to the end if it is full of known tokens, a request's last one first; otherwise
nothing can be found in it, and it goes to the head. The later a request was evicted, the sooner it
returns, so the blocks that a waiting one left are overtaken by none behind them: how many were
taken again follows from two counts per server, kept only while evicted requests wait (vLLM 0.32
`v1/core/block_pool.py`).

*Async scheduling* plans a step while the one before it runs, without that one's results. A request
that arrives during a step is served by the next but one: it is *unseen* by the step being planned.
A request that ends with a step still holds its slot and its blocks in the next one: it is
*leaving*, and may even be evicted. A step with nothing to do is planned again after the results of
the step before (vLLM 0.32 `v1/core/sched/async_scheduler.py`, `v1/engine/core.py`).
"""

from __future__ import annotations

from typing import Any

from inframind_gym.simulator.jit import close_gap, inner
from inframind_gym.simulator.server.state import FAR_CLOCK, NEVER_S, NO_REQUEST, Cluster

# The waiting queue: a binary heap ordered by (priority, order of submission). Entries are moved
# field by field: an assignment of whole records moves single bytes, which is slower to read back.


@inner
def goes_before(a: Any, b: Any) -> bool:
    """Return whether entry `a` is served before `b`: lower priority value, then earlier."""
    return bool(a.priority < b.priority or (a.priority == b.priority and a.seq < b.seq))


@inner
def push(heap: Any, size: int, priority: float, seq: int, request: int) -> None:
    """Add an entry to a heap of `size` entries; `heap` is an array (R,) of WAITING records."""
    hole = size
    while hole > 0:
        parent = (hole - 1) >> 1
        above = heap[parent]
        if above.priority < priority or (above.priority == priority and above.seq < seq):
            break
        heap[hole].priority = above.priority
        heap[hole].seq = above.seq
        heap[hole].request = above.request
        hole = parent
    heap[hole].priority = priority
    heap[hole].seq = seq
    heap[hole].request = request


@inner
def remove(heap: Any, size: int, request: int) -> None:
    """Take the entry of a request out of a heap of `size` entries that contains it."""
    hole = 0
    while heap[hole].request != request:
        hole += 1
    while hole > 0:  # up to the top, as if it were the first
        parent = (hole - 1) >> 1
        heap[hole].priority = heap[parent].priority
        heap[hole].seq = heap[parent].seq
        heap[hole].request = heap[parent].request
        hole = parent
    pop(heap, size)


@inner
def pop(heap: Any, size: int) -> int:
    """Take the first entry off a heap of `size` > 0 entries and return its request id."""
    first = int(heap[0].request)
    last = heap[size - 1]
    end = size - 1
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= end:
            break
        if child + 1 < end and goes_before(heap[child + 1], heap[child]):
            child += 1
        if goes_before(last, heap[child]):
            break
        heap[hole].priority = heap[child].priority
        heap[hole].seq = heap[child].seq
        heap[hole].request = heap[child].request
        hole = child
    heap[hole].priority = last.priority
    heap[hole].seq = last.seq
    heap[hole].request = last.request
    return first


# KV blocks


@inner
def blocks_for(tokens: int, block_size: int) -> int:
    """Return the number of KV blocks that hold `tokens` tokens."""
    return (tokens + block_size - 1) // block_size


@inner
def blocks_held_by(cluster: Cluster, e: int, m: int, index: int, clock: int) -> int:
    """Return the blocks of the running request at `index` when the clock is `clock`."""
    size = cluster.card[m].block_size
    if cluster.finish_clock[e, m, index] == FAR_CLOCK:
        return blocks_for(cluster.request[e, cluster.running[e, m, index]].computed, size)
    return blocks_for(cluster.base_tokens[e, m, index] + clock, size)


@inner
def blocks_held(cluster: Cluster, e: int, m: int, clock: int) -> int:
    """Return the blocks of the running requests when the clock is `clock`, counted one by one."""
    held = 0
    for i in range(cluster.server[e, m].running):
        held += blocks_held_by(cluster, e, m, i, clock)
    return held


@inner
def blocks_held_at_most(cluster: Cluster, e: int, m: int, more_tokens: int) -> int:
    """Return an upper bound of the running requests' blocks, each rounded up by a whole block."""
    server = cluster.server[e, m]
    blocks = (server.kv_tokens + more_tokens) // cluster.card[m].block_size
    return int(blocks + server.running)


@inner
def keep_blocks(cluster: Cluster, e: int, m: int, held: int, full_blocks: int) -> None:
    """Put full blocks at the end of the free queue, when `held` were in use until now."""
    server = cluster.server[e, m]
    free = cluster.card[m].usable_blocks - held
    server.cached_blocks = min(server.cached_blocks, free) + full_blocks
    server.freed_blocks += full_blocks


@inner
def findable_tokens(cluster: Cluster, e: int, m: int, index: int, served: bool) -> int:
    """Return how many computed tokens of the decoding request at `index` can be found again.

    With async scheduling, the last one is not there yet, unless it is one of the prompt or the
    request was `served` in the step being planned. (The token that this would compute is entered at
    once, too. It is never found: its block is the first to be taken.)
    """
    server = cluster.server[e, m]
    computed = int(cluster.base_tokens[e, m, index] + server.clock)
    if served or server.seen_s == NEVER_S:
        return computed
    return max(int(cluster.request[e, cluster.running[e, m, index]].computed), computed - 1)


@inner
def take_blocks_back(cluster: Cluster, e: int, m: int, identity: int, held: int) -> int:
    """Return how many blocks an evicted request finds when it returns with `held` in use."""
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


# Async scheduling


@inner
def join_leaving(cluster: Cluster, e: int, m: int, index: int, computed: int) -> None:
    """Add the running request at `index`, which has ended, to the leaving ones."""
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
    """Return the index of the leaving request to evict before the running `victim`, or -1."""
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
    """Free the blocks of a leaving request, of the `held` ones in use; return how many.

    `known`: the scheduler knows that its last step is over.
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
        cluster.leaving[e, m, i] = cluster.leaving[e, m, i + 1]
    return blocks


@inner
def see_the_last_step(cluster: Cluster, e: int, m: int) -> None:
    """After planning a step, give the scheduler the results of the one before it."""
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
    """Set aside the requests before the first one that the step being planned sees.

    `hidden` ones are already at the far end of the queue's array; return the new count.
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
    """Put the requests that were set aside back into the queue."""
    server = cluster.server[e, m]
    heap = cluster.waiting[e, m]
    for i in range(len(heap) - hidden, len(heap)):
        identity = heap[i].request
        request = cluster.request[e, identity]
        push(heap, server.waiting, request.priority, request.seq, identity)
        server.waiting += 1


# One step


@inner
def remove_running(cluster: Cluster, e: int, m: int, index: int) -> None:
    """Take the request at `index` out of the running list, keeping the order of the others."""
    server = cluster.server[e, m]
    behind = server.running - 1 - index
    close_gap(cluster.running[e, m], index, behind)
    close_gap(cluster.finish_clock[e, m], index, behind)
    close_gap(cluster.base_tokens[e, m], index, behind)
    server.running -= 1


@inner
def last_served(cluster: Cluster, e: int, m: int) -> int:
    """Return the index of the running request with the largest (priority, submission)."""
    victim = 0
    for i in range(1, cluster.server[e, m].running):
        a = cluster.request[e, cluster.running[e, m, i]]
        b = cluster.request[e, cluster.running[e, m, victim]]
        if goes_before(b, a):
            victim = i
    return victim


@inner
def evict(cluster: Cluster, e: int, m: int, index: int, held: int, served: bool) -> None:
    """Send the running request at `index` back to the queue; `held` blocks are in use.

    `served`: it has its token of the step being planned already.
    """
    server = cluster.server[e, m]
    identity = cluster.running[e, m, index]
    request = cluster.request[e, identity]
    if cluster.finish_clock[e, m, index] == FAR_CLOCK:
        server.partial = NO_REQUEST
        server.kv_tokens -= request.computed
    else:
        server.kv_tokens -= cluster.base_tokens[e, m, index] + server.clock
        request.computed = findable_tokens(cluster, e, m, index, served)
        still_to_emit = cluster.finish_clock[e, m, index] - server.clock
        request.generated = request.output_tokens - still_to_emit
    card = cluster.card[m]
    if card.prefix_caching:
        if server.evicted == 0:
            server.cached_blocks = card.usable_blocks
        server.evicted += 1
        cluster.freed_before[e, identity] = server.freed_blocks
        keep_blocks(cluster, e, m, held, request.computed // card.block_size)
    else:
        request.computed = 0
    request.evictions += 1
    remove_running(cluster, e, m, index)
    push(cluster.waiting[e, m], server.waiting, request.priority, request.seq, identity)
    server.waiting += 1


@inner
def start_decoding(cluster: Cluster, e: int, m: int, index: int, prefilled: int) -> None:
    """Complete a prefill in the step being planned, at whose end the next token is emitted."""
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
    held = blocks_held(cluster, e, m, server.clock) + server.leaving_blocks
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
            evictions += 1
            victim = last_served(cluster, e, m)
            leaving = last_leaving(cluster, e, m, victim)
            if leaving >= 0:  # in its last step: it needs its blocks no more
                held -= release_leaving(cluster, e, m, leaving, held, False)
                continue
            lost = blocks_held_by(cluster, e, m, victim, server.clock)
            served = victim < index
            if served:  # its token goes back to the budget
                had = int(cluster.base_tokens[e, m, victim]) + server.clock
                lost += blocks_for(had + 1, card.block_size) - blocks_for(had, card.block_size)
                budget += 1
                index -= 1
            itself = victim == index and cluster.running[e, m, victim] == identity
            evict(cluster, e, m, victim, held, served)
            held -= lost
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
            request = cluster.request[e, cluster.running[e, m, i]]
            request.computed = cluster.base_tokens[e, m, i] + server.clock  # and all findable
            cluster.finish_clock[e, m, i] += 1
            cluster.base_tokens[e, m, i] -= 1
    return decoders, partial_chunk, attention, computed_served, evictions


@inner
def admit_waiting(
    cluster: Cluster, e: int, m: int, now_s: float, budget: int, decoders: int, chunked: int
) -> tuple[int, float, int, int, bool]:
    """Admit waiting requests while the budget of tokens, the slots and the cache last.

    The step has `decoders` and computes `chunked` prompt tokens of a running request already.

    Returns:
        (prefill tokens, attention units, requests admitted, tokens found in the cache, True if
        there are requests that the step does not see).
    """
    server = cluster.server[e, m]
    card = cluster.card[m]
    tokens = 0
    attention = 0.0
    admitted = 0
    cached = 0
    hidden = 0
    held = blocks_held_at_most(cluster, e, m, decoders + chunked) + server.leaving_blocks
    exact = False
    while server.waiting > 0 and budget > 0 and server.running + server.leaving < card.max_num_seqs:
        if server.seen_s < NEVER_S:
            hidden = hide_unseen(cluster, e, m, hidden)
            if server.waiting == 0:
                break
        identity = cluster.waiting[e, m, 0].request
        request = cluster.request[e, identity]
        total = request.prompt_tokens + request.generated
        needed = blocks_for(total, card.block_size)
        returns = card.prefix_caching and request.evictions > 0
        if not exact and (returns or held + needed > card.usable_blocks):
            held = blocks_held(cluster, e, m, server.clock + 1) + server.leaving_blocks
            exact = True
        if held + needed > card.usable_blocks:
            break
        found = 0
        if returns:
            found = take_blocks_back(cluster, e, m, identity, held) * card.block_size
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
    if hidden > 0:
        show_hidden(cluster, e, m, hidden)
    return tokens, attention, admitted, cached, hidden > 0
