"""The life of an instance: LOADING → ACTIVE ⇄ SLEPT → VANISHING, in finer steps.

    ABSENT ─ QUEUED ─ LOADING ─┐
    SLEPT  ─ QUEUED ─ WAKING ──┴─ ACTIVE ─ DRAINING ─┬─ SLEEPING ─── SLEPT
                                                     └─ VANISHING ── ABSENT ── (SLEPT ─ VANISHING)

An instance that has to leave first drains: it finishes what is in flight and gets nothing new. One
that was chosen is QUEUED until everything else has left its GPUs, then it wakes or loads.
It starts only if the memory is there at that instant (`memory.starts_now`); otherwise the start
fails and is rolled back: a sleeper goes on sleeping, a cold one is not there.

Phases follow each other at exact times; the control loop learns of them at ticks. A phase takes its
card's time, times the model's factor of the episode, times a factor of its own. What it took is
averaged into the times that the agent sees. The first sleep of a process takes longer
(`t_first_sleep_s`) and is left out of the average.
"""

from __future__ import annotations

import math
from typing import Final

from inframind_gym.simulator.placement.compiled import inner
from inframind_gym.simulator.placement.memory import starts_now
from inframind_gym.simulator.placement.service import open_server
from inframind_gym.simulator.placement.state import (
    ABSENT,
    ACTIVE,
    C_FAILED_LOADS,
    C_FAILED_WAKES,
    C_LOADS,
    C_OFFLOADS,
    C_SLEEPS,
    C_WAKES,
    DRAINING,
    FIRST_SLEEP,
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
    ClusterParams,
    ClusterState,
)
from inframind_gym.simulator.rng import normal

STREAM_SPREAD: Final = 107
STREAM_NOISE: Final = 108


@inner
def duration(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, kind: int
) -> float:
    """Draw the seconds that a phase takes."""
    instance = cluster.instance[e, leader, m]
    instance.turns += 1
    place = leader * world.model.shape[0] + m
    z = normal(cluster.episode[e].key, STREAM_NOISE, place, instance.turns)
    noise = math.exp(world.settings[0].timing_noise * z)
    return float(world.model[m].time_s[kind] * cluster.spread[e, m, kind] * noise)


@inner
def begin(cluster: ClusterState, e: int, leader: int, m: int, state: int, now_s: float) -> None:
    """Enter a state."""
    instance = cluster.instance[e, leader, m]
    instance.state = state
    instance.begun_s = now_s


@inner
def set_end(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, kind: int
) -> None:
    """Let the phase that has begun last as long as the card says, more or less."""
    instance = cluster.instance[e, leader, m]
    instance.until_s = instance.begun_s + duration(world, cluster, e, leader, m, kind)


@inner
def observe_time(
    world: ClusterParams, cluster: ClusterState, e: int, m: int, kind: int, took_s: float
) -> None:
    """Average what a phase took into the times that the agent sees."""
    ema = world.settings[0].ema
    cluster.seen_s[e, m, kind] = (1.0 - ema) * cluster.seen_s[e, m, kind] + ema * took_s


@inner
def move(world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int) -> None:
    """Count one more instance in transition on the GPUs of the block: they are UNSTABLE."""
    cluster.episode[e].moving += 1
    for g in range(leader, leader + world.model[m].tp):
        cluster.moving[e, g] += 1


@inner
def stop_serving(world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int) -> None:
    """Route nothing more to an instance that is ACTIVE: it leaves that state."""
    cluster.waiting[e, m].active -= 1
    move(world, cluster, e, leader, m)


@inner
def settle(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    leader: int,
    m: int,
    state: int,
    now_s: float,
) -> None:
    """End a transition in ABSENT, SLEPT or ACTIVE."""
    begin(cluster, e, leader, m, state, now_s)
    cluster.episode[e].moving -= 1
    for g in range(leader, leader + world.model[m].tp):
        cluster.moving[e, g] -= 1
        cluster.clear_s[e, g] = max(cluster.clear_s[e, g], now_s)


@inner
def wake_up(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, now_s: float
) -> None:
    """Make an instance serve, from now on."""
    cluster.waiting[e, m].active += 1
    open_server(cluster, e, leader, m, now_s)
    for g in range(leader, leader + world.model[m].tp):
        cluster.host[e, g] = leader


@inner
def close_server(world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int) -> None:
    """Take the drained server away."""
    cluster.server[e, leader].model = NONE
    for g in range(leader, leader + world.model[m].tp):
        cluster.host[e, g] = NONE


@inner
def vanish(cluster: ClusterState, e: int, leader: int, m: int, heavy: bool, now_s: float) -> None:
    """Begin the end of a process; `heavy`: its weights are on the GPU until then."""
    cluster.instance[e, leader, m].heavy = heavy
    begin(cluster, e, leader, m, VANISHING, now_s)


@inner
def is_drained(cluster: ClusterState, e: int, leader: int, m: int) -> bool:
    """Return whether an instance is DRAINING and has nothing in flight any more."""
    draining = cluster.instance[e, leader, m].state == DRAINING
    return bool(draining and cluster.server[e, leader].running == 0)


@inner
def end_drain(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, now_s: float
) -> None:
    """Let an instance that has drained go the way of its fate: SLEEPING or VANISHING."""
    close_server(world, cluster, e, leader, m)
    if cluster.instance[e, leader, m].fate == TO_SLEEP:
        begin(cluster, e, leader, m, SLEEPING, now_s)
    else:
        vanish(cluster, e, leader, m, True, now_s)


@inner
def start_or_roll_back(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, now_s: float
) -> bool:
    """Let a queued instance whose GPUs are clear wake up or load. False: it has not the memory."""
    woke = cluster.instance[e, leader, m].from_slept
    if not starts_now(world, cluster, e, leader, m):
        roll_back(world, cluster, e, leader, m, SLEPT if woke else ABSENT, now_s)
        return False
    begin(cluster, e, leader, m, WAKING if woke else LOADING, now_s)
    return True


@inner
def roll_back(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    leader: int,
    m: int,
    state: int,
    now_s: float,
) -> None:
    """Count a start that has failed; SLEPT or ABSENT is what is left."""
    woke = cluster.instance[e, leader, m].from_slept
    cluster.episode[e].counter[C_FAILED_WAKES if woke else C_FAILED_LOADS] += 1
    cluster.waiting[e, m].loading -= 1
    settle(world, cluster, e, leader, m, state, now_s)


@inner
def end_phase(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    leader: int,
    m: int,
    took_s: float,
    now_s: float,
) -> None:
    """End SLEEPING, VANISHING, WAKING or LOADING as it was meant: SLEPT, ABSENT or ACTIVE.

    Args:
        took_s: what the phase took.
        now_s: when it ended.
    """
    instance = cluster.instance[e, leader, m]
    counter = cluster.episode[e].counter
    if instance.state == SLEEPING:
        if instance.slept_before:
            observe_time(world, cluster, e, m, SLEEP, took_s)
        instance.slept_before = 1
        counter[C_SLEEPS] += 1
        settle(world, cluster, e, leader, m, SLEPT, now_s)
    elif instance.state == VANISHING:
        observe_time(world, cluster, e, m, OFFLOAD, took_s)
        instance.slept_before = 0
        counter[C_OFFLOADS] += 1
        settle(world, cluster, e, leader, m, ABSENT, now_s)
    else:
        woke = instance.state == WAKING
        observe_time(world, cluster, e, m, WAKE if woke else LOAD, took_s)
        counter[C_WAKES if woke else C_LOADS] += 1
        cluster.waiting[e, m].loading -= 1
        settle(world, cluster, e, leader, m, ACTIVE, now_s)
        wake_up(world, cluster, e, leader, m, now_s)


@inner
def end_if_due(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, now_s: float
) -> None:
    """End the phase of an instance if its time is up."""
    instance = cluster.instance[e, leader, m]
    if instance.until_s <= now_s:
        took_s = instance.until_s - instance.begun_s
        end_phase(world, cluster, e, leader, m, took_s, instance.until_s)


@inner
def leave(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, now_s: float
) -> None:
    """Carry on an instance that leaves: DRAINING, SLEEPING or VANISHING."""
    instance = cluster.instance[e, leader, m]
    if is_drained(cluster, e, leader, m):
        drained_s = max(instance.begun_s, cluster.server[e, leader].last_s)
        end_drain(world, cluster, e, leader, m, drained_s)
        sleep = SLEEP if instance.slept_before else FIRST_SLEEP
        kind = sleep if instance.state == SLEEPING else OFFLOAD
        set_end(world, cluster, e, leader, m, kind)
    if instance.state != DRAINING:
        end_if_due(world, cluster, e, leader, m, now_s)


@inner
def ready_s(world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int) -> float:
    """Return when the last other one left a queued instance's GPUs; -1 while one is there."""
    latest_s = cluster.instance[e, leader, m].begun_s
    for g in range(leader, leader + world.model[m].tp):
        if cluster.moving[e, g] > 1:
            return -1.0
        latest_s = max(latest_s, cluster.clear_s[e, g])
    return float(latest_s)


@inner
def come(
    world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int, now_s: float
) -> None:
    """Carry on an instance that comes: QUEUED, WAKING or LOADING."""
    if cluster.instance[e, leader, m].state == QUEUED:
        clear_s = ready_s(world, cluster, e, leader, m)
        if clear_s < 0.0 or not start_or_roll_back(world, cluster, e, leader, m, clear_s):
            return
        woke = cluster.instance[e, leader, m].from_slept
        set_end(world, cluster, e, leader, m, WAKE if woke else LOAD)
    end_if_due(world, cluster, e, leader, m, now_s)


@inner
def advance(world: ClusterParams, cluster: ClusterState, e: int, now_s: float) -> None:
    """Carry all transitions on to this tick; those that leave first, for those that wait."""
    if cluster.episode[e].moving == 0:
        return
    gpus, models = world.gpu.shape[0], world.model.shape[0]
    for g in range(gpus):
        if cluster.moving[e, g] > 0:
            for m in range(models):
                state = cluster.instance[e, g, m].state
                if state in (DRAINING, SLEEPING, VANISHING):
                    leave(world, cluster, e, g, m, now_s)
    for g in range(gpus):
        if cluster.moving[e, g] > 0:
            for m in range(models):
                state = cluster.instance[e, g, m].state
                if state in (QUEUED, WAKING, LOADING):
                    come(world, cluster, e, g, m, now_s)
