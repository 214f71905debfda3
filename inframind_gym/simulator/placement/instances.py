"""Instances of models on GPUs: their memory, their lives, and the decisions about them.

    ABSENT ─ QUEUED ─ LOADING ─┐
    SLEPT  ─ QUEUED ─ WAKING ──┴─ ACTIVE ─ DRAINING ─┬─ SLEEPING ─── SLEPT
                                                     └─ VANISHING ── ABSENT ── (SLEPT ─ VANISHING)

*Phases*. An instance that has to leave first drains: it finishes what is in flight and gets nothing
new. One that was chosen is QUEUED until everything else has left its GPUs, then it wakes or loads.
It starts only if the memory is there at that instant (`starts_now`); otherwise the start fails and
is rolled back: a sleeper goes on sleeping, a cold one is not there. Phases follow each other at
exact times; the control loop learns of them at ticks. A phase takes its card's time, times the
model's factor of the episode, times a factor of its own. What it took is averaged into the times
that the agent sees. The first sleep of a process takes longer (`t_first_sleep_s`) and is left out
of the average.

*Memory*. Per GPU, at every instant: an awake instance holds `active_mem_MB`, and so does one that
drains, falls asleep, wakes up or loads; a sleeping one holds its slept memory; other processes hold
the foreign memory. The sum never exceeds `vram_total_MB`, what sleepers hold never `alpha` times
it.

*Sleep or offload*. An instance that has to make room falls asleep if the sleepers on its GPUs, it
itself and the slept memory of the model that comes stay within `alpha`, and if the model that comes
fits next to the sleepers. Otherwise the resident of least `t_offload_s + outstanding calls ·
t_load_s` is offloaded, by the observed times, until the rest fits: the instance itself or one that
sleeps there, on all its GPUs.

*Legal choices*. A decision names for each GPU a model to make active, or 0 to leave the GPU alone.
A choice is legal

- if the model is ACTIVE on a GPU that is STABLE (it stays); or
- if every GPU of the model's block is STABLE and could hold it once all others have left, no
  instance of the model is loading or waking anywhere, and every GPU of the block chooses it.

A GPU beyond the last whole block of a model never has it. The first part of the rule is the mask;
the last, that a tensor-parallel group is complete, depends on the other choices. A choice that is
not legal does nothing and is charged. All choices are judged by the state before the decision, so
several GPUs may load one model at once.

After a legal choice every instance that is ACTIVE on one of the block's GPUs drains, on all its own
GPUs, whether these chose something or not; the rule above decides which sleep and which are
offloaded; the model is QUEUED, to wake where it sleeps and to load where it does not.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner
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
    SERVER,
    SLEEP,
    SLEEPING,
    SLEPT,
    TO_SLEEP,
    TO_VANISH,
    VANISHING,
    WAKE,
    WAKING,
    ClusterState,
    first_gpu,
    is_coming,
    is_moving,
    tick_time_s,
)
from inframind_gym.simulator.rng import normal, uniform

STREAM_FOREIGN, STREAM_SPREAD, STREAM_NOISE = range(106, 109)
_SERVER: Final = np.zeros(1, SERVER)

# Memory


@inner
def leader_of(cluster: ClusterState, g: int, m: int) -> int:
    """Return the first GPU of model `m`'s block around GPU `g`, NONE beyond the last block."""
    tp = int(cluster.world.model[m].tp)
    leader = first_gpu(g, tp)
    return leader if leader + tp <= cluster.world.gpu.shape[0] else NONE


@inner
def state_on(cluster: ClusterState, e: int, g: int, m: int) -> int:
    """Return the state of model `m` on GPU `g`."""
    leader = leader_of(cluster, g, m)
    return ABSENT if leader == NONE else int(cluster.instance[e, leader, m].state)


@inner
def held_by(cluster: ClusterState, e: int, g: int, m: int) -> float:
    """Return the memory in MB that model `m` holds on GPU `g`."""
    leader = leader_of(cluster, g, m)
    if leader == NONE:
        return 0.0
    instance = cluster.instance[e, leader, m]
    model = cluster.world.model[m]
    light = instance.state == VANISHING and not instance.heavy
    if instance.state == SLEPT or light or (instance.state == QUEUED and instance.from_slept):
        return float(model.slept_mb)
    return 0.0 if instance.state in (ABSENT, QUEUED) else float(model.active_mb)


@inner
def held(cluster: ClusterState, e: int, g: int) -> float:
    """Return the memory in MB that all models hold on GPU `g`."""
    total = 0.0
    for m in range(cluster.world.model.shape[0]):
        total += held_by(cluster, e, g, m)
    return total


@inner
def slept_on(cluster: ClusterState, e: int, g: int) -> float:
    """Return the memory in MB that sleepers, also those about to wake, hold on GPU `g`."""
    total = 0.0
    for m in range(cluster.world.model.shape[0]):
        state = state_on(cluster, e, g, m)
        if state in (SLEPT, QUEUED):
            total += held_by(cluster, e, g, m)
    return total


@inner
def redraw_foreign(cluster: ClusterState, e: int, tick: int) -> None:
    """Redraw what other processes hold on each GPU: never more than is free."""
    settings = cluster.world.settings[0]
    for g in range(cluster.world.gpu.shape[0]):
        wanted = settings.foreign_mb * uniform(cluster.episode[e].key, STREAM_FOREIGN, tick, g)
        free = cluster.world.gpu[g].vram_mb - held(cluster, e, g)
        cluster.foreign_mb[e, g] = max(0.0, min(wanted, free))


@inner
def starts_now(cluster: ClusterState, e: int, leader: int, m: int) -> bool:
    """Return whether a queued model finds its memory on all GPUs of its block."""
    model = cluster.world.model[m]
    for g in range(leader, leader + model.tp):
        others = held(cluster, e, g) - held_by(cluster, e, g, m)
        if others + model.active_mb + cluster.foreign_mb[e, g] > cluster.world.gpu[g].vram_mb:
            return False
    return True


@inner
def is_overbooked(cluster: ClusterState, e: int, g: int) -> bool:
    """Return whether the plan for GPU `g` breaks a limit once all that leaves it has left."""
    slept = 0.0
    total = cluster.foreign_mb[e, g]
    for m in range(cluster.world.model.shape[0]):
        leader = leader_of(cluster, g, m)
        if leader == NONE:
            continue
        instance = cluster.instance[e, leader, m]
        model = cluster.world.model[m]
        stays = instance.state == DRAINING and instance.fate == TO_SLEEP
        if instance.state == SLEPT or stays:
            slept += model.slept_mb
            total += model.slept_mb
        elif instance.state == QUEUED:
            slept += model.slept_mb  # room to fall asleep here later
            total += model.active_mb
    return bool(slept > cluster.world.gpu[g].slept_limit_mb or total > cluster.world.gpu[g].vram_mb)


@inner
def cheapest_resident(cluster: ClusterState, e: int, g: int) -> int:
    """Return the model whose offload from GPU `g` costs least, or NONE if none can go."""
    best = NONE
    least = np.inf
    for m in range(cluster.world.model.shape[0]):
        leader = leader_of(cluster, g, m)
        if leader == NONE:
            continue
        instance = cluster.instance[e, leader, m]
        stays = instance.state == DRAINING and instance.fate == TO_SLEEP
        if instance.state == SLEPT or stays:
            waiting = cluster.waiting[e, m]
            calls = waiting.count + waiting.potential
            cost = cluster.seen_s[e, m, OFFLOAD] + calls * cluster.seen_s[e, m, LOAD]
            if cost < least:
                least = cost
                best = m
    return best


# Phases


@inner
def begin(cluster: ClusterState, e: int, leader: int, m: int, state: int, now_s: float) -> None:
    """Enter a state."""
    instance = cluster.instance[e, leader, m]
    instance.state = state
    instance.begun_s = now_s


@inner
def set_end(cluster: ClusterState, e: int, leader: int, m: int, kind: int) -> None:
    """Let the phase that has begun last as long as the card says, more or less."""
    instance = cluster.instance[e, leader, m]
    instance.turns += 1
    place = leader * cluster.world.model.shape[0] + m
    z = normal(cluster.episode[e].key, STREAM_NOISE, place, instance.turns)
    noise = math.exp(cluster.world.settings[0].timing_noise * z)
    duration_s = cluster.world.model[m].time_s[kind] * cluster.spread[e, m, kind] * noise
    instance.until_s = instance.begun_s + duration_s


@inner
def move(cluster: ClusterState, e: int, leader: int, m: int) -> None:
    """Count one more instance in transition on the GPUs of the block: they are UNSTABLE."""
    cluster.episode[e].moving += 1
    for g in range(leader, leader + cluster.world.model[m].tp):
        cluster.moving[e, g] += 1


@inner
def stop_serving(cluster: ClusterState, e: int, leader: int, m: int) -> None:
    """Route nothing more to an instance that is ACTIVE: it leaves that state."""
    cluster.waiting[e, m].active -= 1
    move(cluster, e, leader, m)


@inner
def settle(cluster: ClusterState, e: int, leader: int, m: int, state: int, now_s: float) -> None:
    """End a transition in ABSENT, SLEPT or ACTIVE."""
    begin(cluster, e, leader, m, state, now_s)
    cluster.episode[e].moving -= 1
    for g in range(leader, leader + cluster.world.model[m].tp):
        cluster.moving[e, g] -= 1
        cluster.clear_s[e, g] = max(cluster.clear_s[e, g], now_s)


@inner
def wake_up(cluster: ClusterState, e: int, leader: int, m: int, now_s: float) -> None:
    """Make an instance serve, from now on."""
    cluster.waiting[e, m].active += 1
    cluster.server[e, leader] = _SERVER[0]
    server = cluster.server[e, leader]
    server.model = m
    server.next_finish = np.inf
    server.last_s = now_s
    server.mean_s = cluster.waiting[e, m].latency_s
    server.next_slot = NONE
    for g in range(leader, leader + cluster.world.model[m].tp):
        cluster.host[e, g] = leader


@inner
def close_server(cluster: ClusterState, e: int, leader: int, m: int) -> None:
    """Take the drained server away."""
    cluster.server[e, leader].model = NONE
    for g in range(leader, leader + cluster.world.model[m].tp):
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
def end_drain(cluster: ClusterState, e: int, leader: int, m: int, now_s: float) -> None:
    """Let an instance that has drained go the way of its fate: SLEEPING or VANISHING."""
    close_server(cluster, e, leader, m)
    if cluster.instance[e, leader, m].fate == TO_SLEEP:
        begin(cluster, e, leader, m, SLEEPING, now_s)
    else:
        vanish(cluster, e, leader, m, True, now_s)


@inner
def start_or_roll_back(cluster: ClusterState, e: int, leader: int, m: int, now_s: float) -> bool:
    """Let a queued instance whose GPUs are clear wake up or load. False: it has not the memory."""
    woke = cluster.instance[e, leader, m].from_slept
    if not starts_now(cluster, e, leader, m):
        roll_back(cluster, e, leader, m, SLEPT if woke else ABSENT, now_s)
        return False
    begin(cluster, e, leader, m, WAKING if woke else LOADING, now_s)
    return True


@inner
def roll_back(cluster: ClusterState, e: int, leader: int, m: int, state: int, now_s: float) -> None:
    """Count a start that has failed; SLEPT or ABSENT is what is left."""
    woke = cluster.instance[e, leader, m].from_slept
    cluster.episode[e].counter[C_FAILED_WAKES if woke else C_FAILED_LOADS] += 1
    cluster.waiting[e, m].loading -= 1
    settle(cluster, e, leader, m, state, now_s)


@inner
def end_phase(
    cluster: ClusterState, e: int, leader: int, m: int, took_s: float, now_s: float
) -> None:
    """End SLEEPING, VANISHING, WAKING or LOADING as it was meant: SLEPT, ABSENT or ACTIVE.

    Args:
        took_s: what the phase took.
        now_s: when it ended.
    """
    instance = cluster.instance[e, leader, m]
    kind, count, after = SLEEP, C_SLEEPS, SLEPT
    if instance.state == VANISHING:
        kind, count, after = OFFLOAD, C_OFFLOADS, ABSENT
    elif instance.state == WAKING:
        kind, count, after = WAKE, C_WAKES, ACTIVE
    elif instance.state == LOADING:
        kind, count, after = LOAD, C_LOADS, ACTIVE
    if kind != SLEEP or instance.slept_before:  # into the times that the agent sees
        ema = cluster.world.settings[0].ema
        cluster.seen_s[e, m, kind] = (1.0 - ema) * cluster.seen_s[e, m, kind] + ema * took_s
    if after != ACTIVE:
        instance.slept_before = after == SLEPT
    cluster.episode[e].counter[count] += 1
    settle(cluster, e, leader, m, after, now_s)
    if after == ACTIVE:
        cluster.waiting[e, m].loading -= 1
        wake_up(cluster, e, leader, m, now_s)


@inner
def ready_s(cluster: ClusterState, e: int, leader: int, m: int) -> float:
    """Return when the last other one left a queued instance's GPUs; -1 while one is there."""
    latest_s = cluster.instance[e, leader, m].begun_s
    for g in range(leader, leader + cluster.world.model[m].tp):
        if cluster.moving[e, g] > 1:
            return -1.0
        latest_s = max(latest_s, cluster.clear_s[e, g])
    return float(latest_s)


@inner
def carry_on(cluster: ClusterState, e: int, leader: int, m: int, now_s: float) -> None:
    """Carry on an instance in transition: begin what follows, and end it if its time is up."""
    instance = cluster.instance[e, leader, m]
    if instance.state == QUEUED:
        clear_s = ready_s(cluster, e, leader, m)
        if clear_s < 0.0 or not start_or_roll_back(cluster, e, leader, m, clear_s):
            return
        set_end(cluster, e, leader, m, WAKE if instance.from_slept else LOAD)
    elif is_drained(cluster, e, leader, m):
        drained_s = max(instance.begun_s, cluster.server[e, leader].last_s)
        end_drain(cluster, e, leader, m, drained_s)
        sleep = SLEEP if instance.slept_before else FIRST_SLEEP
        set_end(cluster, e, leader, m, sleep if instance.state == SLEEPING else OFFLOAD)
    if instance.state != DRAINING and instance.until_s <= now_s:
        took_s = instance.until_s - instance.begun_s
        end_phase(cluster, e, leader, m, took_s, instance.until_s)


@inner
def advance(cluster: ClusterState, e: int, now_s: float) -> None:
    """Carry all transitions on to this tick; those that leave first, for those that wait."""
    if cluster.episode[e].moving == 0:
        return
    for comes in (False, True):
        for g in range(cluster.world.gpu.shape[0]):
            if cluster.moving[e, g] > 0:
                for m in range(cluster.world.model.shape[0]):
                    state = cluster.instance[e, g, m].state
                    if is_moving(state) and is_coming(state) == comes:
                        carry_on(cluster, e, g, m, now_s)


# Decisions


@inner
def block_is_free(cluster: ClusterState, e: int, leader: int, m: int) -> bool:
    """Return whether every GPU of a block is STABLE and large enough for the model."""
    model = cluster.world.model[m]
    for g in range(leader, leader + model.tp):
        if cluster.moving[e, g] > 0:
            return False
        if model.active_mb + cluster.foreign_mb[e, g] > cluster.world.gpu[g].vram_mb:
            return False
    return True


@inner
def write_mask(cluster: ClusterState, e: int) -> None:
    """Write which choices are open to each GPU."""
    mask = cluster.mask[e]
    gpus = cluster.world.gpu.shape[0]
    for g in range(gpus):
        mask[g, 0] = True
    for m in range(cluster.world.model.shape[0]):
        tp = int(cluster.world.model[m].tp)
        loading = cluster.waiting[e, m].loading > 0
        for leader in range(0, gpus, tp):
            whole = leader + tp <= gpus
            active = whole and cluster.instance[e, leader, m].state == ACTIVE
            free = whole and not loading and block_is_free(cluster, e, leader, m)
            for g in range(leader, min(leader + tp, gpus)):
                mask[g, m + 1] = cluster.moving[e, g] == 0 if active else free


@inner
def is_legal(cluster: ClusterState, e: int, g: int, action: NDArray[np.int64]) -> bool:
    """Return whether GPU `g` may do as the action says."""
    choice = int(action[g])
    if not cluster.mask[e, g, choice]:
        return False
    if choice == 0 or state_on(cluster, e, g, choice - 1) == ACTIVE:
        return True
    leader = leader_of(cluster, g, choice - 1)
    for other in range(leader, leader + cluster.world.model[choice - 1].tp):
        if action[other] != choice:
            return False
    return True


@inner
def make_room(cluster: ClusterState, e: int, g: int) -> None:
    """Offload residents of GPU `g` until what is planned for it fits."""
    now_s = tick_time_s(cluster, e)
    while is_overbooked(cluster, e, g):
        m = cheapest_resident(cluster, e, g)
        if m == NONE:
            return
        leader = leader_of(cluster, g, m)
        instance = cluster.instance[e, leader, m]
        if instance.state == DRAINING:
            instance.fate = TO_VANISH
        else:
            vanish(cluster, e, leader, m, False, now_s)
            set_end(cluster, e, leader, m, OFFLOAD)
            move(cluster, e, leader, m)


@inner
def decide(cluster: ClusterState, e: int, action: NDArray[np.int64]) -> None:
    """Carry out a decision: `action` (G,) has per GPU 0, or 1 + the model to make active."""
    episode = cluster.episode[e]
    gpus = cluster.world.gpu.shape[0]
    episode.illegal = 0
    for g in range(gpus):  # the state is that before the decision until all are judged
        cluster.target[g] = 0
        if not is_legal(cluster, e, g, action):
            episode.illegal += 1
        elif action[g] > 0 and state_on(cluster, e, g, action[g] - 1) != ACTIVE:
            cluster.target[g] = action[g]
    started = False
    now_s = tick_time_s(cluster, e)
    for g in range(gpus):
        if cluster.target[g] == 0:
            continue
        started = True
        leader = int(cluster.host[e, g])
        if leader != NONE:  # what is ACTIVE on the GPU drains
            other = int(cluster.server[e, leader].model)
            instance = cluster.instance[e, leader, other]
            if instance.state == ACTIVE:
                begin(cluster, e, leader, other, DRAINING, now_s)
                instance.fate = TO_SLEEP
                stop_serving(cluster, e, leader, other)
        m = int(cluster.target[g]) - 1
        if leader_of(cluster, g, m) == g:  # the model waits until its GPUs are clear
            instance = cluster.instance[e, g, m]
            instance.from_slept = instance.state == SLEPT
            begin(cluster, e, g, m, QUEUED, now_s)
            cluster.waiting[e, m].loading += 1
            move(cluster, e, g, m)
    if started:
        for g in range(gpus):
            if cluster.moving[e, g] > 0:
                make_room(cluster, e, g)
