"""The simulation's rules, one at a time, on the records of a cluster of real servers; compiled.

`placement_kernel.drive` takes a simulated cluster through a decision interval. Here the interval is
the wall clock's, and a rule is applied when a server has done something. All decisions and counts
are the simulation's own code: choices and masks, sleep and offload, routing, calls that become
ready, late jobs, begin and end of a phase, reward, cost and observation.

The differences, because the end of a phase is not known before:

- phases begin and end by events (`carry_on`, `phase_ended`), and may fail;
- calls leave a server in any order (`call_ended`), or come back from it (`wait_again`) and wait
  again, before those that came later and with the age that they had; one may be given up, which
  makes its job late;
- a server can be gone at any time (`go_away`), and is ended then, as after a phase that failed.

Arguments are those of the simulation's rules: `e` is the environment (0), `g` the leader of a block
of GPUs, `m` a model, `now_s` when it was.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs import placement_kernel
from inframind_gym.envs.placement_kernel import write_reward
from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.placement import episode, instances
from inframind_gym.simulator.placement.episode import (
    call_done,
    close_interval,
    count_answer,
    create_job,
    mark_late,
    open_interval,
    start_next,
    take_out,
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

# Rules of the simulation as they are.
clear: Final = jit(episode.clear)  # observed times are kept
begin_awake: Final = jit(episode.begin_awake)
route: Final = jit(episode.route)
write_mask: Final = jit(instances.write_mask)
observe: Final = jit(placement_kernel.observe)


@jit
def begin_interval(cluster: ClusterState, e: int, end_s: float, action: NDArray[np.int64]) -> None:
    """Begin an interval, which is to end at `end_s`, with a decision (G,) by the last masks."""
    open_interval(cluster, e, end_s)
    decide(cluster, e, action)


@jit
def end_interval(cluster: ClusterState, e: int, terms: NDArray[np.float64]) -> None:
    """End an interval at the tick, which can be late; write the terms of the reward (3,)."""
    episode = cluster.episode[e]
    late_s = tick_time_s(cluster, e) - episode.end_s
    episode.waiting_s += episode.waiting * late_s
    episode.service_s += episode.serving * late_s
    close_interval(cluster, e)
    write_reward(cluster, e, terms)


@jit
def add_job(cluster: ClusterState, e: int, ordinal: int) -> np.int64:
    """Let a job of the episode come, at the tick; return its place."""
    return np.int64(create_job(cluster, e, ordinal, tick_time_s(cluster, e)))


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


@jit
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


@jit
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


@jit
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


@jit
def phase_ended(cluster: ClusterState, e: int, g: int, m: int, failed: bool, took_s: float) -> None:
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


@jit
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
