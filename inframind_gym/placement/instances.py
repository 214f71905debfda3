"""The life of an instance: LOADING → ACTIVE ⇄ SLEPT → VANISHING, in finer steps.

    ABSENT ─ QUEUED ─ LOADING ─┐
    SLEPT  ─ QUEUED ─ WAKING ──┴─ ACTIVE ─ DRAINING ─┬─ SLEEPING ─── SLEPT
                                                     └─ VANISHING ── ABSENT ── (SLEPT ─ VANISHING)

An instance that is told to leave first drains: it finishes what is in flight and gets nothing new.
One that is told to come is QUEUED until everything else has left its GPUs, then it wakes or loads.
It starts only if the memory is there at that instant (`memory.starts_now`); otherwise the start
fails and is rolled back: a sleeper goes on sleeping, a cold one is not there.

Phases follow each other at exact times; the control loop learns of them at ticks. A phase takes its
card's time, times the model's factor of the episode, times a factor of its own. What it took is
averaged into the times that the agent sees. The first sleep of a process takes longer
(`t_first_sleep_s`): the cards tell, and it is left out of the average.
"""

from __future__ import annotations

import math
from typing import Final

from inframind_gym.placement.compiled import inner
from inframind_gym.placement.memory import starts_now
from inframind_gym.placement.service import open_server
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
    Cluster,
    World,
)
from inframind_gym.rng import normal

STREAM_SPREAD: Final = 107
STREAM_NOISE: Final = 108


@inner
def duration(world: World, cluster: Cluster, e: int, leader: int, m: int, kind: int) -> float:
    """Seconds that a phase takes; a new draw every time."""
    instance = cluster.instance[e, leader, m]
    instance.turns += 1
    place = leader * world.model.shape[0] + m
    z = normal(cluster.episode[e].key, STREAM_NOISE, place, instance.turns)
    noise = math.exp(world.settings[0].timing_noise * z)
    return float(world.model[m].time_s[kind] * cluster.spread[e, m, kind] * noise)


@inner
def begin(cluster: Cluster, e: int, leader: int, m: int, state: int, now_s: float) -> None:
    """Enter a state."""
    instance = cluster.instance[e, leader, m]
    instance.state = state
    instance.begun_s = now_s


@inner
def begin_timed(
    world: World,
    cluster: Cluster,
    e: int,
    leader: int,
    m: int,
    state: int,
    kind: int,
    now_s: float,
) -> None:
    """Enter a state that lasts as long as the card says, more or less."""
    begin(cluster, e, leader, m, state, now_s)
    cluster.instance[e, leader, m].until_s = now_s + duration(world, cluster, e, leader, m, kind)


@inner
def observe_time(world: World, cluster: Cluster, e: int, leader: int, m: int, kind: int) -> None:
    """Average the phase that just ended into the observed times."""
    instance = cluster.instance[e, leader, m]
    ema = world.settings[0].ema
    took_s = instance.until_s - instance.begun_s
    cluster.seen_s[e, m, kind] = (1.0 - ema) * cluster.seen_s[e, m, kind] + ema * took_s


@inner
def move(world: World, cluster: Cluster, e: int, leader: int, m: int) -> None:
    """Count one more instance in transition on the GPUs of the block: they are UNSTABLE."""
    cluster.episode[e].moving += 1
    for g in range(leader, leader + world.model[m].tp):
        cluster.moving[e, g] += 1


@inner
def settle(
    world: World, cluster: Cluster, e: int, leader: int, m: int, state: int, now_s: float
) -> None:
    """End a transition in ABSENT, SLEPT or ACTIVE."""
    begin(cluster, e, leader, m, state, now_s)
    cluster.episode[e].moving -= 1
    for g in range(leader, leader + world.model[m].tp):
        cluster.moving[e, g] -= 1
        cluster.clear_s[e, g] = max(cluster.clear_s[e, g], now_s)


@inner
def wake_up(world: World, cluster: Cluster, e: int, leader: int, m: int, now_s: float) -> None:
    """Make an instance serve, from now on."""
    cluster.waiting[e, m].active += 1
    open_server(cluster, e, leader, m, now_s)
    for g in range(leader, leader + world.model[m].tp):
        cluster.host[e, g] = leader


@inner
def close_server(world: World, cluster: Cluster, e: int, leader: int, m: int) -> None:
    """Take the drained server away."""
    cluster.server[e, leader].model = NONE
    for g in range(leader, leader + world.model[m].tp):
        cluster.host[e, g] = NONE


@inner
def leave(world: World, cluster: Cluster, e: int, leader: int, m: int, now_s: float) -> None:
    """Carry on an instance that leaves: DRAINING, SLEEPING or VANISHING."""
    instance = cluster.instance[e, leader, m]
    counter = cluster.episode[e].counter
    if instance.state == DRAINING and cluster.server[e, leader].running == 0:
        drained_s = max(instance.begun_s, cluster.server[e, leader].last_s)
        close_server(world, cluster, e, leader, m)
        if instance.fate == TO_SLEEP:
            kind = SLEEP if instance.slept_before else FIRST_SLEEP
            begin_timed(world, cluster, e, leader, m, SLEEPING, kind, drained_s)
        else:
            instance.heavy = 1
            begin_timed(world, cluster, e, leader, m, VANISHING, OFFLOAD, drained_s)
    if instance.state == SLEEPING and instance.until_s <= now_s:
        if instance.slept_before:
            observe_time(world, cluster, e, leader, m, SLEEP)
        instance.slept_before = 1
        counter[C_SLEEPS] += 1
        settle(world, cluster, e, leader, m, SLEPT, instance.until_s)
    elif instance.state == VANISHING and instance.until_s <= now_s:
        observe_time(world, cluster, e, leader, m, OFFLOAD)
        instance.slept_before = 0
        counter[C_OFFLOADS] += 1
        settle(world, cluster, e, leader, m, ABSENT, instance.until_s)


@inner
def ready_s(world: World, cluster: Cluster, e: int, leader: int, m: int) -> float:
    """When the last other one left the GPUs of a queued instance; -1 while somebody is there."""
    latest_s = cluster.instance[e, leader, m].begun_s
    for g in range(leader, leader + world.model[m].tp):
        if cluster.moving[e, g] > 1:
            return -1.0
        latest_s = max(latest_s, cluster.clear_s[e, g])
    return float(latest_s)


@inner
def come(world: World, cluster: Cluster, e: int, leader: int, m: int, now_s: float) -> None:
    """Carry on an instance that comes: QUEUED, WAKING or LOADING."""
    instance = cluster.instance[e, leader, m]
    counter = cluster.episode[e].counter
    waiting = cluster.waiting[e, m]
    if instance.state == QUEUED:
        clear_s = ready_s(world, cluster, e, leader, m)
        if clear_s < 0.0:
            return
        if not starts_now(world, cluster, e, leader, m):
            counter[C_FAILED_WAKES if instance.from_slept else C_FAILED_LOADS] += 1
            waiting.loading -= 1
            back = SLEPT if instance.from_slept else ABSENT
            settle(world, cluster, e, leader, m, back, clear_s)
            return
        if instance.from_slept:
            begin_timed(world, cluster, e, leader, m, WAKING, WAKE, clear_s)
        else:
            begin_timed(world, cluster, e, leader, m, LOADING, LOAD, clear_s)
    if instance.until_s > now_s:
        return
    woke = instance.state == WAKING
    observe_time(world, cluster, e, leader, m, WAKE if woke else LOAD)
    counter[C_WAKES if woke else C_LOADS] += 1
    waiting.loading -= 1
    settle(world, cluster, e, leader, m, ACTIVE, instance.until_s)
    wake_up(world, cluster, e, leader, m, instance.until_s)


@inner
def advance(world: World, cluster: Cluster, e: int, now_s: float) -> None:
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
