"""Entry point of a cluster whose servers are real: the same records, written by what happens.

`step` drives a simulated cluster through a decision interval. Here the interval is the wall clock's
and whoever talks to the servers (`placement.live`) tells what they did, one event at a time. All
that is decided or counted stays the simulation's own code: choices and masks, who sleeps and who
goes, where calls are routed, which calls become ready, reward, cost and observation.

What differs, because nothing here knows when a phase will end:

- phases begin and end when they are said to have (`ADVANCE`, `ENDED`), and may fail;
- calls leave a server in any order (`DONE`), or come back from it (`BACK`) and wait anew, before
  those that came later and with the age that they had; one may be given up (`LOST`), which makes
  its job late;
- a server can be gone at any time (`AWAY`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.placement.choices import write_mask
from inframind_gym.placement.compiled import inner, placement_jit
from inframind_gym.placement.instances import (
    begin,
    close_server,
    move,
    ready_s,
    settle,
    wake_up,
)
from inframind_gym.placement.jobs import call_done, create_job, make_ready
from inframind_gym.placement.memory import starts_now
from inframind_gym.placement.observe import observe
from inframind_gym.placement.routing import route
from inframind_gym.placement.service import start, take_out
from inframind_gym.placement.state import (
    ABSENT,
    ACTIVE,
    C_FAILED_LOADS,
    C_FAILED_WAKES,
    C_LOADS,
    C_OFFLOADS,
    C_SLEEPS,
    C_WAKES,
    DRAINING,
    LOAD,
    LOADING,
    NONE,
    OFFLOAD,
    QUEUED,
    SLEEP,
    SLEEPING,
    SLEPT,
    TO_SLEEP,
    VANISHING,
    WAKE,
    WAKING,
    Cluster,
    World,
)
from inframind_gym.placement.step import begin_awake, clear, close_interval, open_interval

# What happened: the argument `event`, and what `place` and `number` say with it.
CLEAR: Final = 0  # an empty cluster; observed times are kept
AWAKE: Final = 1  # before an episode: the model is ACTIVE at leader `place`
OPEN: Final = 2  # a decision, at the tick; the interval is to end at `end_s`
CLOSE: Final = 3  # the interval has ended, at the tick; `end_s`: when it was to
ROUTE: Final = 4  # at the tick
JOB: Final = 5  # job `number` of the episode came
DONE: Final = 6  # request `number` was answered by the server at leader `place`
BACK: Final = 7  # it was not, and waits again
LOST: Final = 8  # it was not, and will not be
ADVANCE: Final = 9  # whoever has drained leaves, whoever has room begins to come
ENDED: Final = 10  # the phase at leader `place` ended after `took_s`; `number`: how
AWAY: Final = 11  # the server at leader `place` serves no more; `number`: the state that follows
LOOK: Final = 12  # masks and observation, written anew
CALL: Final = 13  # a job of one call for `model` came from outside, and has the ordinal `number`

# How a phase ended.
AS_MEANT: Final = 0
ASLEEP: Final = 1  # it failed, and the model sleeps
GONE: Final = 2  # it failed, and there is no process any more


@inner
def leave_server(
    world: World, cluster: Cluster, e: int, g: int, identity: int, now_s: float, end_s: float
) -> bool:
    """Take a request out of the server at leader `g`. False: it is not there."""
    server = cluster.server[e, g]
    episode = cluster.episode[e]
    for slot in range(server.running):
        if cluster.run_request[e, g, slot] == identity:
            server.next_slot = slot
            take_out(cluster, e, g)
            episode.serving -= 1
            episode.service_s -= end_s - now_s
            if server.queued > 0:
                following = int(cluster.queue[e, g, server.queue_head])
                server.queue_head = (server.queue_head + 1) % cluster.queue.shape[2]
                server.queued -= 1
                start(cluster, e, g, following, now_s, end_s)
            return True
    places = cluster.queue.shape[2]
    found = False
    for i in range(server.queued):  # the server began with it before one that we thought runs
        place = (server.queue_head + i) % places
        if found:
            cluster.queue[e, g, (place + places - 1) % places] = cluster.queue[e, g, place]
        elif cluster.queue[e, g, place] == identity:
            found = True
    if found:
        server.queued -= 1
        episode.waiting -= 1
        episode.waiting_s -= end_s - now_s
    return found


@inner
def answered(
    world: World, cluster: Cluster, e: int, g: int, identity: int, now_s: float, end_s: float
) -> None:
    """A request was answered by the server at leader `g`."""
    tick_s = (cluster.episode[e].tick + 1) * world.settings[0].routing_s
    if leave_server(world, cluster, e, g, identity, now_s, end_s):
        server = cluster.server[e, g]
        server.latency_sum_s += now_s - cluster.request[e, identity].submit_s
        server.latency_count += 1
        server.last_s = now_s
        call_done(world, cluster, e, identity, now_s, tick_s, end_s)


@inner
def wait_again(
    world: World, cluster: Cluster, e: int, g: int, identity: int, now_s: float, end_s: float
) -> None:
    """A request comes back from the server at leader `g` and waits, before all others."""
    if not leave_server(world, cluster, e, g, identity, now_s, end_s):
        return
    episode = cluster.episode[e]
    request = cluster.request[e, identity]
    waiting = cluster.waiting[e, cluster.job[e, request.job].model[request.call]]
    if waiting.count == 0:
        waiting.tail = identity
        waiting.stamp_sum_s = 0.0
        request.next = NONE
    else:
        request.next = waiting.head
    waiting.head = identity
    waiting.count += 1
    waiting.stamp_sum_s += request.stamp_s
    episode.waiting += 1
    episode.waiting_s += end_s - now_s


@inner
def give_up(
    world: World, cluster: Cluster, e: int, g: int, identity: int, now_s: float, end_s: float
) -> None:
    """A request failed for good: its job goes on without the answer, and is late."""
    tick_s = (cluster.episode[e].tick + 1) * world.settings[0].routing_s
    if not leave_server(world, cluster, e, g, identity, now_s, end_s):
        return
    episode = cluster.episode[e]
    slot = int(cluster.request[e, identity].job)
    job = cluster.job[e, slot]
    if not job.late:
        job.late = 1
        episode.late += 1
        episode.jobs_late += 1
        cluster.deadline_s[e, slot] = np.inf
    call_done(world, cluster, e, identity, now_s, tick_s, end_s)


@inner
def create_single(
    world: World, cluster: Cluster, e: int, m: int, ordinal: int, now_s: float, end_s: float
) -> None:
    """Let a job come that is one call for model `m`; its graph is the last of the world's."""
    episode = cluster.episode[e]
    if episode.free_jobs > 0:
        episode.free_jobs -= 1
        slot = int(cluster.free_job[e, episode.free_jobs])
    else:
        slot = int(episode.used_jobs)
        episode.used_jobs += 1
    job = cluster.job[e, slot]
    job.dag = world.dag.shape[0] - 1
    job.model[0] = m
    job.work[0] = 1.0
    job.arrival_s = now_s
    job.ideal_s = 0.0
    job.deadline_s = np.inf
    job.ordinal = ordinal
    job.left = 1
    job.late = 0
    job.done = np.uint32(0)
    cluster.deadline_s[e, slot] = np.inf
    cluster.waiting[e, m].potential += 1
    tick_s = episode.tick * world.settings[0].routing_s
    make_ready(cluster, e, slot, 0, now_s, tick_s, end_s)


@inner
def carry_on(world: World, cluster: Cluster, e: int) -> None:
    """Let those that have drained leave, and those begin that wait for nobody any more."""
    now_s = cluster.episode[e].tick * world.settings[0].routing_s
    gpus, models = world.gpu.shape[0], world.model.shape[0]
    for g in range(gpus):
        for m in range(models):
            instance = cluster.instance[e, g, m]
            if instance.state == DRAINING and cluster.server[e, g].running == 0:
                close_server(world, cluster, e, g, m)
                instance.heavy = 1
                state = SLEEPING if instance.fate == TO_SLEEP else VANISHING
                begin(cluster, e, g, m, state, now_s)
    for g in range(gpus):
        for m in range(models):
            instance = cluster.instance[e, g, m]
            if instance.state != QUEUED or ready_s(world, cluster, e, g, m) < 0.0:
                continue
            if starts_now(world, cluster, e, g, m):
                begin(cluster, e, g, m, WAKING if instance.from_slept else LOADING, now_s)
            else:
                fails = C_FAILED_WAKES if instance.from_slept else C_FAILED_LOADS
                cluster.episode[e].counter[fails] += 1
                cluster.waiting[e, m].loading -= 1
                settle(world, cluster, e, g, m, SLEPT if instance.from_slept else ABSENT, now_s)


@inner
def see(world: World, cluster: Cluster, e: int, m: int, kind: int, took_s: float) -> None:
    """Average what a phase took into the times that the agent sees."""
    ema = world.settings[0].ema
    cluster.seen_s[e, m, kind] = (1.0 - ema) * cluster.seen_s[e, m, kind] + ema * took_s


@inner
def end_phase(
    world: World, cluster: Cluster, e: int, g: int, m: int, how: int, took_s: float
) -> None:
    """End the phase that model `m` is in at leader `g`."""
    now_s = cluster.episode[e].tick * world.settings[0].routing_s
    instance = cluster.instance[e, g, m]
    counter = cluster.episode[e].counter
    state = instance.state
    if state in (WAKING, LOADING):
        woke = state == WAKING
        cluster.waiting[e, m].loading -= 1
        if how == AS_MEANT:
            see(world, cluster, e, m, WAKE if woke else LOAD, took_s)
            counter[C_WAKES if woke else C_LOADS] += 1
            settle(world, cluster, e, g, m, ACTIVE, now_s)
            wake_up(world, cluster, e, g, m, now_s)
            return
        counter[C_FAILED_WAKES if woke else C_FAILED_LOADS] += 1
    elif state == SLEEPING:
        if how == AS_MEANT:
            if instance.slept_before:
                see(world, cluster, e, m, SLEEP, took_s)
            instance.slept_before = 1
            counter[C_SLEEPS] += 1
            settle(world, cluster, e, g, m, SLEPT, now_s)
            return
        counter[C_OFFLOADS] += 1
    elif state == VANISHING:
        if how == AS_MEANT:
            see(world, cluster, e, m, OFFLOAD, took_s)
        counter[C_OFFLOADS] += 1
        how = GONE
    else:
        return
    if how != ASLEEP:
        instance.slept_before = 0
    settle(world, cluster, e, g, m, SLEPT if how == ASLEEP else ABSENT, now_s)


@inner
def go_away(world: World, cluster: Cluster, e: int, g: int, m: int, state: int) -> None:
    """A server serves no more, and was not asked to; it is empty already.

    Args:
        state: SLEEPING or VANISHING: what is done about it.
    """
    instance = cluster.instance[e, g, m]
    now_s = cluster.episode[e].tick * world.settings[0].routing_s
    was = instance.state
    if was == ACTIVE:
        cluster.waiting[e, m].active -= 1
    if was in (ACTIVE, SLEPT):
        move(world, cluster, e, g, m)
    if was in (ACTIVE, DRAINING):
        close_server(world, cluster, e, g, m)
    instance.heavy = 0 if was == SLEPT else 1
    begin(cluster, e, g, m, state, now_s)


@inner
def close(world: World, cluster: Cluster, e: int, end_s: float, terms: NDArray[np.float64]) -> None:
    """End an interval that was to end at `end_s`, and ends at this tick."""
    episode = cluster.episode[e]
    now_s = episode.tick * world.settings[0].routing_s
    episode.waiting_s += episode.waiting * (now_s - end_s)
    episode.service_s += episode.serving * (now_s - end_s)
    close_interval(world, cluster, e, now_s, terms)


@placement_jit
def mirror(
    world: World,
    cluster: Cluster,
    event: int,
    place: int,
    model: int,
    number: int,
    now_s: float,
    end_s: float,
    action: NDArray[np.int64],
    observation: NDArray[np.float32],
    terms: NDArray[np.float64],
) -> None:
    """Take note of an event in environment 0.

    Args:
        event: CLEAR, AWAKE, …
        place: leader.
        model: the model there.
        number: as the event says.
        now_s: when it was; of ENDED: what the phase took.
        end_s: when the decision interval is to end.
        action: (G,), read by OPEN.
        observation: (d,), written by LOOK.
        terms: (3,) of the reward, written by CLOSE.
    """
    if event == CLEAR:
        clear(world, cluster, 0)
    elif event == AWAKE:
        begin_awake(world, cluster, 0, place, model)
    elif event == OPEN:
        open_interval(world, cluster, 0, action, end_s)
    elif event == CLOSE:
        close(world, cluster, 0, end_s, terms)
    elif event == ROUTE:
        route(world, cluster, 0, now_s, end_s)
    elif event == JOB:
        tick_s = cluster.episode[0].tick * world.settings[0].routing_s
        create_job(world, cluster, 0, number, tick_s, end_s)
    elif event == DONE:
        answered(world, cluster, 0, place, number, now_s, end_s)
    elif event == BACK:
        wait_again(world, cluster, 0, place, number, now_s, end_s)
    elif event == LOST:
        give_up(world, cluster, 0, place, number, now_s, end_s)
    elif event == ADVANCE:
        carry_on(world, cluster, 0)
    elif event == ENDED:
        end_phase(world, cluster, 0, place, model, number, now_s)
    elif event == AWAY:
        go_away(world, cluster, 0, place, model, number)
    elif event == LOOK:
        write_mask(world, cluster, 0)
        observe(world, cluster, 0, observation)
    elif event == CALL:
        create_single(world, cluster, 0, model, number, now_s, end_s)
