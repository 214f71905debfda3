"""The kernel on its own: run given requests through the servers, without workflows.

This is what calibration fits against request logs, what the tests hold against the step-by-step
reference and what `inframind bench speed` times as `kernel_rps`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inframind_gym.errors import InfraMindError
from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.server.engine import (
    finish_stretch,
    flush,
    next_end,
    release_request,
    reset_cluster,
    submit,
)
from inframind_gym.simulator.server.faults import (
    change_condition,
    empty_servers_down,
    is_down,
    next_fault_s,
    reset_conditions,
)
from inframind_gym.simulator.server.state import (
    DIRTY,
    NEVER_S,
    NO_REQUEST,
    OLDEST,
    Cluster,
    allocate,
)
from inframind_gym.simulator.server.timeouts import ABORTED, abort, next_timeout, unwatch, watch

SERVED: Final = np.dtype(
    [("admitted_s", "f8"), ("first_token_s", "f8"), ("finish_s", "f8"), ("evictions", "i8")]
)


def replay_requests(
    card: NDArray[Any],
    server: ArrayLike,
    submit_s: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    priority: ArrayLike | None = None,
    timeout_s: float = NEVER_S,
    faults: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Serve requests that arrive at given times and say what became of each.

    Args:
        card: (M,) server cards (`inframind_gym.simulator.server.cards(pool)`).
        server: (n,) index of the server that each request is sent to.
        submit_s: (n,) times of submission, s, ascending.
        prompt_tokens: (n,) tokens to prefill, at least 1.
        output_tokens: (n,) tokens to emit, at least 1.
        priority: (n,) lower first; without it, first come first served.
        timeout_s: after which a client aborts its request.
        faults: (F,) FAULT, by time, the last at infinity; requests at a server that is down are
            lost.

    Returns:
        (n,) SERVED records: start of the step of first admission, end of the step that emitted the
        first token, end of the last step, s; and how often it was evicted. Of one that was aborted
        or lost NaN and 0.

    Raises:
        InfraMindError: arrays of unequal length, times not ascending, counts below 1, a server that
            does not exist, or a request that can never fit the KV cache of its server.
    """
    where = np.ascontiguousarray(server, np.int64)
    times = np.ascontiguousarray(submit_s, np.float64)
    prompts = np.ascontiguousarray(prompt_tokens, np.int64)
    outputs = np.ascontiguousarray(output_tokens, np.int64)
    order = np.zeros(len(times)) if priority is None else np.ascontiguousarray(priority, np.float64)
    lengths = {len(where), len(times), len(prompts), len(outputs), len(order)}
    if len(lengths) != 1:
        raise InfraMindError(f"the arrays of a replay differ in length: {sorted(lengths)}")
    out = np.zeros(len(times), SERVED)
    if not len(times):
        return out
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise InfraMindError("submit_s must be finite and ascending; sort the requests first")
    if prompts.min() < 1 or outputs.min() < 1:
        raise InfraMindError("every request needs at least one prompt and one output token")
    if where.min() < 0 or where.max() >= len(card):
        raise InfraMindError(f"server must be in 0..{len(card) - 1}")
    needed = -(-(prompts + outputs) // card["block_size"][where])
    if (needed > card["usable_blocks"][where]).any():
        i = int(np.argmax(needed > card["usable_blocks"][where]))
        raise InfraMindError(
            f"request {i} needs {needed[i]} KV blocks and its server has "
            f"{card['usable_blocks'][where[i]]}; raise num_kv_blocks or drop the request"
        )
    for field in ("admitted_s", "first_token_s", "finish_s"):
        out[field] = np.nan
    cluster = allocate(card, 1, len(times), 0 if faults is None else len(faults))
    if faults is not None:
        cluster.fault[0] = faults
    _replay(cluster, where, times, prompts, outputs, order, timeout_s, out)
    return out


@jit
def _replay(
    cluster: Cluster,
    server: NDArray[np.int64],
    submit_s: NDArray[np.float64],
    prompt_tokens: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
    priority: NDArray[np.float64],
    limit_s: float,
    out: Any,
) -> None:
    e = 0
    reset_cluster(cluster, e)
    reset_conditions(cluster, e)
    now_s = 0.0
    arrived = 0
    total = len(submit_s)
    while True:
        end_s, m = next_end(cluster, e)
        arrival_s = submit_s[arrived] if arrived < total else NEVER_S
        timeout_s, late = next_timeout(cluster, e, limit_s)
        fault_s = next_fault_s(cluster, e)
        next_s = min(end_s, min(arrival_s, fault_s))
        if cluster.counts[e, DIRTY] and next_s > now_s:
            flush(cluster, e, now_s)
            continue
        next_s = min(next_s, timeout_s)
        if min(end_s, min(arrival_s, timeout_s)) == NEVER_S:
            return
        now_s = next_s
        if end_s == next_s:
            for i in range(finish_stretch(cluster, e, m, now_s)):
                identity = int(cluster.done[i])
                request = cluster.request[e, identity]
                if request.query != ABORTED:
                    served = out[request.query]
                    served.admitted_s = request.admitted_s
                    served.first_token_s = request.first_token_s
                    served.finish_s = now_s
                    served.evictions = request.evictions
                    unwatch(cluster, e, identity)
                release_request(cluster, e, identity)
        elif arrival_s == next_s:
            identity = submit(
                cluster,
                e,
                server[arrived],
                now_s,
                priority[arrived],
                prompt_tokens[arrived],
                output_tokens[arrived],
            )
            cluster.request[e, identity].query = arrived
            if limit_s < NEVER_S or cluster.fault.shape[1] > 0:
                watch(cluster, e, identity, 1)
            arrived += 1
            if is_down(cluster, e, server[arrived - 1]):
                lose_requests(cluster, e)
        elif fault_s == next_s:
            change_condition(cluster, e, now_s, 0)
            lose_requests(cluster, e)
        else:
            unwatch(cluster, e, late)
            abort(cluster, e, late, now_s)


@inner
def lose_requests(cluster: Cluster, e: int) -> None:
    """Give up the requests at servers that are down."""
    identity = int(cluster.counts[e, OLDEST])
    while identity != NO_REQUEST:
        following = int(cluster.timer[e, identity].newer)
        if is_down(cluster, e, cluster.request[e, identity].server):
            unwatch(cluster, e, identity)
            release_request(cluster, e, identity)
        identity = following
    empty_servers_down(cluster, e)
