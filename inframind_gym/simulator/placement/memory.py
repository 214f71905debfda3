"""Memory of a GPU: the instances that it holds, and those that leave when room is needed.

Per GPU, at every instant: an awake instance holds `active_mem_MB`, and so does one that drains,
falls asleep, wakes up or loads; a sleeping one holds its slept memory; other processes hold the
foreign memory. The sum never exceeds `vram_total_MB`, what sleepers hold never `alpha` times it.

*Sleep or offload*. An instance that has to make room falls asleep if the sleepers on its GPUs, it
itself and the slept memory of the model that comes stay within `alpha`, and if the model that comes
fits next to the sleepers. Otherwise the resident of least `t_offload_s + outstanding calls ·
t_load_s` is offloaded, by the observed times, until the rest fits: the instance itself or one that
sleeps there, on all its GPUs.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from inframind_gym.simulator.placement.compiled import inner
from inframind_gym.simulator.placement.state import (
    ABSENT,
    DRAINING,
    LOAD,
    NONE,
    OFFLOAD,
    QUEUED,
    SLEPT,
    TO_SLEEP,
    VANISHING,
    ClusterParams,
    ClusterState,
    first_gpu_inner,
)
from inframind_gym.simulator.rng import uniform

STREAM_FOREIGN: Final = 106


@inner
def leader_of(world: ClusterParams, g: int, m: int) -> int:
    """Return the first GPU of model `m`'s block around GPU `g`, NONE beyond the last block."""
    tp = int(world.model[m].tp)
    leader = first_gpu_inner(g, tp)
    return leader if leader + tp <= world.gpu.shape[0] else NONE


@inner
def state_on(world: ClusterParams, cluster: ClusterState, e: int, g: int, m: int) -> int:
    """Return the state of model `m` on GPU `g`."""
    leader = leader_of(world, g, m)
    return ABSENT if leader == NONE else int(cluster.instance[e, leader, m].state)


@inner
def held_by(world: ClusterParams, cluster: ClusterState, e: int, g: int, m: int) -> float:
    """Return the memory in MB that model `m` holds on GPU `g`."""
    leader = leader_of(world, g, m)
    if leader == NONE:
        return 0.0
    instance = cluster.instance[e, leader, m]
    model = world.model[m]
    if instance.state == ABSENT:
        return 0.0
    if instance.state == SLEPT:
        return float(model.slept_mb)
    if instance.state == QUEUED:
        return float(model.slept_mb) if instance.from_slept else 0.0
    if instance.state == VANISHING and not instance.heavy:
        return float(model.slept_mb)
    return float(model.active_mb)


@inner
def held(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> float:
    """Return the memory in MB that all models hold on GPU `g`."""
    total = 0.0
    for m in range(world.model.shape[0]):
        total += held_by(world, cluster, e, g, m)
    return total


@inner
def slept_on(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> float:
    """Return the memory in MB that sleepers, also those about to wake, hold on GPU `g`."""
    total = 0.0
    for m in range(world.model.shape[0]):
        state = state_on(world, cluster, e, g, m)
        if state in (SLEPT, QUEUED):
            total += held_by(world, cluster, e, g, m)
    return total


@inner
def redraw_foreign(world: ClusterParams, cluster: ClusterState, e: int, tick: int) -> None:
    """Redraw what other processes hold on each GPU: never more than is free."""
    settings = world.settings[0]
    for g in range(world.gpu.shape[0]):
        wanted = settings.foreign_mb * uniform(cluster.episode[e].key, STREAM_FOREIGN, tick, g)
        free = world.gpu[g].vram_mb - held(world, cluster, e, g)
        cluster.foreign_mb[e, g] = max(0.0, min(wanted, free))


@inner
def starts_now(world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int) -> bool:
    """Return whether a queued model finds its memory on all GPUs of its block."""
    model = world.model[m]
    for g in range(leader, leader + model.tp):
        others = held(world, cluster, e, g) - held_by(world, cluster, e, g, m)
        if others + model.active_mb + cluster.foreign_mb[e, g] > world.gpu[g].vram_mb:
            return False
    return True


@inner
def is_overbooked(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> bool:
    """Return whether the plan for GPU `g` breaks a limit once all that leaves it has left."""
    slept = 0.0
    total = cluster.foreign_mb[e, g]
    for m in range(world.model.shape[0]):
        leader = leader_of(world, g, m)
        if leader == NONE:
            continue
        instance = cluster.instance[e, leader, m]
        model = world.model[m]
        stays = instance.state == DRAINING and instance.fate == TO_SLEEP
        if instance.state == SLEPT or stays:
            slept += model.slept_mb
            total += model.slept_mb
        elif instance.state == QUEUED:
            slept += model.slept_mb  # room to fall asleep here later
            total += model.active_mb
    return bool(slept > world.gpu[g].slept_limit_mb or total > world.gpu[g].vram_mb)


@inner
def cheapest_resident(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> int:
    """Return the model whose offload from GPU `g` costs least, or NONE if none can go."""
    best = NONE
    least = np.inf
    for m in range(world.model.shape[0]):
        leader = leader_of(world, g, m)
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
