"""Servers in virtual time: stretches of engine steps, computed in closed form.

A server at a step boundary plans its next step (`start_step`). If the step prefills, it is run on
its own; if every running request only decodes, all steps until the first of them ends are one
stretch whose step times form an arithmetic series, because each step reads as many more cached
tokens as there are requests. A stretch is cut at the boundary after the present instant when
something happens that the next step must see: a submission while a slot is free, or a co-located
model that begins or ceases to have work.

A step sees everything that happens at the instant at which it starts: servers whose state changes
at an instant are marked dirty and planned together, by `flush`, before time moves on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner, prefetch
from inframind_gym.simulator.server.pool import computing_s
from inframind_gym.simulator.server.scheduler import (
    admit_waiting,
    blocks_for,
    blocks_held,
    blocks_held_at_most,
    join_leaving,
    keep_blocks,
    push,
    remove_running,
    see_the_last_step,
    serve_running,
    serve_running_contended,
)
from inframind_gym.simulator.server.state import (
    CONDITION,
    DIRTY,
    E2E,
    FAR_CLOCK,
    FREE_IDS,
    NEVER_S,
    NEWEST,
    NEXT_SEQ,
    NO_REQUEST,
    OLDEST,
    SERVER,
    USED_IDS,
    Cluster,
)

_ONE = np.uint32(1)
_SERVER = np.zeros(1, SERVER)
_CONDITION = np.zeros(1, CONDITION)
_AT_ONCE = 16  # finish clocks in a line of the processor's cache


@inner
def clear_work(cluster: Cluster, e: int, m: int) -> None:
    """Remove a server's calls, steps and cached blocks."""
    server = cluster.server[e, m]
    server.steps = 0
    server.lead = 0
    server.lead_tokens = 0
    server.seen_s = NEVER_S
    server.decoders = 0
    server.running = 0
    server.waiting = 0
    server.partial = NO_REQUEST
    server.next_finish = FAR_CLOCK
    server.kv_tokens = 0
    server.leaving = 0
    server.leaving_blocks = 0
    server.evicted = 0
    server.cached_blocks = 0
    server.freed_blocks = 0
    cluster.end_s[e, m] = NEVER_S


@inner
def reset_cluster(cluster: Cluster, e: int) -> None:
    """Reset the servers: empty, at time 0, with nothing polled yet."""
    for m in range(cluster.card.shape[0]):
        cluster.server[e, m] = _SERVER[0]
        clear_work(cluster, e, m)
        cluster.condition[e, m] = _CONDITION[0]
        cluster.condition[e, m].pace = 1.0
        for value in range(cluster.reading.shape[2]):
            cluster.reading[e, 0, value, m] = np.nan if value == E2E else 0.0
        for feature in range(cluster.seen.shape[1]):
            cluster.seen[e, feature, m] = np.float32(0.0)
    for i in range(cluster.counts.shape[1]):
        cluster.counts[e, i] = 0
    cluster.counts[e, OLDEST] = NO_REQUEST
    cluster.counts[e, NEWEST] = NO_REQUEST
    cluster.busy[e] = np.uint32(0)


@inner
def next_request(cluster: Cluster, e: int) -> int:
    """Return the request id that the next submission takes."""
    counts = cluster.counts[e]
    if counts[FREE_IDS] > 0:
        return int(cluster.free[e, counts[FREE_IDS] - 1])
    return int(counts[USED_IDS])


@inner
def release_request(cluster: Cluster, e: int, identity: int) -> None:
    """Give a request id back."""
    counts = cluster.counts[e]
    cluster.free[e, counts[FREE_IDS]] = identity
    counts[FREE_IDS] += 1


@inner
def submit(
    cluster: Cluster,
    e: int,
    m: int,
    now_s: float,
    priority: float,
    prompt_tokens: int,
    output_tokens: int,
) -> int:
    """Put a call into the queue of server `m` and return its request id.

    The caller sets the call that it serves (`query`, `node`, `phase`).
    """
    identity = next_request(cluster, e)
    request = cluster.request[e, identity]
    counts = cluster.counts[e]
    if counts[FREE_IDS] > 0:
        counts[FREE_IDS] -= 1
    else:
        counts[USED_IDS] += 1
    card = cluster.card[m]
    request.priority = priority
    request.submit_s = now_s
    request.admitted_s = np.nan
    request.first_token_s = np.nan
    request.seq = counts[NEXT_SEQ]
    counts[NEXT_SEQ] += 1
    request.prompt_tokens = prompt_tokens
    if card.shared_prefix_tokens > 0:
        whole_blocks = (prompt_tokens - 1) // card.block_size * card.block_size
        request.prompt_tokens -= min(card.shared_prefix_tokens, whole_blocks)
    request.output_tokens = output_tokens
    request.generated = 0
    request.computed = 0
    request.server = m
    request.evictions = 0
    server = cluster.server[e, m]
    push(cluster.waiting[e, m], server.waiting, priority, request.seq, identity)
    server.waiting += 1
    if server.running + server.waiting == 1:  # idle until now: its step starts at this instant
        cluster.end_s[e, m] = NEVER_S
        counts[DIRTY] |= 1 << m
    elif server.running < card.max_num_seqs and not counts[DIRTY] >> m & 1:
        cut_short(cluster, e, m, now_s, card.async_scheduling)
    return identity


@inner
def step_cost_s(card: Any, seqs: int, kv_tokens: int, tokens: int, attention: float) -> float:
    """Return the duration of a step that computes `tokens` tokens, without co-located models."""
    cost_s = (
        card.base_s
        + card.per_seq_s * seqs
        + card.per_kv_token_s * kv_tokens
        + computing_s(card, tokens)
        + card.per_attention_unit_s * attention
    )
    if card.sparse_s > 0.0:  # the experts that its tokens are sent to
        cost_s += card.sparse_s * (1.0 - math.exp(-tokens / card.sparse_tokens))
    return float(cost_s)


@inner
def stretch_s(server: Any, steps: int) -> float:
    """Return the duration of the first `steps` >= 1 steps of the server's stretch."""
    alike = steps - server.lead
    return float(
        server.lead_s + alike * server.step_s + server.growth_s * (0.5 * alike * (alike - 1))
    )


@inner
def steps_begun(server: Any, now_s: float) -> int:
    """Return how many steps of the stretch have begun by `now_s`; the last one's end is next."""
    elapsed = now_s - server.start_s - server.lead_s
    if server.lead and elapsed <= 0.0:
        return 1
    half = 0.5 * server.growth_s
    linear = server.step_s - half
    root = math.sqrt(linear * linear + 4.0 * half * elapsed)
    steps = math.ceil(2.0 * elapsed / (linear + root)) + server.lead
    steps = min(max(steps, 1), server.steps)
    while steps > 1 and server.start_s + stretch_s(server, steps - 1) >= now_s:
        steps -= 1
    while steps < server.steps and server.start_s + stretch_s(server, steps) < now_s:
        steps += 1
    return int(steps)


@inner
def cut_short(cluster: Cluster, e: int, m: int, now_s: float, more: int) -> None:
    """End the server's stretch `more` steps after the one that is under way at `now_s`."""
    server = cluster.server[e, m]
    if server.steps > 1:
        server.steps = min(steps_begun(server, now_s) + more, server.steps)
        cluster.end_s[e, m] = server.start_s + stretch_s(server, server.steps)


@inner
def note_first_finish(cluster: Cluster, e: int, m: int) -> None:
    """Note the least finish clock of the running requests, and the request that has it."""
    server = cluster.server[e, m]
    least = FAR_CLOCK << 32  # clock and index in one number: a minimum without branches
    for i in range(server.running):
        least = min(least, int(np.int64(cluster.finish_clock[e, m, i]) << 32 | i))
    server.next_finish = least >> 32
    server.ending = cluster.running[e, m, least & 0xFFFFFFFF]
    prefetch(cluster.request, e * cluster.request.shape[1] + server.ending, 0)


@inner
def steps_within_cache(cluster: Cluster, e: int, m: int, steps: int) -> int:
    """Return how many of `steps` decoding steps have blocks for all running requests, >= 1."""
    server = cluster.server[e, m]
    usable = cluster.card[m].usable_blocks
    if blocks_held_at_most(cluster, e, m, steps * server.decoders) <= usable:
        return steps
    fits, fails = 1, steps + 1
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if blocks_held(cluster, e, m, server.clock + middle) <= usable:
            fits = middle
        else:
            fails = middle
    return fits


@inner
def start_step(cluster: Cluster, e: int, m: int, now_s: float, busy_peers: int) -> None:
    """Plan the stretch of server `m` that begins at `now_s`."""
    server = cluster.server[e, m]
    card = cluster.card[m]
    server.start_s = now_s
    server.steps = 0
    server.lead = 0
    server.lead_s = 0.0
    server.lead_tokens = 0
    if server.running + server.waiting == 0:
        see_the_last_step(cluster, e, m)
        cluster.end_s[e, m] = NEVER_S
        return

    evictions = 0
    prefilling = 0 if server.partial == NO_REQUEST else 1
    room = blocks_held_at_most(cluster, e, m, 0) + server.running + server.leaving_blocks
    if server.partial != NO_REQUEST:
        room += card.max_num_batched_tokens // card.block_size + 1
    if room <= card.usable_blocks or (
        server.partial == NO_REQUEST
        and blocks_held(cluster, e, m, server.clock + 1) + server.leaving_blocks
        <= card.usable_blocks
    ):
        decoders, prefill, attention, kv_tokens = serve_running(cluster, e, m)
    else:
        decoders, prefill, attention, kv_tokens, evictions = serve_running_contended(cluster, e, m)
    served = decoders + (1 if prefill > 0 else 0)
    sees_all = server.leaving == 0
    while evictions == 0 and server.waiting > 0:
        budget = card.max_num_batched_tokens - decoders - prefill
        more, units, admitted, cached, blind = admit_waiting(
            cluster, e, m, now_s, budget, decoders, prefill
        )
        prefill += more
        attention += units
        served += admitted
        prefilling += admitted
        kv_tokens += cached
        sees_all &= not blind
        if served > 0 or server.seen_s == NEVER_S:
            break
        see_the_last_step(cluster, e, m)  # there is nothing to compute in the meantime
    see_the_last_step(cluster, e, m)
    if served + evictions == 0 and server.running == 0:  # the head of the queue never fits
        cluster.end_s[e, m] = NEVER_S
        return

    factor = 1.0 + card.slowdown * busy_peers
    if cluster.fault.shape[1] > 0:
        factor *= cluster.condition[e, m].pace
    note_first_finish(cluster, e, m)
    steps = server.next_finish - server.clock
    if prefill > 0 or evictions > 0:
        tokens = decoders + prefill
        server.lead = 1
        server.lead_tokens = tokens
        server.lead_s = 0.0
        if tokens > 0:
            server.lead_s = factor * step_cost_s(card, served, kv_tokens, tokens, attention)
        if prefill > 0:
            note_first_tokens(cluster, e, m, prefilling, now_s + server.lead_s)
        if not decodes_after_lead(cluster, e, m, evictions, steps):
            server.steps = 1
            cluster.end_s[e, m] = now_s + server.lead_s
            return
        decoders = int(server.running)
        kv_tokens = int(server.kv_tokens) + tokens
        server.steps = steps
    server.decoders = decoders
    server.step_s = factor * step_cost_s(card, decoders, kv_tokens, decoders, 0.0)
    server.growth_s = factor * card.per_kv_token_s * decoders
    if not server.lead:
        free_slots = card.max_num_seqs - server.running
        if server.waiting > 0 and free_slots > 0 and not sees_all:
            steps = 1
        server.steps = steps_within_cache(cluster, e, m, steps)
    cluster.end_s[e, m] = now_s + stretch_s(server, server.steps)


@inner
def decodes_after_lead(cluster: Cluster, e: int, m: int, evictions: int, steps: int) -> bool:
    """Return whether all running requests decode after the lead, until the first of them ends."""
    server = cluster.server[e, m]
    if evictions > 0 or steps <= 1 or server.partial != NO_REQUEST:
        return False
    if server.waiting > 0 and server.running < cluster.card[m].max_num_seqs:
        return False
    tokens = server.lead_tokens + (steps - 1) * server.running
    return bool(blocks_held_at_most(cluster, e, m, tokens) <= cluster.card[m].usable_blocks)


@inner
def note_first_tokens(cluster: Cluster, e: int, m: int, count: int, end_s: float) -> None:
    """Set the first-token time of requests whose prefill the step being planned completes.

    They are among the last `count` of the running list; evicted ones that return have it already.
    """
    running = cluster.server[e, m].running
    for i in range(max(running - count, 0), running):
        request = cluster.request[e, cluster.running[e, m, i]]
        if request.first_token_s != request.first_token_s and (
            cluster.finish_clock[e, m, i] != FAR_CLOCK
        ):
            request.first_token_s = end_s


@inner
def finish_stretch(cluster: Cluster, e: int, m: int, now_s: float) -> int:
    """End the stretch of server `m` now: advance its clock and take out the requests that ended.

    Returns:
        Number of requests that ended; `cluster.done` has their ids. Release them after use.
    """
    server = cluster.server[e, m]
    card = cluster.card[m]
    if card.async_scheduling and not (server.lead and server.lead_tokens == 0):
        server.seen_s = server.start_s  # or later, which matters only to those that wait
        if server.waiting > 0 and server.steps > 1:
            server.seen_s += stretch_s(server, server.steps - 1)
    server.clock += server.steps
    server.kv_tokens += server.lead_tokens + (server.steps - server.lead) * server.decoders
    server.steps = 0
    cluster.end_s[e, m] = NEVER_S
    cluster.counts[e, DIRTY] |= 1 << m
    ended = 0
    if server.next_finish > server.clock:
        return ended
    held = blocks_held(cluster, e, m, server.clock) if server.evicted > 0 else 0
    i = 0
    while True:
        i = next_ended(cluster, e, m, i)
        if i == server.running:
            return ended
        identity = int(cluster.running[e, m, i])
        computed = cluster.base_tokens[e, m, i] + server.clock
        server.kv_tokens -= computed
        if card.async_scheduling:
            join_leaving(cluster, e, m, i, computed)
        elif server.evicted > 0:
            keep_blocks(cluster, e, m, held, computed // card.block_size)
            held -= blocks_for(computed, card.block_size)
        remove_running(cluster, e, m, i)
        server.finished += 1
        server.e2e_sum_s += now_s - cluster.request[e, identity].submit_s
        cluster.done[ended] = identity
        ended += 1


@inner
def next_ended(cluster: Cluster, e: int, m: int, start: int) -> int:
    """Return the index of the first running request from `start` on that has ended, or `running`.

    Sixteen are skipped at a time: a processor compares them at once.
    """
    server = cluster.server[e, m]
    clock, running = server.clock, int(server.running)
    i = start
    while running - i >= _AT_ONCE:
        least = cluster.finish_clock[e, m, i]
        for k in range(1, _AT_ONCE):
            least = min(least, cluster.finish_clock[e, m, i + k])
        if least <= clock:
            break
        i += _AT_ONCE
    while i < running and cluster.finish_clock[e, m, i] > clock:
        i += 1
    return i


@inner
def flush(cluster: Cluster, e: int, now_s: float) -> None:
    """Start the steps of all servers that are at a boundary at `now_s`."""
    dirty = np.uint32(cluster.counts[e, DIRTY])
    cluster.counts[e, DIRTY] = 0
    before = cluster.busy[e]
    busy = before
    models = cluster.card.shape[0]
    for m in range(models):  # only a server at a boundary can have become busy or idle
        bit = _ONE << np.uint32(m)
        if dirty & bit:
            server = cluster.server[e, m]
            busy = busy | bit if server.running + server.waiting > 0 else busy & ~bit
    cluster.busy[e] = busy
    changed = busy ^ before
    for m in range(models):
        bit = _ONE << np.uint32(m)
        if dirty & bit:
            start_step(cluster, e, m, now_s, bits(busy & cluster.card[m].peers))
        elif changed & cluster.card[m].peers:
            cut_short(cluster, e, m, now_s, 0)


@inner
def bits(mask: Any) -> int:
    """Return the number of set bits."""
    count = 0
    while mask:
        mask &= mask - _ONE
        count += 1
    return count


@inner
def next_end(cluster: Cluster, e: int) -> tuple[float, int]:
    """Return the earliest end of a stretch: (time, server); (infinity, 0) if all are idle."""
    best = 0
    end_s = cluster.end_s[e, 0]
    for m in range(1, cluster.end_s.shape[1]):
        if cluster.end_s[e, m] < end_s:
            end_s = cluster.end_s[e, m]
            best = m
    return float(end_s), best
