"""State of the simulated servers: records, and arrays for the compiled code.

The first axis of every array is the environment of a batch (E), the second the server (M). A reset
of an environment clears no pool: counters go to zero and pools fill from the bottom, so a reset is
cheap and memory that was never used is never touched.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import Floats, Int32s, Records, filled, record, zeros
from inframind_gym.simulator.server.pool import PoolConfig, ServerCard, StepCost

NO_REQUEST: Final = -1
FAR_CLOCK: Final = 2**31 - 1  # finish clock of a request that doesn't decode yet
NEVER_S: Final = np.inf

# Constants of one server, from its card.
CARD: Final = record(
    # step time = (base^p + (per_new_token·N)^p)^(1/p) + per_seq·B + per_kv_token·KV + …
    "f8: base_s per_seq_s per_kv_token_s per_new_token_s per_attention_unit_s sparse_s",
    "f8: sparse_tokens",
    "f8: roofline_power",  # p
    "f8: slowdown",  # relative, per co-located model that has work
    "i4: max_num_seqs",  # this and the next two: of all data-parallel engines together
    "i4: max_num_batched_tokens",
    "i4: usable_blocks",  # KV blocks less the reserved one and the shared prefix
    "i4: block_size",
    "u4: peers",  # bit mask of the other servers on the same GPU
    "i4: shared_prefix_tokens",  # head of every prompt that is in the cache already
    "i4: prefix_caching",  # 1: an evicted request finds its blocks in the cache again
    "i4: async_scheduling",  # 1: a step is scheduled while the one before it runs
)

# One server's progress. Between two events it runs a *stretch* of `steps` engine steps: if `lead`
# is 1, first a step of its own kind, usually one that also prefills, of lead_s; then steps in which
# the same requests decode, step j of them taking step_s + growth_s·j.
SERVER: Final = record(
    "f8: start_s",  # when the stretch began
    "f8: lead_s step_s growth_s",
    "f8: seen_s",  # the step planned next serves what was submitted until then
    "f8: e2e_sum_s",  # total since the start, as vLLM's histogram counts it
    "f8: polled_e2e_sum_s",  # the same at the last poll
    "i4: finished polled_finished steps lead",
    "i4: lead_tokens",  # tokens computed in the leading step
    "i4: decoders",  # requests that emit one token in every further step
    "i4: clock",  # engine steps completed
    "i4: running waiting",
    "i4: partial",  # request whose prefill is under way (always the last of running)
    "i4: next_finish",  # least finish clock among the running
    "i4: ending",  # request that has it, to be prefetched
    "i4: kv_tokens",  # tokens of the running requests in the cache
    "i4: leaving",  # ended with the last step, while the next was scheduled (async)
    "i4: leaving_blocks",  # that they hold
    "i4: evicted",  # evicted requests that wait (prefix caching; likewise the next two)
    "i4: cached_blocks",  # at the end of the queue of free blocks: full of known tokens
    "i4: freed_blocks",  # blocks put there so far, less those found again
)  # 128 bytes: two lines of a processor's cache

# One call in a server, waiting or running.
REQUEST: Final = record(
    "f8: priority",  # lower first
    "f8: submit_s",
    "f8: admitted_s",  # start of the step that first scheduled it (NaN before)
    "f8: first_token_s",
    "i4: seq",  # order of submission, breaks ties
    "i4: prompt_tokens output_tokens",
    "i4: generated",  # tokens emitted before it was last (re)admitted
    "i4: computed",  # tokens in the cache: while it is prefilled; findable, when evicted
    "i4: query",  # the call that it serves: query slot, node, phase
    "i2: node",
    "i1: phase server",
    "i4: evictions",
)

WAITING: Final = np.dtype([("priority", "f8"), ("seq", "i4"), ("request", "i4")], align=True)

# A call whose client waits (`faults.py`).
TIMER: Final = record(
    "i4: older",  # the calls sent before and after it that are waited for, or NO_REQUEST
    "i4: newer",
    "i2: attempt",  # 1 for the first
    "i2: watched",  # 1: it is in the list
)

# A change of a server's condition; a stream's changes are sorted by time, the last at infinity.
FAULT: Final = record(
    "f8: at_s",
    "f8: pace",  # factor on the duration of its steps
    "i4: late_polls",  # polls by which its readings are late, or LOST
    "i2: model",
    "i2: down",  # 1: it is down
)
LOST: Final = 1 << 30  # polls

# The present condition of a server, and which of its readings is shown.
CONDITION: Final = record(
    "f8: pace",
    "f8: taken_s",  # when the reading that is shown was taken
    "i4: late_polls",
    "i4: shown",  # the poll that is shown
    "i4: down",
)

# A call that ended with the last step, while the next one was scheduled already.
LEAVING: Final = np.dtype(
    [("priority", "f8"), ("seq", "i4"), ("computed", "i4"), ("findable", "i4")], align=True
)


class Cluster(NamedTuple):
    """The servers of E environments."""

    card: Annotated[Records, "M", CARD]
    server: Annotated[Records, "E M", SERVER]
    end_s: Annotated[Floats, "E M"]  # end of the stretch, infinity when idle
    request: Annotated[Records, "E R", REQUEST]  # a pool
    free: Annotated[Int32s, "E R"]  # stack of returned request ids
    freed_before: Annotated[Int32s, "E R"]  # the server's freed_blocks at the request's eviction
    timer: Annotated[Records, "E R", TIMER]
    counts: Annotated[Int32s, "E 7"]  # by place, below
    busy: Annotated[NDArray[np.uint32], "E"]  # bit mask of servers that had work at the last flush
    seen: Annotated[NDArray[np.float32], "E 3 M"]  # normalised telemetry: QUEUE, E2E, KV
    running: Annotated[Int32s, "E M S"]  # request ids in order of admission
    finish_clock: Annotated[Int32s, "E M S"]  # engine step at which each one ends
    base_tokens: Annotated[Int32s, "E M S"]  # computed tokens less the clock
    waiting: Annotated[Records, "E M R", WAITING]  # binary heaps
    leaving: Annotated[Records, "E M S", LEAVING]  # with async scheduling
    done: Annotated[Int32s, "S"]  # scratch: requests that ended with the last stretch
    fault: Annotated[Records, "E F", FAULT]  # F = 0: there are none
    condition: Annotated[Records, "E M", CONDITION]
    reading: Annotated[Floats, "E H 4 M"]  # of the last H polls: QUEUE, E2E, KV, TAKEN


# Values of a reading; the first three are those of `inframind_gym.envs.layout.SYSTEM_FEATURES`.
QUEUE, E2E, KV, TAKEN = range(4)  # TAKEN: when, s

# Places of `counts`.
FREE_IDS, USED_IDS, NEXT_SEQ, DIRTY, OLDEST, NEWEST, NEXT_FAULT = range(7)


def card_record(card: ServerCard, slowdown: float = 0.0, peers: int = 0) -> NDArray[Any]:
    """Return a server card as an array (1,) of CARD records.

    Args:
        card: The card.
        slowdown: Relative slowdown of a step per co-located model that has work.
        peers: Bit mask of the other servers on the same GPU.
    """
    engines = card.data_parallel_size
    blocks = card.num_kv_blocks - 1 - card.shared_prefix_tokens // card.block_size
    return filled(
        CARD,
        **{name: getattr(card.step, name) for name in StepCost.model_fields},
        slowdown=slowdown,
        max_num_seqs=card.slots,
        max_num_batched_tokens=engines * card.max_num_batched_tokens,
        usable_blocks=engines * blocks,
        block_size=card.block_size,
        peers=peers,
        shared_prefix_tokens=card.shared_prefix_tokens,
        prefix_caching=card.prefix_caching,
        async_scheduling=card.async_scheduling,
    )


def cards(pool: PoolConfig) -> NDArray[Any]:
    """Return the pool's server cards as an array (M,) of CARD records."""
    slowdown = {gpu.name: gpu.colocation_slowdown for gpu in pool.gpus}
    records = []
    for m, model in enumerate(pool.models):
        peers = sum(
            1 << other
            for other, neighbour in enumerate(pool.models)
            if other != m and neighbour.gpu == model.gpu
        )
        records.append(card_record(model.server, slowdown[model.gpu], peers))
    return np.concatenate(records)


def linear_cards(card: NDArray[Any]) -> NDArray[Any]:
    """Return cards (M,) whose steps are linear in new tokens and never longer than the given ones'.

    The roofline is replaced by its tangent at `max_num_seqs` new tokens: the steps of a full batch
    that only decodes take as long as before.
    """
    out, power = card.copy(), card["roofline_power"]
    compute_s = card["per_new_token_s"] * card["max_num_seqs"]
    step_s = (card["base_s"] ** power + compute_s**power) ** (1.0 / power)
    out["base_s"] = card["base_s"] ** power * step_s ** (1.0 - power)
    out["per_new_token_s"] *= (compute_s / step_s) ** (power - 1.0)
    out["roofline_power"] = 1.0
    return out


def allocate(
    card: NDArray[Any], num_envs: int, max_requests: int, num_faults: int = 0, late_polls: int = 0
) -> Cluster:
    """Allocate the servers of E environments.

    Args:
        card: (M,) server cards.
        num_envs: E.
        max_requests: largest number of calls in flight in each environment.
        num_faults: F, changes of the servers' conditions, the last at infinity; 0: none.
        late_polls: largest number of polls by which readings are late, lost ones apart.
    """
    sizes = {
        "E": num_envs,
        "M": len(card),
        "R": max_requests,
        "S": int(card["max_num_seqs"].max()),
        "F": num_faults,
        "H": late_polls + 1,
    }
    return zeros(Cluster, sizes, card=card)
