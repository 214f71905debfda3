"""Compiled entry points: begin episodes and carry out decisions, for many environments at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.observation import observe
from inframind_gym.envs.placement.reward import write_reward
from inframind_gym.simulator.placement.choices import decide, write_mask
from inframind_gym.simulator.placement.compiled import inner, placement_jit
from inframind_gym.simulator.placement.episode import (
    begin_episode,
    close_interval,
    open_interval,
    run_tick,
)
from inframind_gym.simulator.placement.memory import held
from inframind_gym.simulator.placement.state import ClusterParams, ClusterState

BEGIN: Final = 0
STEP: Final = 1


@inner
def run_interval(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    action: NDArray[np.int64],
    terms: NDArray[np.float64],
) -> None:
    """Carry out a decision, let one decision interval pass and write its reward."""
    settings = world.settings[0]
    end_s = (cluster.episode[e].tick + settings.ticks) * settings.routing_s
    open_interval(world, cluster, e, end_s)
    decide(world, cluster, e, action)
    for _ in range(settings.ticks):
        run_tick(world, cluster, e, end_s)
    close_interval(world, cluster, e, end_s)
    write_reward(world, cluster, e, terms)


@placement_jit
def drive(
    world: ClusterParams,
    cluster: ClusterState,
    mode: int,
    rows: NDArray[np.int64],
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
    terms: NDArray[np.float64],
    first: int,
    last: int,
) -> None:
    """Begin an episode in the environments `rows[first:last]`, or carry out a decision in each.

    Args:
        mode: BEGIN (key, ranking and arrivals are in place) or STEP.
        rows: (k,) environments.
        actions: (E, G), read at `rows`.
        observations: (E, d), written at `rows`.
        terms: (E, 3) of the reward, in the order of TERMS, written at `rows` in a step.
        first, last: the share of the rows.
    """
    for i in range(first, last):
        e = rows[i]
        if mode == BEGIN:
            begin_episode(world, cluster, e)
        else:
            run_interval(world, cluster, e, actions[e], terms[e])
        write_mask(world, cluster, e)
        observe(world, cluster, e, observations[e])


@placement_jit
def write_held(
    world: ClusterParams,
    cluster: ClusterState,
    rows: NDArray[np.int64],
    held_mb: NDArray[np.float64],
) -> None:
    """Write the memory that all models hold on each GPU of some environments.

    Args:
        rows: (n,) environments.
        held_mb: (n, G) MB, written.
    """
    for i in range(rows.shape[0]):
        for g in range(world.gpu.shape[0]):
            held_mb[i, g] = held(world, cluster, rows[i], g)
