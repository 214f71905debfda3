"""Constants of a run as arrays of the compiled code: cards, GPUs, graphs and settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.config import PlacementConfig
from inframind_gym.simulator.placement.cards import ClusterConfig, ModelCard
from inframind_gym.simulator.placement.demand import DemandConfig, JobArrivals
from inframind_gym.simulator.placement.jobs import dag_table
from inframind_gym.simulator.placement.state import EMPTY, GPU, MODEL, SETTINGS, SPREAD, World
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES


def build_world(
    config: PlacementConfig,
    cluster: ClusterConfig,
    cards: Sequence[ModelCard],
    demand: DemandConfig,
    arrivals: JobArrivals,
) -> World:
    """Return the arrays that the compiled code reads."""
    topology = np.array([demand.topologies.get(name, 0.0) for name in TOPOLOGIES])
    agents = np.array([demand.num_agents.get(k + 1, 0.0) for k in range(MAX_AGENTS)])
    mix = np.arange(1, len(cards) + 1, dtype=np.float64) ** -demand.zipf
    dag = dag_table()
    return World(
        settings=_settings(config, cluster, demand, _mean_calls(dag, topology, agents)),
        model=np.concatenate([_model(card, demand) for card in cards]),
        gpu=_gpus(cluster),
        dag=dag,
        topology_cdf=_cdf(topology),
        agents_cdf=_cdf(agents),
        mix_cdf=_cdf(mix),
        trace_prompt=arrivals.tokens.prompt,
        trace_output=arrivals.tokens.output,
    )


def jobs_per_min(config: PlacementConfig, cluster: ClusterConfig, demand: DemandConfig) -> float:
    """Return the mean rate of jobs of the whole cluster."""
    return demand.jobs_per_gpu_per_min * config.load * cluster.num_gpus


def _cdf(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    sums = np.cumsum(weights)
    cdf: NDArray[np.float64] = sums / sums[-1]
    return cdf


def _mean_calls(
    dag: NDArray[Any], topology: NDArray[np.float64], agents: NDArray[np.float64]
) -> float:
    """Return the mean number of calls of a job."""
    share = np.outer(topology / topology.sum(), agents / agents.sum())
    return float((share.ravel() * dag["calls"]).sum())


def _settings(
    config: PlacementConfig, cluster: ClusterConfig, demand: DemandConfig, mean_calls: float
) -> NDArray[Any]:
    settings = np.zeros(1, SETTINGS)
    row = settings[0]
    calls_per_s = jobs_per_min(config, cluster, demand) / 60.0 * mean_calls
    row["routing_s"] = config.routing_interval_s
    row["request_norm"] = (
        calls_per_s * config.ticks * config.routing_interval_s * config.latency_scale_s
    )
    row["illegal_penalty"] = config.illegal_penalty
    row["ema"] = config.ema
    row["timing_spread"] = config.timing_spread
    row["timing_noise"] = config.timing_noise
    row["foreign_mb"] = config.foreign_memory.max_MB
    row["shift_s"] = demand.shift.every_s if demand.shift else math.inf
    row["shift_by"] = demand.shift.by if demand.shift else 0
    row["prompt_log"] = math.log(demand.prompt_tokens.median)
    row["prompt_sigma"] = demand.prompt_tokens.sigma
    row["output_log"] = math.log(demand.output_tokens.median)
    row["output_sigma"] = demand.output_tokens.sigma
    row["max_tokens"] = demand.max_tokens
    row["slo_factor"] = demand.slo.factor
    row["slo_grace_s"] = demand.slo.grace_s
    row["ticks"] = config.ticks
    row["decisions"] = config.num_decisions
    row["foreign_ticks"] = round(config.foreign_memory.every_s / config.routing_interval_s)
    row["initial"] = SPREAD if config.initial == "spread" else EMPTY
    kind = demand.arrivals if isinstance(demand.arrivals, str) else demand.arrivals.get("kind")
    row["traced"] = kind == "trace"
    return settings


def _model(card: ModelCard, demand: DemandConfig) -> NDArray[Any]:
    record = np.zeros(1, MODEL)
    row = record[0]
    row["time_s"] = (
        card.t_wake_s,
        card.t_sleep_s,
        card.t_load_s,
        card.t_offload_s,
        card.t_first_sleep_s,
    )
    row["active_mb"] = card.active_mem_MB
    row["slept_mb"] = card.slept_mem_MB
    row["base_s"] = card.base_s
    row["per_seq_s"] = card.per_seq_s
    row["prefill_steps"] = card.prefill_steps
    step_s = card.base_s + card.per_seq_s * 0.5 * card.slots  # half a batch
    output, prompt = demand.output_tokens, demand.prompt_tokens
    work = output.median * math.exp(0.5 * output.sigma**2)
    work += prompt.median * math.exp(0.5 * prompt.sigma**2) * card.prefill_steps
    row["latency_s"] = work * step_s
    row["tp"] = card.tp_min
    row["slots"] = card.slots
    row["queue"] = card.queue
    return record


def _gpus(cluster: ClusterConfig) -> NDArray[Any]:
    records = np.zeros(cluster.num_gpus, GPU)
    g = 0
    for group in cluster.gpus:
        for _ in range(group.count):
            records[g] = (group.vram_total_MB, group.alpha * group.vram_total_MB)
            g += 1
    return records
