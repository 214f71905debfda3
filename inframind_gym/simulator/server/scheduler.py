"""Scheduling of one engine step: the rules of vLLM V1's scheduler, a function each.

Running requests first, in order of admission; then waiting ones by (priority, submission), the
order of `queue.goes_before` (`workflow.lifecycle.priority` sets priorities), while the
token budget and the slots last. Prefill is chunked, so at most one request, the last of the
running, is ever partly prefilled. A waiting request is admitted only if all it has to prefill fits
the free KV blocks, and the head of the queue blocks those behind it. If a running request cannot
get a block, the running request with the largest (priority, submission) is evicted and later
recomputed; a step that evicts admits nobody. With one priority for all, that is vLLM's policy
`fcfs`, too. Source: vLLM 0.32 `v1/core/sched/scheduler.py`, whose own decisions the tests hold this
against (`tests/simulator/vllm_scheduler`).

Time advances by the *clock*, the number of engine steps a server has done. A decoding request is
described by two numbers that do not change while it runs: the clock at which it ends and its
computed tokens less the clock; a whole stretch of steps therefore needs no update per request.

Two of vLLM's options change what a step serves: *async scheduling* (`async_scheduling.py`) plans a
step while the one before it runs; *prefix caching* (`kv_cache.py`) lets an evicted request find
again those of its blocks that were not overwritten, and compute only the others.
"""

from __future__ import annotations

from inframind_gym.simulator.jit import close_gap, inner
from inframind_gym.simulator.server.async_scheduling import (
    hide_unseen,
    last_leaving,
    release_leaving,
    show_hidden,
)
from inframind_gym.simulator.server.kv_cache import (
    blocks_for,
    blocks_held,
    blocks_held_at_most,
    blocks_held_by,
    blocks_new_in_step,
    findable_tokens,
    leave_blocks,
    take_blocks_back,
)
from inframind_gym.simulator.server.queue import pop, push
from inframind_gym.simulator.server.state import FAR_CLOCK, NEVER_S, NO_REQUEST, Cluster

FEW = 24  # running requests that a plain loop moves, or goes through, as fast as any other way


@inner
def remove_running(cluster: Cluster, e: int, m: int, index: int) -> None:
    """Take the request at `index` out of the running list, keeping the order of the others."""
    server = cluster.server[e, m]
    behind = server.running - 1 - index
    if behind > FEW:
        close_gap(cluster.running[e, m], index, behind)
        close_gap(cluster.finish_clock[e, m], index, behind)
        close_gap(cluster.base_tokens[e, m], index, behind)
    else:
        for i in range(index, index + behind):
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
def evict(cluster: Cluster, e: int, m: int, index: int, held: int, served: bool) -> None:
    """Send the running request at `index` back to the queue.

    Args:
        held: Blocks in use, its own included.
        served: Whether it was given its token of the step being planned.
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
    if cluster.card[m].prefix_caching:
        leave_blocks(cluster, e, m, identity, held)
    else:
        request.computed = 0
    request.evictions += 1
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
            if leaving >= 0:  # in its last step: it loses only what it needs no more
                held -= release_leaving(cluster, e, m, leaving, held, False)
                continue
            lost = blocks_held_by(cluster, e, m, victim)
            served = victim < index
            if served:  # it had its tokens already: they go back to the budget
                lost += blocks_new_in_step(cluster, e, m, victim)
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
    """Admit waiting requests while the budget, the slots and the cache last.

    Args:
        budget: tokens left after the running requests were served.
        decoders: running requests that decode in this step.
        chunked: prompt tokens that the step computes for a running request.

    Returns:
        (prefill tokens, attention units, requests admitted, tokens found in the cache, whether
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
