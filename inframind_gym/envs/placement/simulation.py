"""A batch of clusters, behind the single and the vector environment, and its constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.placement.config import PlacementConfig
from inframind_gym.envs.placement.entry import BEGIN, STEP, drive, write_held
from inframind_gym.envs.placement.observation import observation_size
from inframind_gym.envs.placement.reward import TERMS
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.placement.cards import ClusterConfig, ModelCard, load_cluster
from inframind_gym.simulator.placement.demand import DemandConfig, JobArrivals, load_demand
from inframind_gym.simulator.placement.jobs import dag_table
from inframind_gym.simulator.placement.state import (
    ABSENT,
    COUNTERS,
    EMPTY,
    GPU,
    MODEL,
    NONE,
    SETTINGS,
    SPREAD,
    STATE_NAMES,
    ClusterParams,
    ClusterState,
    allocate,
    first_gpu,
)
from inframind_gym.simulator.threads import Crew
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES

MOST_JOBS: Final = 2_000_000  # expected in an episode of all environments of a batch, 1 kB each


class PlacementSimulation:
    """E clusters with the same GPUs, models, demand and settings.

    Args:
        config: the environment's arguments.
        num_envs: E.
        num_threads: threads that share the environments; results do not depend on it.

    Attributes:
        cluster_config: the GPUs.
        cards: (M,) cards of the models, in the order of the actions.
        demand: demand on the cluster.
        world, state: the arrays of the compiled code.
        terms: (E, 3) terms of the last step's reward, in the order of `reward.TERMS`.

    Raises:
        ConfigError: the cluster, the demand or the trace cannot be used.
    """

    def __init__(self, config: PlacementConfig, num_envs: int, num_threads: int = 1) -> None:
        self.config = config
        self.num_envs = num_envs
        self.cluster_config, self.cards = load_cluster(config.cluster)
        self.demand = load_demand(config.demand)
        rate = jobs_per_min(config, self.cluster_config, self.demand)
        jobs = num_envs * rate * config.horizon_s / 60.0
        if jobs > MOST_JOBS:
            raise ConfigError(
                f"{jobs:.1g} jobs would come in an episode of all {num_envs} environments, at most "
                f"{MOST_JOBS:,} can; lower load, num_decisions, decision_interval_s or num_envs"
            )
        self.arrivals = JobArrivals(self.demand, rate, config.horizon_s, config.trace)
        self.world = self._build_world()
        self.state: ClusterState = allocate(self.world, num_envs, self.arrivals.capacity)
        self.terms = np.zeros((num_envs, len(TERMS)))
        scratch = ("path_s", "prompt", "output", "target")  # each thread needs its own
        own = [{n: getattr(self.state, n).copy() for n in scratch} for _ in range(num_threads - 1)]
        states = [self.state, *(self.state._replace(**arrays) for arrays in own)]
        self._crew = Crew(drive, states, place=1)
        self._all_rows = np.arange(num_envs)
        self._no_actions = np.zeros((num_envs, self.num_gpus), np.int64)

    def _build_world(self) -> ClusterParams:
        return build_params(
            self.config, self.cluster_config, self.cards, self.demand, self.arrivals
        )

    @property
    def num_gpus(self) -> int:
        """G."""
        return len(self.world.gpu)

    @property
    def num_models(self) -> int:
        """M."""
        return len(self.world.model)

    @property
    def observation_size(self) -> int:
        """Width d of an observation."""
        return observation_size(self.num_gpus, self.num_models)

    def observations(self) -> NDArray[np.float32]:
        """Return a fresh array (E, d)."""
        return np.empty((self.num_envs, self.observation_size), np.float32)

    def start(
        self,
        rows: NDArray[np.int64],
        generators: list[np.random.Generator],
        observations: NDArray[np.float32],
    ) -> None:
        """Begin a new episode in some environments.

        Args:
            rows: (k,) environments.
            generators: k sources of randomness, one an environment.
            observations: (E, d), written at `rows`.
        """
        state = self.state
        for e, rng in zip(rows.tolist(), generators, strict=True):
            state.episode[e]["key"] = rng.integers(2**64, dtype=np.uint64)
            ranking = np.arange(self.num_models, dtype=np.int32)
            state.rank[e] = rng.permutation(ranking) if self.demand.shuffle else ranking
            self.arrivals.draw(rng, state.arrival_s[e], state.trace_row[e])
        self._drive(BEGIN, rows, self._no_actions, observations)

    def step(self, actions: NDArray[np.int64], observations: NDArray[np.float32]) -> None:
        """Carry out a decision in every environment.

        Args:
            actions: (E, G), each number in its range.
            observations: (E, d), written.
        """
        self.step_rows(self._all_rows, actions, observations)

    def step_rows(
        self,
        rows: NDArray[np.int64],
        actions: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> None:
        """Carry out a decision in the environments `rows` (k,) alone."""
        self._drive(STEP, rows, actions, observations)

    def _drive(
        self,
        mode: int,
        rows: NDArray[np.int64],
        actions: NDArray[np.int64],
        observations: NDArray[np.float32],
    ) -> None:
        self._crew.run(
            len(rows), self.world, self.state, mode, rows, actions, observations, self.terms
        )

    def over(self) -> NDArray[np.bool_]:
        """Return (E,) whether each environment's episode has reached its last decision."""
        over: NDArray[np.bool_] = self.state.episode["decision"] >= self.config.num_decisions
        return over

    def now_s(self) -> NDArray[np.float64]:
        """Return the virtual time of each environment, (E,)."""
        now: NDArray[np.float64] = self.state.episode["tick"] * self.config.routing_interval_s
        return now

    def completed(self, e: int) -> NDArray[Any]:
        """Return the jobs of environment `e` that ended in the last step, (k,) JOB_DONE."""
        episode = self.state.episode[e]
        done: NDArray[Any] = self.state.done[e, episode["jobs_done_before"] : episode["jobs_done"]]
        return done.copy()

    def finished(self, e: int) -> NDArray[Any]:
        """Return the jobs of environment `e`'s episode that ended so far, (k,) JOB_DONE."""
        return self.state.done[e, : int(self.state.episode[e]["jobs_done"])].copy()

    def held_mb(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the memory in MB that models hold on each GPU of `rows`, (n, G)."""
        held = np.empty((len(rows), self.num_gpus))
        write_held(self.world, self.state, rows, held)
        return held

    def state_on_gpus(self, rows: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the state of each model on each GPU of `rows`, (n, G, M)."""
        tp = self.world.model["tp"].astype(np.int64)
        leader = first_gpu(np.arange(self.num_gpus)[:, None], tp)
        instances = self.state.instance["state"][rows][:, leader, np.arange(self.num_models)]
        return np.where(leader + tp <= self.num_gpus, instances, ABSENT).astype(np.int8)

    def summary(self, e: int) -> dict[str, float | int]:
        """Return jobs, latency, lateness and transitions of environment `e`'s episode.

        `mean_latency_s` is of the jobs that ended, which favours a policy that never serves some;
        `mean_call_latency_s`, request-seconds over calls that became ready, counts all.
        """
        done = self.finished(e)
        episode = self.state.episode[e]
        arrived = int(episode["next_job"])
        return {
            "jobs": len(done),
            "jobs_arrived": arrived,
            "mean_latency_s": float(done["latency_s"].mean()) if len(done) else 0.0,
            "mean_call_latency_s": float(episode["spent_s"])
            / max(int(episode["requests_made"]), 1),
            "late_share": int(episode["jobs_late"]) / max(arrived, 1),
            **self.counters(e),
        }

    def counters(self, e: int) -> dict[str, int]:
        """Return the transitions of environment `e`'s episode, by `state.COUNTERS`."""
        counts = self.state.episode[e]["counter"].tolist()
        return dict(zip(COUNTERS, counts, strict=True))

    def table(self, e: int) -> str:
        """Return the cluster of environment `e` as text: a line a GPU and a line a model."""
        state = self.state
        names = [card.alias for card in self.cards]
        lines = [f"time {self.now_s()[e]:.0f} s"]
        for g, kinds in enumerate(self.state_on_gpus(np.array([e]))[0].tolist()):
            residents = [
                f"{name} {STATE_NAMES[kind]}"
                for name, kind in zip(names, kinds, strict=True)
                if kind != ABSENT
            ]
            host = int(state.host[e, g])
            calls = "" if host == NONE else f", {int(state.server[e, host]['running'])} running"
            lines.append(f"gpu {g}: {', '.join(residents) or 'empty'}{calls}")
        for m, name in enumerate(names):
            row = state.waiting[e, m]
            lines.append(f"{name}: {int(row['count'])} waiting, {int(row['potential'])} to come")
        return "\n".join(lines)


def build_params(
    config: PlacementConfig,
    cluster: ClusterConfig,
    cards: Sequence[ModelCard],
    demand: DemandConfig,
    arrivals: JobArrivals,
) -> ClusterParams:
    """Return the arrays that the compiled code reads."""
    topology = np.array([demand.topologies.get(name, 0.0) for name in TOPOLOGIES])
    agents = np.array([demand.num_agents.get(k + 1, 0.0) for k in range(MAX_AGENTS)])
    mix = np.arange(1, len(cards) + 1, dtype=np.float64) ** -demand.zipf
    dag = dag_table()
    share = np.outer(topology / topology.sum(), agents / agents.sum())
    mean_calls = float((share.ravel() * dag["calls"]).sum())  # of a job
    gpus = [(group.vram_total_MB, group.alpha * group.vram_total_MB) for group in cluster.gpus]
    return ClusterParams(
        settings=_settings(config, cluster, demand, mean_calls),
        model=np.concatenate([_model(card, demand) for card in cards]),
        gpu=np.repeat(np.array(gpus, GPU), [group.count for group in cluster.gpus]),
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
    for name in ("illegal_penalty", "ema", "timing_spread", "timing_noise"):
        row[name] = getattr(config, name)
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
    row["tp"] = card.tp_min
    for name in ("base_s", "per_seq_s", "slots", "queue"):
        row[name] = getattr(card, name)
    row["prefill_token_s"] = 1.0 / card.prefill_tokens_per_s
    step_s = card.base_s + card.per_seq_s * 0.5 * card.slots  # half a batch
    output, prompt = demand.output_tokens, demand.prompt_tokens
    row["latency_s"] = (
        output.median * math.exp(0.5 * output.sigma**2) * step_s
        + prompt.median * math.exp(0.5 * prompt.sigma**2) * row["prefill_token_s"]
    )
    return record
