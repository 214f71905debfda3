"""Compiled entry point of a cluster of real servers: the simulation's records, written by events.

`step` drives a simulated cluster through a decision interval. Here the interval is the wall clock's
and the events of the servers are written one at a time. All decisions and counts are the
simulation's own code: choices and masks, sleep and offload, routing, calls that become ready, late
jobs, begin and end of a phase, reward, cost and observation.

The differences, because the end of a phase is not known before:

- phases begin and end by events (`ADVANCE`, `ENDED`), and may fail;
- calls leave a server in any order (`DONE`), or come back from it (`BACK`) and wait again, before
  those that came later and with the age that they had; one may be given up (`LOST`), which makes
  its job late;
- a server can be gone at any time (`AWAY`), and is ended then, as after a phase that failed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement_kernel import observe, write_reward
from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.placement.episode import (
    begin_awake,
    clear,
    close_interval,
    open_interval,
)
from inframind_gym.simulator.placement.instances import (
    close_server,
    decide,
    end_drain,
    end_phase,
    is_drained,
    move,
    ready_s,
    roll_back,
    settle,
    start_or_roll_back,
    stop_serving,
    vanish,
    write_mask,
)
from inframind_gym.simulator.placement.jobs import (
    call_done,
    count_answer,
    create_job,
    mark_late,
    route,
    start_next,
    take_out,
)
from inframind_gym.simulator.placement.state import (
    ABSENT,
    ACTIVE,
    C_OFFLOADS,
    DRAINING,
    LOADING,
    NONE,
    QUEUED,
    SLEEPING,
    SLEPT,
    VANISHING,
    WAKING,
    ClusterState,
    tick_time_s,
)

# Values of the argument `event`, with the meaning of `place` and `number`.
CLEAR: Final = 0  # an empty cluster; observed times are kept
AWAKE: Final = 1  # before an episode: the model is ACTIVE at leader `place`
OPEN: Final = 2  # an interval begins, at the tick; it is to end at `now_s`
CLOSE: Final = 3  # the interval has ended, at the tick
ROUTE: Final = 4  # route, at the tick
JOB: Final = 5  # job `number` of the episode came
DONE: Final = 6  # request `number` was answered by the server at leader `place`
BACK: Final = 7  # request `number` was not answered, and waits again
LOST: Final = 8  # request `number` was not answered, and will not be
ADVANCE: Final = 9  # drained models leave, models that have room begin to come
ENDED: Final = 10  # the phase at leader `place` ended after `now_s`; `number` 1: it failed
AWAY: Final = 11  # the server at leader `place` serves no more
SNAPSHOT: Final = 12  # write masks and observation
DECIDE: Final = 13  # a decision, at the tick, by the masks of the last SNAPSHOT


@inner
def leave_server(cluster: ClusterState, e: int, g: int, identity: int, now_s: float) -> bool:
    """Take a request out of the server at leader `g`. False: it is not there."""
    server = cluster.server[e, g]
    episode = cluster.episode[e]
    for slot in range(server.running):
        if cluster.run_request[e, g, slot] == identity:
            server.next_slot = slot
            take_out(cluster, e, g, now_s)
            start_next(cluster, e, g, now_s)
            return True
    places = cluster.queue.shape[2]
    passed = False
    for i in range(server.queued):  # the server began it before one that runs by the records
        place = (server.queue_head + i) % places
        if passed:
            cluster.queue[e, g, (place + places - 1) % places] = cluster.queue[e, g, place]
        elif cluster.queue[e, g, place] == identity:
            passed = True
    if passed:
        server.queued -= 1
        episode.waiting -= 1
        episode.waiting_s -= episode.end_s - now_s
    return passed


@inner
def call_ended(
    cluster: ClusterState, e: int, g: int, identity: int, now_s: float, lost: bool
) -> None:
    """A request was answered by the server at leader `g`, or failed for good: its job is late."""
    tick_s = (cluster.episode[e].tick + 1) * cluster.world.settings[0].routing_s
    if leave_server(cluster, e, g, identity, now_s):
        if lost:
            mark_late(cluster, e, int(cluster.request[e, identity].job))
        else:
            count_answer(cluster, e, g, identity, now_s)
        call_done(cluster, e, identity, now_s, tick_s)


@inner
def wait_again(cluster: ClusterState, e: int, g: int, identity: int, now_s: float) -> None:
    """A request comes back from the server at leader `g` and waits, before all others."""
    if not leave_server(cluster, e, g, identity, now_s):
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
    episode.waiting_s += episode.end_s - now_s


@inner
def carry_on(cluster: ClusterState, e: int) -> None:
    """Let models that have drained leave, and models come whose blocks are free now."""
    now_s = tick_time_s(cluster, e)
    gpus, models = cluster.world.gpu.shape[0], cluster.world.model.shape[0]
    for g in range(gpus):
        for m in range(models):
            if is_drained(cluster, e, g, m):
                end_drain(cluster, e, g, m, now_s)
    for g in range(gpus):
        for m in range(models):
            queued = cluster.instance[e, g, m].state == QUEUED
            if queued and ready_s(cluster, e, g, m) >= 0.0:
                start_or_roll_back(cluster, e, g, m, now_s)


@inner
def phase_ended(cluster: ClusterState, e: int, g: int, m: int, failed: int, took_s: float) -> None:
    """End the phase that model `m` is in at leader `g`; of one that failed there is no process."""
    now_s = tick_time_s(cluster, e)
    instance = cluster.instance[e, g, m]
    if instance.state not in (SLEEPING, VANISHING, WAKING, LOADING):
        return
    if not failed:
        end_phase(cluster, e, g, m, took_s, now_s)
        return
    instance.slept_before = 0
    if instance.state in (WAKING, LOADING):
        roll_back(cluster, e, g, m, ABSENT, now_s)
    else:
        cluster.episode[e].counter[C_OFFLOADS] += 1
        settle(cluster, e, g, m, ABSENT, now_s)


@inner
def go_away(cluster: ClusterState, e: int, g: int, m: int) -> None:
    """A server serves no more, and was not asked to; it is empty already, and is ended."""
    now_s = tick_time_s(cluster, e)
    was = cluster.instance[e, g, m].state
    if was == ACTIVE:
        stop_serving(cluster, e, g, m)
    elif was == SLEPT:
        move(cluster, e, g, m)
    if was in (ACTIVE, DRAINING):
        close_server(cluster, e, g, m)
    vanish(cluster, e, g, m, was != SLEPT, now_s)


@jit
def write(
    cluster: ClusterState,
    event: int,
    place: int,
    model: int,
    number: int,
    now_s: float,
    action: NDArray[np.int64],
    observation: NDArray[np.float32],
    terms: NDArray[np.float64],
) -> int:
    """Write an event into the records of environment 0.

    Args:
        event: CLEAR, AWAKE, …; they say what `place` (a leader) and `number` are.
        now_s: when it was; of OPEN: when the interval is to end; of ENDED: what the phase took.
        action: (G,), read by DECIDE.
        observation: (d,), written by SNAPSHOT.
        terms: (3,) of the reward, written by CLOSE.

    Returns:
        Of JOB the place of the job that came, else NONE.
    """
    if event == CLEAR:
        clear(cluster, 0)
    elif event == AWAKE:
        begin_awake(cluster, 0, place, model)
    elif event == OPEN:
        open_interval(cluster, 0, now_s)
    elif event == DECIDE:
        decide(cluster, 0, action)
    elif event == CLOSE:
        episode = cluster.episode[0]
        late_s = tick_time_s(cluster, 0) - episode.end_s
        episode.waiting_s += episode.waiting * late_s
        episode.service_s += episode.serving * late_s
        close_interval(cluster, 0)
        write_reward(cluster, 0, terms)
    elif event == ROUTE:
        route(cluster, 0, now_s)
    elif event == JOB:
        tick_s = tick_time_s(cluster, 0)
        return create_job(cluster, 0, number, tick_s)
    elif event in (DONE, LOST):
        call_ended(cluster, 0, place, number, now_s, event == LOST)
    elif event == BACK:
        wait_again(cluster, 0, place, number, now_s)
    elif event == ADVANCE:
        carry_on(cluster, 0)
    elif event == ENDED:
        phase_ended(cluster, 0, place, model, number, now_s)
    elif event == AWAY:
        go_away(cluster, 0, place, model)
    elif event == SNAPSHOT:
        write_mask(cluster, 0)
        observe(cluster, 0, observation)
    return NONE
