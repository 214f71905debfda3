"""State of the clusters: GPUs, instances, servers, requests and jobs, as records and arrays.

The first axis of every array is the environment of a batch (E); G GPUs, M models, S slots and Q
queue places of the largest server, J jobs and R requests at most in an episode.

An *instance* is one model on one block of `tp` neighbouring GPUs, from a multiple of `tp` on; its
record is kept at the block's first GPU, its *leader*. A *server* is the working part of an instance
that is awake; it is kept at the leader too, because a GPU belongs to at most one server.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner
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


def is_moving(state: Any) -> Any:
    """Return whether an instance is in transition, of one state or an array."""
    return state >= DRAINING


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
WAKE: Final = 0
SLEEP: Final = 1
LOAD: Final = 2
OFFLOAD: Final = 3
FIRST_SLEEP: Final = 4  # drawn like a sleep, never averaged into the observed times
TIMES: Final = 4

# What an episode begins with.
EMPTY: Final = 0
SPREAD: Final = 1
EVERYWHERE: Final = 2  # of the bound: every model awake on GPUs of its own

# Counters of an episode, in the order of `COUNTERS`.
COUNTERS: Final = ("wakes", "loads", "sleeps", "offloads", "failed_wakes", "failed_loads")
C_WAKES: Final = 0
C_LOADS: Final = 1
C_SLEEPS: Final = 2
C_OFFLOADS: Final = 3
C_FAILED_WAKES: Final = 4
C_FAILED_LOADS: Final = 5

SETTINGS: Final = np.dtype(
    [
        ("routing_s", "f8"),  # δt1
        ("request_norm", "f8"),  # request-seconds that cost a reward of 1
        ("illegal_penalty", "f8"),
        ("ema", "f8"),
        ("timing_spread", "f8"),
        ("timing_noise", "f8"),
        ("foreign_mb", "f8"),  # upper end of the foreign memory
        ("shift_s", "f8"),  # infinity: the ranking of models stays
        ("prompt_log", "f8"),  # logarithm of the median
        ("prompt_sigma", "f8"),
        ("output_log", "f8"),
        ("output_sigma", "f8"),
        ("max_tokens", "f8"),
        ("slo_factor", "f8"),
        ("slo_grace_s", "f8"),
        ("ticks", "i4"),  # routing intervals of a decision interval
        ("decisions", "i4"),  # of an episode
        ("foreign_ticks", "i4"),
        ("shift_by", "i4"),
        ("initial", "i4"),  # EMPTY, SPREAD or EVERYWHERE
        ("traced", "i4"),  # 1: numbers of tokens are the trace's
    ],
    align=True,
)

MODEL: Final = np.dtype(
    [
        ("time_s", "f8", (TIMES + 1,)),  # WAKE, SLEEP, LOAD, OFFLOAD, FIRST_SLEEP
        ("active_mb", "f8"),
        ("slept_mb", "f8"),
        ("base_s", "f8"),
        ("per_seq_s", "f8"),
        ("prefill_token_s", "f8"),  # to compute a token of a prompt
        ("latency_s", "f8"),  # of a call of mean length, alone: what is believed at the start
        ("tp", "i4"),
        ("slots", "i4"),
        ("queue", "i4"),
    ],
    align=True,
)

GPU: Final = np.dtype([("vram_mb", "f8"), ("slept_limit_mb", "f8")], align=True)

DAG: Final = np.dtype(
    [
        ("predecessors", "u4", (MAX_CALLS,)),  # bit masks of calls
        ("successors", "u4", (MAX_CALLS,)),
        ("agent", "i4", (MAX_CALLS,)),  # who makes the call; MAX_AGENTS for the one that decides
        ("calls", "i4"),
    ],
    align=True,
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


EPISODE: Final = np.dtype(
    [
        ("key", "u8"),  # of all random numbers
        ("waiting_s", "f8"),  # request-seconds of the step: ready, not running
        ("service_s", "f8"),  # running
        ("spent_s", "f8"),  # request-seconds of the episode, both kinds
        ("tick", "i8"),
        ("decision", "i4"),
        ("next_job", "i4"),
        ("jobs_done", "i4"),
        ("jobs_done_before", "i4"),  # the same before the step
        ("jobs_late", "i4"),  # jobs whose deadline passed before they were done
        ("requests_done", "i4"),
        ("requests_made", "i4"),
        ("waiting", "i4"),  # requests now: ready, not running
        ("serving", "i4"),
        ("moving", "i4"),  # instances in transition
        ("illegal", "i4"),  # choices of the step
        ("late", "i4"),  # deadlines that passed in the step
        ("free_jobs", "i4"),
        ("used_jobs", "i4"),
        ("free_requests", "i4"),
        ("used_requests", "i4"),
        ("counter", "i4", (len(COUNTERS),)),
    ],
    align=True,
)

INSTANCE: Final = np.dtype(
    [
        ("begun_s", "f8"),  # when the present phase began
        ("until_s", "f8"),  # when it ends (SLEEPING, VANISHING, WAKING, LOADING)
        ("turns", "i4"),  # transitions so far
        ("state", "i1"),
        ("fate", "i1"),  # of a DRAINING one
        ("slept_before", "i1"),  # its process has slept
        ("from_slept", "i1"),  # QUEUED: it wakes (1) or loads (0)
        ("heavy", "i1"),  # VANISHING: it holds the memory of one that is awake
    ],
    align=True,
)

SERVER: Final = np.dtype(
    [
        ("clock", "f8"),  # engine steps so far
        ("prefill_s", "f8"),  # until the prompts of the running are computed: the clock stands
        ("next_finish", "f8"),  # least finish clock among the running
        ("last_s", "f8"),  # when its last call ended
        ("latency_sum_s", "f8"),  # of its finished calls, from submission on
        ("polled_sum_s", "f8"),  # the same at the last decision
        ("mean_s", "f8"),  # latency of the calls that finished in the last interval with any
        ("latency_count", "i4"),
        ("polled_count", "i4"),
        ("model", "i4"),  # NONE: there is none
        ("running", "i4"),
        ("next_slot", "i4"),  # slot of `next_finish`
        ("queued", "i4"),
        ("queue_head", "i4"),
    ],
    align=True,
)

# Requests of one model that wait for a server, and what is known of the model.
QUEUE: Final = np.dtype(
    [
        ("stamp_sum_s", "f8"),
        ("latency_s", "f8"),  # EMA of the latency of its calls
        ("head", "i4"),
        ("tail", "i4"),
        ("count", "i4"),
        ("potential", "i4"),  # calls of jobs in the cluster whose turn has not come
        ("arrived", "i4"),  # became ready in the step
        ("loading", "i4"),  # instances QUEUED, WAKING or LOADING
        ("active", "i4"),  # instances ACTIVE
    ],
    align=True,
)

REQUEST: Final = np.dtype(
    [
        ("ready_s", "f8"),
        ("stamp_s", "f8"),  # tick at which it was put into waiting_for_scheduling
        ("submit_s", "f8"),
        ("work", "f8"),  # engine steps: tokens of its answer
        ("prefill_s", "f8"),  # that computing its prompt adds to a step
        ("job", "i4"),
        ("call", "i4"),
        ("next", "i4"),  # behind it in the model's queue
    ],
    align=True,
)

JOB: Final = np.dtype(
    [
        ("arrival_s", "f8"),
        ("deadline_s", "f8"),
        ("ideal_s", "f8"),
        ("ordinal", "i4"),
        ("dag", "i4"),
        ("left", "i4"),  # calls to go
        ("late", "i4"),  # 1: its deadline has passed
        ("done", "u4"),  # bit mask of calls
        ("model", "i1", (MAX_CALLS,)),
        ("work", "f8", (MAX_CALLS,)),
        ("prefill_s", "f8", (MAX_CALLS,)),
    ],
    align=True,
)

# One job that is over: what the benchmark and learners read.
JOB_DONE: Final = np.dtype(
    [
        ("arrival_s", "f8"),
        ("finish_s", "f8"),
        ("latency_s", "f8"),
        ("ideal_s", "f8"),
        ("slo_s", "f8"),
        ("job", "i4"),
        ("calls", "i4"),
        ("late", "i4"),
        ("topology", "i4"),
        ("num_agents", "i4"),
    ],
    align=True,
)


class ClusterState(NamedTuple):
    """State of E clusters, and scratch space."""

    episode: NDArray[Any]  # (E,) EPISODE
    instance: NDArray[Any]  # (E, G, M) INSTANCE, at the leader
    server: NDArray[Any]  # (E, G) SERVER, at the leader
    run_finish: NDArray[np.float64]  # (E, G, S) clock at which each running call ends
    run_request: NDArray[np.int32]  # (E, G, S)
    queue: NDArray[np.int32]  # (E, G, Q) requests that wait in the server, a ring
    host: NDArray[np.int32]  # (E, G) leader of the server that works on this GPU, or NONE
    moving: NDArray[np.int32]  # (E, G) instances in transition; 0: the GPU is STABLE
    clear_s: NDArray[np.float64]  # (E, G) when the last transition on it ended
    foreign_mb: NDArray[np.float64]  # (E, G)
    waiting: NDArray[Any]  # (E, M) QUEUE
    spread: NDArray[np.float64]  # (E, M, TIMES + 1) true over card times
    seen_s: NDArray[np.float64]  # (E, M, TIMES) EMA of observed times
    rank: NDArray[np.int32]  # (E, M) model at each rank of popularity
    request: NDArray[Any]  # (E, R) REQUEST
    free_request: NDArray[np.int32]  # (E, R) stack
    job: NDArray[Any]  # (E, J) JOB
    free_job: NDArray[np.int32]  # (E, J) stack
    deadline_s: NDArray[np.float64]  # (E, J) of jobs in the cluster that are not late, else inf
    arrival_s: NDArray[np.float64]  # (E, J) of the episode's jobs, infinity after the last
    trace_row: NDArray[np.int64]  # (E, J)
    done: NDArray[Any]  # (E, J) JOB_DONE, in order of completion
    mask: NDArray[np.bool_]  # (E, G, M + 1) legal choices
    path_s: NDArray[np.float64]  # (MAX_CALLS,) scratch: longest line up to each call
    prompt: NDArray[np.float64]  # (MAX_CALLS,) scratch: tokens that each call of a job reads
    output: NDArray[np.float64]  # (MAX_CALLS,) scratch: tokens of each call's answer
    target: NDArray[np.int32]  # (G,) scratch: leaders that a request may go to


def allocate(world: ClusterParams, num_envs: int, jobs: int) -> ClusterState:
    """Return arrays for `num_envs` clusters in whose episodes at most `jobs` jobs come."""
    gpus, models = len(world.gpu), len(world.model)
    requests = jobs * MAX_AGENTS  # calls of a job that are in the cluster at once
    by_gpu = (num_envs, gpus)
    slots = int(world.model["slots"].max())
    places = max(1, int(world.model["queue"].max()))
    return ClusterState(
        episode=np.zeros(num_envs, EPISODE),
        instance=np.zeros((*by_gpu, models), INSTANCE),
        server=np.zeros(by_gpu, SERVER),
        run_finish=np.zeros((*by_gpu, slots)),
        run_request=np.zeros((*by_gpu, slots), np.int32),
        queue=np.zeros((*by_gpu, places), np.int32),
        host=np.zeros(by_gpu, np.int32),
        moving=np.zeros(by_gpu, np.int32),
        clear_s=np.zeros(by_gpu),
        foreign_mb=np.zeros(by_gpu),
        waiting=np.zeros((num_envs, models), QUEUE),
        spread=np.ones((num_envs, models, TIMES + 1)),
        seen_s=np.zeros((num_envs, models, TIMES)),
        rank=np.zeros((num_envs, models), np.int32),
        request=np.zeros((num_envs, requests), REQUEST),
        free_request=np.zeros((num_envs, requests), np.int32),
        job=np.zeros((num_envs, jobs), JOB),
        free_job=np.zeros((num_envs, jobs), np.int32),
        deadline_s=np.zeros((num_envs, jobs)),
        arrival_s=np.zeros((num_envs, jobs)),
        trace_row=np.zeros((num_envs, jobs), np.int64),
        done=np.zeros((num_envs, jobs), JOB_DONE),
        mask=np.zeros((*by_gpu, models + 1), np.bool_),
        path_s=np.zeros(MAX_CALLS),
        prompt=np.zeros(MAX_CALLS),
        output=np.zeros(MAX_CALLS),
        target=np.zeros(gpus, np.int32),
    )
