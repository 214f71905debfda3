"""Decisions: legal choices, and the transitions that they begin.

A decision names for each GPU a model to make active, or 0 to leave the GPU alone. A choice is legal

- if the model is ACTIVE on a GPU that is STABLE (it stays); or
- if every GPU of the model's block is STABLE and could hold it once all others have left, no
  instance of the model is loading or waking anywhere, and every GPU of the block chooses it.

A GPU beyond the last whole block of a model never has it. The first part of the rule is the mask;
the last, that a tensor-parallel group is complete, depends on the other choices. A choice that is
not legal does nothing and is charged. All choices are judged by the state before the decision, so
several GPUs may load one model at once.

After a legal choice every instance that is ACTIVE on one of the block's GPUs drains, on all its own
GPUs, whether these chose something or not; `memory` decides which sleep and which are offloaded;
the model is QUEUED, to wake where it sleeps and to load where it does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.placement.compiled import inner
from inframind_gym.simulator.placement.instances import begin, move, set_end, stop_serving, vanish
from inframind_gym.simulator.placement.memory import (
    cheapest_resident,
    is_overbooked,
    leader_of,
    state_on,
)
from inframind_gym.simulator.placement.state import (
    ACTIVE,
    DRAINING,
    NONE,
    OFFLOAD,
    QUEUED,
    SLEPT,
    TO_SLEEP,
    TO_VANISH,
    ClusterParams,
    ClusterState,
)


@inner
def block_is_free(world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int) -> bool:
    """Return whether every GPU of a block is STABLE and large enough for the model."""
    model = world.model[m]
    for g in range(leader, leader + model.tp):
        if cluster.moving[e, g] > 0:
            return False
        if model.active_mb + cluster.foreign_mb[e, g] > world.gpu[g].vram_mb:
            return False
    return True


@inner
def write_mask(world: ClusterParams, cluster: ClusterState, e: int) -> None:
    """Write which choices are open to each GPU."""
    mask = cluster.mask[e]
    gpus = world.gpu.shape[0]
    for g in range(gpus):
        mask[g, 0] = True
    for m in range(world.model.shape[0]):
        tp = int(world.model[m].tp)
        loading = cluster.waiting[e, m].loading > 0
        for leader in range(0, gpus, tp):
            whole = leader + tp <= gpus
            active = whole and cluster.instance[e, leader, m].state == ACTIVE
            free = whole and not loading and block_is_free(world, cluster, e, leader, m)
            for g in range(leader, min(leader + tp, gpus)):
                mask[g, m + 1] = cluster.moving[e, g] == 0 if active else free


@inner
def is_legal(
    world: ClusterParams, cluster: ClusterState, e: int, g: int, action: NDArray[np.int64]
) -> bool:
    """Return whether GPU `g` may do as the action says."""
    choice = int(action[g])
    if not cluster.mask[e, g, choice]:
        return False
    if choice == 0 or state_on(world, cluster, e, g, choice - 1) == ACTIVE:
        return True
    leader = leader_of(world, g, choice - 1)
    for other in range(leader, leader + world.model[choice - 1].tp):
        if action[other] != choice:
            return False
    return True


@inner
def displace(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> None:
    """Let the instance that is ACTIVE on GPU `g` drain."""
    leader = int(cluster.host[e, g])
    if leader == NONE:
        return
    m = int(cluster.server[e, leader].model)
    instance = cluster.instance[e, leader, m]
    if instance.state == ACTIVE:
        now_s = cluster.episode[e].tick * world.settings[0].routing_s
        begin(cluster, e, leader, m, DRAINING, now_s)
        instance.fate = TO_SLEEP
        stop_serving(world, cluster, e, leader, m)


@inner
def queue_up(world: ClusterParams, cluster: ClusterState, e: int, leader: int, m: int) -> None:
    """Let a model wait until its GPUs are clear."""
    instance = cluster.instance[e, leader, m]
    now_s = cluster.episode[e].tick * world.settings[0].routing_s
    instance.from_slept = instance.state == SLEPT
    begin(cluster, e, leader, m, QUEUED, now_s)
    cluster.waiting[e, m].loading += 1
    move(world, cluster, e, leader, m)


@inner
def make_room(world: ClusterParams, cluster: ClusterState, e: int, g: int) -> None:
    """Offload residents of GPU `g` until what is planned for it fits."""
    now_s = cluster.episode[e].tick * world.settings[0].routing_s
    while is_overbooked(world, cluster, e, g):
        m = cheapest_resident(world, cluster, e, g)
        if m == NONE:
            return
        leader = leader_of(world, g, m)
        instance = cluster.instance[e, leader, m]
        if instance.state == DRAINING:
            instance.fate = TO_VANISH
        else:
            vanish(cluster, e, leader, m, False, now_s)
            set_end(world, cluster, e, leader, m, OFFLOAD)
            move(world, cluster, e, leader, m)


@inner
def decide(world: ClusterParams, cluster: ClusterState, e: int, action: NDArray[np.int64]) -> None:
    """Carry out a decision.

    Args:
        action: (G,) per GPU 0, or 1 + the model to make active.
    """
    episode = cluster.episode[e]
    gpus = world.gpu.shape[0]
    episode.illegal = 0
    for g in range(gpus):  # the state is that before the decision until all are judged
        cluster.target[g] = 0
        if not is_legal(world, cluster, e, g, action):
            episode.illegal += 1
        elif action[g] > 0 and state_on(world, cluster, e, g, action[g] - 1) != ACTIVE:
            cluster.target[g] = action[g]
    started = False
    for g in range(gpus):
        if cluster.target[g] > 0:
            displace(world, cluster, e, g)
            m = int(cluster.target[g]) - 1
            if leader_of(world, g, m) == g:
                queue_up(world, cluster, e, g, m)
            started = True
    if started:
        for g in range(gpus):
            if cluster.moving[e, g] > 0:
                make_room(world, cluster, e, g)
