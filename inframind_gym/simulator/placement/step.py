"""Entry point of the compiled cluster: begin episodes, carry out decisions, observe.

One decision interval from t to t + δt2, in order:

1. The decision is carried out (`choices`).
2. For each tick T = t, t + δt1, …: waiting calls are routed (`routing`); servers run from T to
   T + δt1 (`service`); transitions that end by T + δt1 end (`instances`); jobs that arrived in
   (T, T + δt1] come in (`jobs`); where it is due, foreign memory is drawn anew (`memory`).
3. Servers are polled, deadlines that have passed are noted, reward and cost are added up, masks
   and observation are written.

*Reward.* The request-seconds of the interval, which is the integral of the number of calls that are
ready or running, in two terms: waiting and service. They are divided by the calls that come in an
interval on average, a constant of the demand, and by `latency_scale_s`. By Little's law the mean
reward of an episode is then minus the mean latency of a call over `latency_scale_s`; dividing by
the calls that happen to be there would instead pay for letting them pile up. The third term charges
illegal choices. *Cost*: the jobs whose deadline passed in the interval.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.observation import observe
from inframind_gym.simulator.placement.choices import decide, write_mask
from inframind_gym.simulator.placement.compiled import inner, placement_jit
from inframind_gym.simulator.placement.instances import STREAM_SPREAD, advance, wake_up
from inframind_gym.simulator.placement.jobs import create_job, pass_deadlines
from inframind_gym.simulator.placement.memory import redraw_foreign
from inframind_gym.simulator.placement.routing import route
from inframind_gym.simulator.placement.service import poll, serve
from inframind_gym.simulator.placement.state import (
    ABSENT,
    ACTIVE,
    COUNTERS,
    EVERYWHERE,
    FIRST_SLEEP,
    NONE,
    SLEEP,
    SPREAD,
    TIMES,
    Cluster,
    World,
)
from inframind_gym.simulator.rng import normal, uniform

BEGIN: Final = 0
STEP: Final = 1

# Terms of the reward, in the order of `terms`.
TERMS: Final = ("waiting", "service", "illegal")

STREAM_START: Final = 109


@inner
def clear(world: World, cluster: Cluster, e: int) -> None:
    """An empty cluster at time 0. Key, ranking and arrivals are already there."""
    episode = cluster.episode[e]
    episode.tick = 0
    episode.decision = 0
    episode.next_job = 0
    episode.jobs_done = 0
    episode.jobs_done_before = 0
    episode.jobs_late = 0
    episode.requests_done = 0
    episode.requests_made = 0
    episode.waiting = 0
    episode.serving = 0
    episode.moving = 0
    episode.illegal = 0
    episode.late = 0
    episode.free_jobs = 0
    episode.used_jobs = 0
    episode.free_requests = 0
    episode.used_requests = 0
    episode.waiting_s = 0.0
    episode.service_s = 0.0
    episode.spent_s = 0.0
    for i in range(len(COUNTERS)):
        episode.counter[i] = 0
    for g in range(world.gpu.shape[0]):
        cluster.host[e, g] = NONE
        cluster.moving[e, g] = 0
        cluster.clear_s[e, g] = 0.0
        cluster.foreign_mb[e, g] = 0.0
        cluster.server[e, g].model = NONE
        cluster.server[e, g].running = 0
        cluster.server[e, g].queued = 0
        for m in range(world.model.shape[0]):
            instance = cluster.instance[e, g, m]
            instance.state = ABSENT
            instance.begun_s = 0.0
            instance.until_s = 0.0
            instance.turns = 0
            instance.slept_before = 0
            instance.from_slept = 0
            instance.heavy = 0
    for m in range(world.model.shape[0]):
        waiting = cluster.waiting[e, m]
        waiting.count = 0
        waiting.stamp_sum_s = 0.0
        waiting.potential = 0
        waiting.arrived = 0
        waiting.loading = 0
        waiting.active = 0
        waiting.latency_s = world.model[m].latency_s


@inner
def draw_times(world: World, cluster: Cluster, e: int) -> None:
    """Draw by how much each model's true times differ from its card, which the agent believes."""
    settings = world.settings[0]
    for m in range(world.model.shape[0]):
        for kind in range(TIMES):
            z = normal(cluster.episode[e].key, STREAM_SPREAD, m, kind)
            cluster.spread[e, m, kind] = math.exp(settings.timing_spread * z)
            cluster.seen_s[e, m, kind] = world.model[m].time_s[kind]
        cluster.spread[e, m, FIRST_SLEEP] = cluster.spread[e, m, SLEEP]


@inner
def fits_here(world: World, g: int, m: int) -> bool:
    """Whether a block of model `m` begins at GPU `g` of an empty cluster and can hold it."""
    model = world.model[m]
    if g % model.tp != 0 or g + model.tp > world.gpu.shape[0]:
        return False
    for other in range(g, g + model.tp):  # noqa: SIM110  (compiled: no generators)
        if model.active_mb > world.gpu[other].vram_mb:
            return False
    return True


@inner
def begin_awake(world: World, cluster: Cluster, e: int, g: int, m: int) -> None:
    """Let an episode begin with model `m` awake on the block from GPU `g` on."""
    cluster.instance[e, g, m].state = ACTIVE
    wake_up(world, cluster, e, g, m, 0.0)


@inner
def wake_everywhere(world: World, cluster: Cluster, e: int) -> None:
    """Make every model awake on an equal share of the GPUs, of its own."""
    models = world.model.shape[0]
    share = world.gpu.shape[0] // models
    for m in range(models):
        for g in range(m * share, (m + 1) * share, world.model[m].tp):
            begin_awake(world, cluster, e, g, m)


@inner
def spread_models(world: World, cluster: Cluster, e: int) -> None:
    """Make models awake from GPU 0 on, in the order of the list from a random one on."""
    gpus, models = world.gpu.shape[0], world.model.shape[0]
    m = int(uniform(cluster.episode[e].key, STREAM_START, 0, 0) * models)
    g = 0
    while g < gpus:
        tried = 0
        while tried < models and not fits_here(world, g, m):
            m = (m + 1) % models
            tried += 1
        if tried == models:
            g += 1
            continue
        begin_awake(world, cluster, e, g, m)
        g += int(world.model[m].tp)
        m = (m + 1) % models


@inner
def run_tick(world: World, cluster: Cluster, e: int, end_s: float) -> None:
    """One routing interval."""
    settings = world.settings[0]
    episode = cluster.episode[e]
    now_s = episode.tick * settings.routing_s
    episode.tick += 1
    next_s = episode.tick * settings.routing_s
    route(world, cluster, e, now_s, end_s)
    for g in range(world.gpu.shape[0]):
        serve(world, cluster, e, g, now_s, next_s, end_s)
    advance(world, cluster, e, next_s)
    while cluster.arrival_s[e, episode.next_job] <= next_s:
        create_job(world, cluster, e, episode.next_job, next_s, end_s)
        episode.next_job += 1
    if episode.tick % settings.foreign_ticks == 0:
        redraw_foreign(world, cluster, e, episode.tick)


@inner
def open_interval(world: World, cluster: Cluster, e: int, end_s: float) -> None:
    """Begin a decision interval: count anew."""
    episode = cluster.episode[e]
    length_s = end_s - episode.tick * world.settings[0].routing_s
    episode.waiting_s = episode.waiting * length_s
    episode.service_s = episode.serving * length_s
    episode.late = 0
    episode.jobs_done_before = episode.jobs_done
    for m in range(world.model.shape[0]):
        cluster.waiting[e, m].arrived = 0


@inner
def close_interval(
    world: World, cluster: Cluster, e: int, end_s: float, terms: NDArray[np.float64]
) -> None:
    """End a decision interval: poll the servers, note what is late, add up the reward's terms."""
    settings = world.settings[0]
    episode = cluster.episode[e]
    for g in range(world.gpu.shape[0]):
        if cluster.server[e, g].model != NONE:
            poll(world, cluster, e, g)
    pass_deadlines(cluster, e, end_s)
    episode.decision += 1
    waiting_s, service_s = max(episode.waiting_s, 0.0), max(episode.service_s, 0.0)
    episode.spent_s += waiting_s + service_s
    terms[0] = -waiting_s / settings.request_norm
    terms[1] = -service_s / settings.request_norm
    terms[2] = -settings.illegal_penalty * episode.illegal / world.gpu.shape[0]


@inner
def run_interval(
    world: World, cluster: Cluster, e: int, action: NDArray[np.int64], terms: NDArray[np.float64]
) -> None:
    """One decision interval; its terms of the reward."""
    settings = world.settings[0]
    end_s = (cluster.episode[e].tick + settings.ticks) * settings.routing_s
    open_interval(world, cluster, e, end_s)
    decide(world, cluster, e, action)
    for _ in range(settings.ticks):
        run_tick(world, cluster, e, end_s)
    close_interval(world, cluster, e, end_s, terms)


@placement_jit
def drive(
    world: World,
    cluster: Cluster,
    mode: int,
    rows: NDArray[np.int64],
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
    terms: NDArray[np.float64],
) -> None:
    """Begin an episode in the environments `rows`, or carry out a decision in each.

    Args:
        mode: BEGIN (key, ranking and arrivals are in place) or STEP.
        rows: (k,) environments.
        actions: (E, G), read at `rows`.
        observations: (E, d), written at `rows`.
        terms: (E, 3) of the reward, in the order of TERMS, written at `rows` in a step.
    """
    for i in range(rows.shape[0]):
        e = rows[i]
        if mode == BEGIN:
            clear(world, cluster, e)
            draw_times(world, cluster, e)
            if world.settings[0].initial == SPREAD:
                spread_models(world, cluster, e)
            elif world.settings[0].initial == EVERYWHERE:
                wake_everywhere(world, cluster, e)
            redraw_foreign(world, cluster, e, 0)
        else:
            run_interval(world, cluster, e, actions[e], terms[e])
        write_mask(world, cluster, e)
        observe(world, cluster, e, observations[e])
