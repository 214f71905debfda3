"""Facts of a run and state at a decision, in plain units, for heuristics and solvers.

They hold the information of the observation, which is for networks: times are the observed ones,
not the true ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.simulation import PlacementSimulation
from inframind_gym.simulator.placement.state import (
    ACTIVE,
    LOAD,
    NONE,
    OFFLOAD,
    SLEEP,
    WAKE,
)


class PlacementSpec(NamedTuple):
    """Facts of a run; G GPUs, M models."""

    models: tuple[str, ...]  # (M,) aliases, in the order of the actions
    tp: NDArray[np.int64]  # (M,) GPUs of an instance
    slots: NDArray[np.int64]  # (M,) calls that run at once
    queue: NDArray[np.int64]  # (M,) calls that may wait in a server
    active_mb: NDArray[np.float64]  # (M,) per GPU
    slept_mb: NDArray[np.float64]  # (M,) per GPU, at the model's own tp
    slept_tp1_mb: NDArray[np.float64]  # (M,) the cards' slept_mem_tp1_MB
    base_s: NDArray[np.float64]  # (M,) engine step
    per_seq_s: NDArray[np.float64]  # (M,)
    vram_mb: NDArray[np.float64]  # (G,)
    slept_limit_mb: NDArray[np.float64]  # (G,) alpha times vram
    decision_interval_s: float
    routing_interval_s: float

    @property
    def num_gpus(self) -> int:
        """G."""
        return len(self.vram_mb)

    @property
    def num_models(self) -> int:
        """M."""
        return len(self.models)


class PlacementContext(NamedTuple):
    """One decision in each of n rows. The arrays are the caller's own."""

    time_s: NDArray[np.float64]  # (n,)
    state: NDArray[np.int8]  # (n, G, M) of each model on each GPU (ABSENT, ACTIVE, …)
    stable: NDArray[np.bool_]  # (n, G)
    active: NDArray[np.int64]  # (n, G) model that is ACTIVE, or -1
    drain_s: NDArray[np.float64]  # (n, G) from the last interval's latencies; 0 without a server
    drain_total_s: NDArray[np.float64]  # (n, G) from all latencies since the server woke up
    in_flight: NDArray[np.int64]  # (n, G) calls running and queued in the server on the GPU
    free_mb: NDArray[np.float64]  # (n, G)
    foreign_mb: NDArray[np.float64]  # (n, G) held by other processes
    waiting: NDArray[np.int64]  # (n, M) calls in waiting_for_scheduling
    age_sum_s: NDArray[np.float64]  # (n, M) their summed ages
    outstanding: NDArray[np.int64]  # (n, M) calls in potential and in waiting_for_scheduling
    arrived: NDArray[np.int64]  # (n, M) calls that became ready in the last interval
    loading: NDArray[np.bool_]  # (n, M) an instance is QUEUED, WAKING or LOADING
    latency_s: NDArray[np.float64]  # (n, M) observed latency of a call in a server
    wake_s: NDArray[np.float64]  # (n, M) observed times
    sleep_s: NDArray[np.float64]  # (n, M)
    load_s: NDArray[np.float64]  # (n, M)
    offload_s: NDArray[np.float64]  # (n, M)
    mask: NDArray[np.bool_]  # (n, G, M + 1) choices that are open to each GPU


def spec_of(simulation: PlacementSimulation) -> PlacementSpec:
    """Return the facts of a run."""
    model, gpu = simulation.world.model, simulation.world.gpu
    arrays: dict[str, Any] = {
        **{name: model[name].astype(np.int64) for name in ("tp", "slots", "queue")},
        **{name: model[name].copy() for name in ("active_mb", "slept_mb", "base_s", "per_seq_s")},
        **{name: gpu[name].copy() for name in ("vram_mb", "slept_limit_mb")},
    }
    return PlacementSpec(
        models=tuple(card.alias for card in simulation.cards),
        **arrays,
        slept_tp1_mb=np.array([card.slept_mem_tp1_MB for card in simulation.cards]),
        decision_interval_s=simulation.config.ticks * simulation.config.routing_interval_s,
        routing_interval_s=simulation.config.routing_interval_s,
    )


def contexts(simulation: PlacementSimulation, rows: NDArray[np.int64]) -> PlacementContext:
    """Return the state of `rows` at the decisions that they wait for."""
    world, state = simulation.world, simulation.state
    on_gpu = simulation.state_on_gpus(rows)
    host = state.host[rows]
    served = host != NONE
    server = np.take_along_axis(state.server[rows], np.where(served, host, 0), axis=1)
    active = np.where((on_gpu == ACTIVE).any(-1), (on_gpu == ACTIVE).argmax(-1), NONE)
    in_flight = np.where(served, server["running"] + server["queued"], 0)
    counted = np.where(served, server["latency_count"], 0)
    total_mean = server["latency_sum_s"] / np.maximum(counted, 1)
    total_mean = np.where(counted > 0, total_mean, server["mean_s"])
    waiting = state.waiting[rows]
    now_s = simulation.now_s()[rows]
    count = waiting["count"].astype(np.int64)
    ages = np.maximum(count * now_s[:, None] - waiting["stamp_sum_s"], 0.0)
    foreign = state.foreign_mb[rows]
    held = simulation.held_mb(rows)
    return PlacementContext(
        time_s=now_s,
        state=on_gpu,
        stable=state.moving[rows] == 0,
        active=active.astype(np.int64),
        drain_s=np.where(served, in_flight * server["mean_s"], 0.0),
        drain_total_s=np.where(served, in_flight * total_mean, 0.0),
        in_flight=in_flight.astype(np.int64),
        free_mb=world.gpu["vram_mb"] - held - foreign,
        foreign_mb=foreign,
        waiting=count,
        age_sum_s=np.where(count > 0, ages, 0.0),
        outstanding=count + waiting["potential"],
        arrived=waiting["arrived"].astype(np.int64),
        loading=waiting["loading"] > 0,
        latency_s=waiting["latency_s"].copy(),
        wake_s=state.seen_s[rows][..., WAKE],
        sleep_s=state.seen_s[rows][..., SLEEP],
        load_s=state.seen_s[rows][..., LOAD],
        offload_s=state.seen_s[rows][..., OFFLOAD],
        mask=state.mask[rows],
    )
