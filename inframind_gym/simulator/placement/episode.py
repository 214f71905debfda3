"""An episode: its beginning, and the order of events in its intervals.

One decision interval from t to t + δt2, in order:

1. The decision is carried out (`instances`).
2. For each tick T = t, t + δt1, …: waiting calls are routed and servers run from T to T + δt1
   (`jobs`); transitions that end by T + δt1 end (`instances`); jobs that arrived in (T, T + δt1]
   come in (`jobs`); where it is due, foreign memory is redrawn (`instances`).
3. Servers are polled, and deadlines that have passed are noted.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.placement.instances import (
    STREAM_SPREAD,
    advance,
    redraw_foreign,
    wake_up,
)
from inframind_gym.simulator.placement.jobs import create_job, mark_late, poll, route, serve
from inframind_gym.simulator.placement.state import (
    ACTIVE,
    EPISODE,
    EVERYWHERE,
    FIRST_SLEEP,
    INSTANCE,
    NONE,
    QUEUE,
    SERVER,
    SLEEP,
    SPREAD,
    TIMES,
    ClusterState,
    tick_time_s,
)
from inframind_gym.simulator.rng import normal, uniform

STREAM_START: Final = 109

# Records of an empty cluster: all numbers are 0, an instance is ABSENT.
_EPISODE: Final = np.zeros(1, EPISODE)
_INSTANCE: Final = np.zeros(1, INSTANCE)
_SERVER: Final = np.zeros(1, SERVER)
_QUEUE: Final = np.zeros(1, QUEUE)


@inner
def clear(cluster: ClusterState, e: int) -> None:
    """Write an empty cluster at time 0; key, ranking and arrivals are kept."""
    key = cluster.episode[e].key
    cluster.episode[e] = _EPISODE[0]
    cluster.episode[e].key = key
    for g in range(cluster.world.gpu.shape[0]):
        cluster.host[e, g] = NONE
        cluster.moving[e, g] = 0
        cluster.clear_s[e, g] = 0.0
        cluster.foreign_mb[e, g] = 0.0
        cluster.server[e, g] = _SERVER[0]
        cluster.server[e, g].model = NONE
        for m in range(cluster.world.model.shape[0]):
            cluster.instance[e, g, m] = _INSTANCE[0]
    for m in range(cluster.world.model.shape[0]):
        cluster.waiting[e, m] = _QUEUE[0]
        cluster.waiting[e, m].latency_s = cluster.world.model[m].latency_s


@inner
def fits_here(cluster: ClusterState, g: int, m: int) -> bool:
    """Return whether a block of model `m` begins at GPU `g` of an empty cluster and fits there."""
    model = cluster.world.model[m]
    if g % model.tp != 0 or g + model.tp > cluster.world.gpu.shape[0]:
        return False
    for other in range(g, g + model.tp):
        if model.active_mb > cluster.world.gpu[other].vram_mb:
            return False
    return True


@inner
def begin_awake(cluster: ClusterState, e: int, g: int, m: int) -> None:
    """Let an episode begin with model `m` awake on the block from GPU `g` on."""
    cluster.instance[e, g, m].state = ACTIVE
    wake_up(cluster, e, g, m, 0.0)


@inner
def spread_models(cluster: ClusterState, e: int) -> None:
    """Make models awake from GPU 0 on, in the order of the list from a random one on."""
    gpus, models = cluster.world.gpu.shape[0], cluster.world.model.shape[0]
    m = int(uniform(cluster.episode[e].key, STREAM_START, 0, 0) * models)
    g = 0
    while g < gpus:
        tried = 0
        while tried < models and not fits_here(cluster, g, m):
            m = (m + 1) % models
            tried += 1
        if tried == models:
            g += 1
            continue
        begin_awake(cluster, e, g, m)
        g += int(cluster.world.model[m].tp)
        m = (m + 1) % models


@inner
def begin_episode(cluster: ClusterState, e: int) -> None:
    """Begin an episode; key, ranking and arrivals are in place."""
    settings = cluster.world.settings[0]
    gpus, models = cluster.world.gpu.shape[0], cluster.world.model.shape[0]
    clear(cluster, e)
    for m in range(models):  # by how much true times differ from the card, which the agent believes
        for kind in range(TIMES):
            z = normal(cluster.episode[e].key, STREAM_SPREAD, m, kind)
            cluster.spread[e, m, kind] = math.exp(settings.timing_spread * z)
            cluster.seen_s[e, m, kind] = cluster.world.model[m].time_s[kind]
        cluster.spread[e, m, FIRST_SLEEP] = cluster.spread[e, m, SLEEP]
    if settings.initial == SPREAD:
        spread_models(cluster, e)
    elif settings.initial == EVERYWHERE:  # each model on an equal share of the GPUs, of its own
        share = gpus // models
        for m in range(models):
            for g in range(m * share, (m + 1) * share, cluster.world.model[m].tp):
                begin_awake(cluster, e, g, m)
    redraw_foreign(cluster, e, 0)


@inner
def open_interval(cluster: ClusterState, e: int, end_s: float) -> None:
    """Begin a decision interval: its counts start from what is in the cluster."""
    episode = cluster.episode[e]
    length_s = end_s - tick_time_s(cluster, e)
    episode.end_s = end_s
    episode.waiting_s = episode.waiting * length_s
    episode.service_s = episode.serving * length_s
    episode.late = 0
    episode.jobs_done_before = episode.jobs_done
    for m in range(cluster.world.model.shape[0]):
        cluster.waiting[e, m].arrived = 0


@inner
def run_tick(cluster: ClusterState, e: int) -> None:
    """Run one routing interval."""
    episode = cluster.episode[e]
    now_s = tick_time_s(cluster, e)
    episode.tick += 1
    next_s = tick_time_s(cluster, e)
    route(cluster, e, now_s)
    for g in range(cluster.world.gpu.shape[0]):
        serve(cluster, e, g, now_s, next_s)
    advance(cluster, e, next_s)
    while cluster.arrival_s[e, episode.next_job] <= next_s:
        create_job(cluster, e, episode.next_job, next_s)
        episode.next_job += 1
    if episode.tick % cluster.world.settings[0].foreign_ticks == 0:
        redraw_foreign(cluster, e, episode.tick)


@inner
def close_interval(cluster: ClusterState, e: int) -> None:
    """End a decision interval: poll the servers, note what is late, add up request-seconds."""
    episode = cluster.episode[e]
    now_s = tick_time_s(cluster, e)
    for g in range(cluster.world.gpu.shape[0]):
        if cluster.server[e, g].model != NONE:
            poll(cluster, e, g)
    for slot in range(episode.used_jobs):
        if cluster.deadline_s[e, slot] <= now_s:
            mark_late(cluster, e, slot)
    episode.decision += 1
    episode.waiting_s = max(episode.waiting_s, 0.0)  # rounding may leave a little less than none
    episode.service_s = max(episode.service_s, 0.0)
    episode.spent_s += episode.waiting_s + episode.service_s
