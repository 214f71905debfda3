"""The compiled step of the placement environment: decide, let an interval pass, reward, observe.

Reward and observation are described, number by number, in `PlacementEnv`.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.placement.episode import (
    begin_episode,
    close_interval,
    drain_latency,
    open_interval,
    run_tick,
)
from inframind_gym.simulator.placement.instances import (
    decide,
    held,
    leader_of,
    slept_on,
    write_mask,
)
from inframind_gym.simulator.placement.state import (
    ACTIVE,
    NONE,
    SLEPT,
    TIMES,
    ClusterState,
    is_coming,
    is_moving,
    tick_time_s,
)

BEGIN: Final = 0
STEP: Final = 1
TERMS: Final = ("waiting", "service", "illegal")
STATES: Final = 4
GPU_FEATURES: Final = 7
MODEL_FEATURES: Final = 8 + TIMES
HIGHEST: Final = 5.0  # of log(1 + x) / log(101) up to x = 10^9, and of every share
_LOG_SCALE: Final = 1.0 / math.log(301.0)
_COUNT_SCALE: Final = 1.0 / math.log(101.0)


@inner
def write_reward(cluster: ClusterState, e: int, terms: NDArray[np.float64]) -> None:
    """Write the reward's terms of the interval that has ended.

    Args:
        terms: (3,) in the order of TERMS, written; the reward is their sum.
    """
    settings = cluster.world.settings[0]
    episode = cluster.episode[e]
    terms[0] = -episode.waiting_s / settings.request_norm
    terms[1] = -episode.service_s / settings.request_norm
    terms[2] = -settings.illegal_penalty * episode.illegal / cluster.world.gpu.shape[0]


def observation_size(gpus: int, models: int) -> int:
    """Return the width of an observation."""
    return gpus * (STATES * models + GPU_FEATURES) + models * MODEL_FEATURES


@inner
def seconds(value: float) -> float:
    """Return a time in s as a feature: log(1 + s) / log(301)."""
    return math.log1p(value) * _LOG_SCALE


@inner
def count(value: float) -> float:
    """Return a number of calls as a feature: log(1 + n) / log(101)."""
    return math.log1p(value) * _COUNT_SCALE


@inner
def observe_gpu(cluster: ClusterState, e: int, g: int, out: NDArray[np.float32], at: int) -> int:
    """Write the numbers of GPU `g` from `at` on; return the index behind them."""
    now_s = tick_time_s(cluster, e)
    gpu = cluster.world.gpu[g]
    begun_s = -1.0
    for m in range(cluster.world.model.shape[0]):
        leader = leader_of(cluster, g, m)
        for i in range(STATES):
            out[at + i] = 0.0
        if leader != NONE:
            instance = cluster.instance[e, leader, m]
            state = instance.state
            if state == ACTIVE:
                out[at] = 1.0
            elif state == SLEPT:
                out[at + 1] = 1.0
            elif is_moving(state):
                out[at + (2 if is_coming(state) else 3)] = 1.0
                begun_s = max(begun_s, instance.begun_s)
        at += STATES
    free = gpu.vram_mb - held(cluster, e, g) - cluster.foreign_mb[e, g]
    out[at] = 1.0 if cluster.moving[e, g] == 0 else 0.0
    out[at + 2] = max(free, 0.0) / gpu.vram_mb
    limit = gpu.slept_limit_mb
    out[at + 3] = slept_on(cluster, e, g) / limit if limit > 0.0 else 0.0
    host = int(cluster.host[e, g])
    if host == NONE:
        out[at + 1] = out[at + 4] = out[at + 5] = 0.0
    else:
        server = cluster.server[e, host]
        model = cluster.world.model[server.model]
        out[at + 1] = seconds(drain_latency(cluster, e, host))
        out[at + 4] = server.running / model.slots
        out[at + 5] = server.queued / max(model.queue, 1)
    out[at + 6] = seconds(now_s - begun_s) if begun_s >= 0.0 else 0.0
    return at + GPU_FEATURES


@inner
def observe_model(cluster: ClusterState, e: int, m: int, out: NDArray[np.float32], at: int) -> int:
    """Write the numbers of model `m` from `at` on; return the index behind them."""
    now_s = tick_time_s(cluster, e)
    waiting = cluster.waiting[e, m]
    oldest_s = 0.0
    if waiting.count > 0:
        oldest_s = now_s - cluster.request[e, waiting.head].stamp_s
    out[at] = count(waiting.count)
    out[at + 1] = seconds(max(waiting.count * now_s - waiting.stamp_sum_s, 0.0))
    out[at + 2] = seconds(oldest_s)
    out[at + 3] = count(waiting.count + waiting.potential)
    out[at + 4] = count(waiting.arrived)
    out[at + 5] = 1.0 if waiting.loading > 0 else 0.0
    out[at + 6] = waiting.active * cluster.world.model[m].tp / cluster.world.gpu.shape[0]
    out[at + 7] = seconds(waiting.latency_s)
    for kind in range(TIMES):
        out[at + 8 + kind] = seconds(cluster.seen_s[e, m, kind])
    return at + MODEL_FEATURES


@inner
def observe(cluster: ClusterState, e: int, out: NDArray[np.float32]) -> None:
    """Write the observation of environment `e`.

    Args:
        out: (d,), written.
    """
    at = 0
    for g in range(cluster.world.gpu.shape[0]):
        at = observe_gpu(cluster, e, g, out, at)
    for m in range(cluster.world.model.shape[0]):
        at = observe_model(cluster, e, m, out, at)


@jit
def drive(
    cluster: ClusterState,
    mode: int,
    rows: NDArray[np.int64],
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
    terms: NDArray[np.float64],
    first: int,
    last: int,
) -> None:
    """Begin an episode in the environments `rows[first:last]`, or carry out a decision in each.

    Args:
        mode: BEGIN (key, ranking and arrivals are in place) or STEP.
        rows: (k,) environments.
        actions: (E, G), read at `rows`.
        observations: (E, d), written at `rows`.
        terms: (E, 3) of the reward, in the order of TERMS, written at `rows` in a step.
        first, last: range of `rows` to work on: a thread's share.
    """
    settings = cluster.world.settings[0]
    for i in range(first, last):
        e = rows[i]
        if mode == BEGIN:
            begin_episode(cluster, e)
        else:
            end_s = (cluster.episode[e].tick + settings.ticks) * settings.routing_s
            open_interval(cluster, e, end_s)
            decide(cluster, e, actions[e])
            for _ in range(settings.ticks):
                run_tick(cluster, e)
            close_interval(cluster, e)
            write_reward(cluster, e, terms[e])
        write_mask(cluster, e)
        observe(cluster, e, observations[e])


@jit
def write_held(
    cluster: ClusterState, rows: NDArray[np.int64], held_mb: NDArray[np.float64]
) -> None:
    """Write the memory that all models hold on each GPU of some environments.

    Args:
        rows: (n,) environments.
        held_mb: (n, G) MB, written.
    """
    for i in range(rows.shape[0]):
        for g in range(cluster.world.gpu.shape[0]):
            held_mb[i, g] = held(cluster, rows[i], g)
