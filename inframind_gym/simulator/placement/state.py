"""State of the clusters: GPUs, instances, servers, requests and jobs, as records and arrays.

The first axis of every array is the environment of a batch (E); G GPUs, M models, S slots and Q
queue places of the largest server, J jobs and R requests at most in an episode.

An *instance* is one model on one block of `tp` neighbouring GPUs, from a multiple of `tp` on; its
record is kept at the block's first GPU, its *leader*. A *server* is the working part of an instance
that is awake; it is kept at the leader too, because a GPU belongs to at most one server.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import Floats, Int32s, Records, inner, record, zeros
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES

Whole = TypeVar("Whole", int, NDArray[np.int64])

MAX_CALLS: Final = MAX_NODES + 1  # of a job: its nodes and the call that decides
NONE: Final = -1

# States of an instance. Their order counts: from DRAINING on an instance is in transition, from
# QUEUED on it comes.
ABSENT: Final = 0
SLEPT: Final = 1
ACTIVE: Final = 2
DRAINING: Final = 3  # finishes what is in flight, then goes the way of its fate
SLEEPING: Final = 4  # its weights leave the GPU
VANISHING: Final = 5  # its process ends
QUEUED: Final = 6  # chosen; other instances have not left its GPUs yet
WAKING: Final = 7
LOADING: Final = 8
STATE_NAMES: Final = (
    *("absent", "slept", "active", "draining", "sleeping", "vanishing"),
    *("queued", "waking", "loading"),
)


@inner
def is_moving(state: Any) -> Any:
    """Return whether an instance is in transition, of one state or an array."""
    return state >= DRAINING


@inner
def is_coming(state: Any) -> Any:
    """Return whether an instance is QUEUED, WAKING or LOADING, of one state or an array."""
    return state >= QUEUED


@inner
def first_gpu(g: Whole, tp: Whole) -> Whole:
    """Return the first GPU of the block that GPU `g` is in; the last block may be incomplete.

    Args:
        g: a GPU, or an array of them.
        tp: GPUs of an instance, one number or an array that goes with `g`.
    """
    return g // tp * tp


# Fates of one that drains.
TO_SLEEP: Final = 0
TO_VANISH: Final = 1

# Kinds of times that cards hold and that are observed.
WAKE, SLEEP, LOAD, OFFLOAD = range(4)
FIRST_SLEEP: Final = 4  # drawn like a sleep, never averaged into the observed times
TIMES: Final = 4

# What an episode begins with.
EMPTY: Final = 0
SPREAD: Final = 1
EVERYWHERE: Final = 2  # of the bound: every model awake on GPUs of its own

# Counters of an episode, in the order of `COUNTERS`.
COUNTERS: Final = ("wakes", "loads", "sleeps", "offloads", "failed_wakes", "failed_loads")
C_WAKES, C_LOADS, C_SLEEPS, C_OFFLOADS, C_FAILED_WAKES, C_FAILED_LOADS = range(6)

SETTINGS: Final = record(
    "f8: routing_s",  # δt1
    "f8: request_norm",  # request-seconds that cost a reward of 1
    "f8: illegal_penalty ema timing_spread timing_noise",
    "f8: foreign_mb",  # upper end of the foreign memory
    "f8: shift_s",  # infinity: the ranking of models stays
    "f8: prompt_log",  # logarithm of the median
    "f8: prompt_sigma output_log output_sigma max_tokens slo_factor slo_grace_s",
    "i4: ticks",  # routing intervals of a decision interval
    "i4: decisions",  # of an episode
    "i4: foreign_ticks shift_by",
    "i4: initial",  # EMPTY, SPREAD or EVERYWHERE
    "i4: traced",  # 1: numbers of tokens are the trace's
)

MODEL: Final = record(
    f"({TIMES + 1},)f8: time_s",  # WAKE, SLEEP, LOAD, OFFLOAD, FIRST_SLEEP
    "f8: active_mb slept_mb base_s per_seq_s",
    "f8: prefill_token_s",  # to compute a token of a prompt
    "f8: latency_s",  # of a call of mean length, alone: what is believed at the start
    "i4: tp slots queue",
)

GPU: Final = np.dtype([("vram_mb", "f8"), ("slept_limit_mb", "f8")], align=True)

DAG: Final = record(
    f"({MAX_CALLS},)u4: predecessors",  # bit masks of calls
    f"({MAX_CALLS},)i4: agent",  # who makes the call; MAX_AGENTS for the one that decides
    "i4: calls",
)


class ClusterParams(NamedTuple):
    """Constants of a run: cards, GPUs, graphs of calls and settings."""

    settings: NDArray[Any]  # (1,) SETTINGS
    model: NDArray[Any]  # (M,) MODEL
    gpu: NDArray[Any]  # (G,) GPU
    dag: NDArray[Any]  # (topologies * MAX_AGENTS,) DAG
    topology_cdf: NDArray[np.float64]  # (topologies,)
    agents_cdf: NDArray[np.float64]  # (MAX_AGENTS,)
    mix_cdf: NDArray[np.float64]  # (M,) over ranks
    trace_prompt: NDArray[np.float64]  # (T,)
    trace_output: NDArray[np.float64]  # (T,)


EPISODE: Final = record(
    "u8: key",  # of all random numbers
    "f8: waiting_s",  # request-seconds of the step: ready, not running
    "f8: service_s",  # running
    "f8: spent_s",  # request-seconds of the episode, both kinds
    "f8: end_s",  # of the decision interval that runs, or ran last
    "i8: tick",
    "i4: decision next_job jobs_done",
    "i4: jobs_done_before",  # the same before the step
    "i4: jobs_late",  # jobs whose deadline passed before they were done
    "i4: requests_done requests_made",
    "i4: waiting",  # requests now: ready, not running
    "i4: serving",
    "i4: moving",  # instances in transition
    "i4: illegal",  # choices of the step
    "i4: late",  # deadlines that passed in the step
    "i4: free_jobs used_jobs free_requests used_requests",
    f"({len(COUNTERS)},)i4: counter",
)

INSTANCE: Final = record(
    "f8: begun_s",  # when the present phase began
    "f8: until_s",  # when it ends (SLEEPING, VANISHING, WAKING, LOADING)
    "i4: turns",  # transitions so far
    "i1: state",
    "i1: fate",  # of a DRAINING one
    "i1: slept_before",  # its process has slept
    "i1: from_slept",  # QUEUED: it wakes (1) or loads (0)
    "i1: heavy",  # VANISHING: it holds the memory of one that is awake
)

SERVER: Final = record(
    "f8: clock",  # engine steps so far
    "f8: prefill_s",  # until the prompts of the running are computed: the clock stands
    "f8: next_finish",  # least finish clock among the running
    "f8: last_s",  # when its last call ended
    "f8: latency_sum_s",  # of its finished calls, from submission on
    "f8: polled_sum_s",  # the same at the last decision
    "f8: mean_s",  # latency of the calls that finished in the last interval with any
    "i4: latency_count polled_count",
    "i4: model",  # NONE: there is none
    "i4: running",
    "i4: next_slot",  # slot of `next_finish`
    "i4: queued queue_head",
)

# Requests of one model that wait for a server, and what is known of the model.
QUEUE: Final = record(
    "f8: stamp_sum_s",
    "f8: latency_s",  # EMA of the latency of its calls
    "i4: head tail count",
    "i4: potential",  # calls of jobs in the cluster whose turn has not come
    "i4: arrived",  # became ready in the step
    "i4: loading",  # instances QUEUED, WAKING or LOADING
    "i4: active",  # instances ACTIVE
)

REQUEST: Final = record(
    "f8: ready_s",
    "f8: stamp_s",  # tick at which it was put into waiting_for_scheduling
    "f8: submit_s",
    "f8: work",  # engine steps: tokens of its answer
    "f8: prefill_s",  # that computing its prompt adds to a step
    "i4: job call",
    "i4: next",  # behind it in the model's queue
)

JOB: Final = record(
    "f8: arrival_s deadline_s ideal_s",
    "i4: ordinal dag",
    "i4: left",  # calls to go
    "i4: late",  # 1: its deadline has passed
    "u4: done",  # bit mask of calls
    f"({MAX_CALLS},)i1: model",
    f"({MAX_CALLS},)f8: work prefill_s",
)

# One job that is over: what the benchmark and learners read.
JOB_DONE: Final = record(
    "f8: arrival_s finish_s latency_s ideal_s slo_s",
    "i4: job calls late topology num_agents",
)


class ClusterState(NamedTuple):
    """E clusters of the same kind: their constants, their state, and scratch space."""

    world: ClusterParams
    episode: Annotated[Records, "E", EPISODE]
    instance: Annotated[Records, "E G M", INSTANCE]  # at the leader
    server: Annotated[Records, "E G", SERVER]  # at the leader
    run_finish: Annotated[Floats, "E G S"]  # clock at which each running call ends
    run_request: Annotated[Int32s, "E G S"]
    queue: Annotated[Int32s, "E G Q"]  # requests that wait in the server, a ring
    host: Annotated[Int32s, "E G"]  # leader of the server that works on this GPU, or NONE
    moving: Annotated[Int32s, "E G"]  # instances in transition; 0: the GPU is STABLE
    clear_s: Annotated[Floats, "E G"]  # when the last transition on it ended
    foreign_mb: Annotated[Floats, "E G"]
    waiting: Annotated[Records, "E M", QUEUE]
    spread: Annotated[Floats, "E M TIMES+1"]  # true over card times
    seen_s: Annotated[Floats, "E M TIMES"]  # EMA of observed times
    rank: Annotated[Int32s, "E M"]  # model at each rank of popularity
    request: Annotated[Records, "E R", REQUEST]
    free_request: Annotated[Int32s, "E R"]  # stack
    job: Annotated[Records, "E J", JOB]
    free_job: Annotated[Int32s, "E J"]  # stack
    deadline_s: Annotated[Floats, "E J"]  # infinity: the job is late, or not in the cluster
    arrival_s: Annotated[Floats, "E J"]  # of the episode's jobs, infinity after the last
    trace_row: Annotated[NDArray[np.int64], "E J"]
    done: Annotated[Records, "E J", JOB_DONE]  # in order of completion
    mask: Annotated[NDArray[np.bool_], "E G M+1"]  # legal choices
    path_s: Annotated[Floats, "MAX_CALLS"]  # scratch: longest line up to each call
    prompt: Annotated[Floats, "MAX_CALLS"]  # scratch: tokens that each call of a job reads
    output: Annotated[Floats, "MAX_CALLS"]  # scratch: tokens of each call's answer
    target: Annotated[Int32s, "G"]  # scratch: leaders that a request may go to


@inner
def tick_time_s(cluster: ClusterState, e: int) -> float:
    """Return the time of the last tick."""
    return float(cluster.episode[e].tick * cluster.world.settings[0].routing_s)


def allocate(world: ClusterParams, num_envs: int, jobs: int) -> ClusterState:
    """Return arrays for `num_envs` clusters in whose episodes at most `jobs` jobs come."""
    models = len(world.model)
    sizes = {
        "E": num_envs,
        "G": len(world.gpu),
        "M": models,
        "M+1": models + 1,
        "S": int(world.model["slots"].max()),
        "Q": max(1, int(world.model["queue"].max())),
        "J": jobs,
        "R": jobs * MAX_AGENTS,  # calls of a job that are in the cluster at once
        "TIMES": TIMES,
        "TIMES+1": TIMES + 1,
        "MAX_CALLS": MAX_CALLS,
    }
    return zeros(ClusterState, sizes, world=world)
