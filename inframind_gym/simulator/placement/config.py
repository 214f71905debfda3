"""Clusters and the demand on them, read from YAML; the arguments and constants of a run.

A *catalogue* (`envs_configs/placement/catalogues`) describes models on one kind of GPU; a *cluster*
(`envs_configs/placement/clusters`) names a catalogue, some of its models and its GPUs; a *demand*
(`envs_configs/placement/demands`) says when jobs arrive, with which graphs, models and lengths. A
demand fits every cluster: its rate is per GPU, its mix of models goes by rank in the cluster's
list of models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, field_validator, model_validator

from inframind_gym.configs import (
    Fraction,
    Name,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
    within,
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.arrivals import TraceArrivals, load_trace, make_arrivals
from inframind_gym.simulator.jit import filled
from inframind_gym.simulator.placement.episode import dag_table
from inframind_gym.simulator.placement.state import (
    EMPTY,
    GPU,
    MODEL,
    SETTINGS,
    SPREAD,
    ClusterParams,
)
from inframind_gym.simulator.rng import cumulative
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES

MOST_MODELS = 64
MOST_GPUS = 4096  # of a group
TensorParallel = Annotated[int, Field(ge=1, le=8)]
MOST_TICKS = 10_000  # routing intervals of a decision interval
_SPARE = 4.0  # times the expected number of jobs: what arrays have room for
AgentCount = Annotated[int, Field(ge=1, le=MAX_AGENTS)]


class ModelCard(StrictModel):
    """Timing and memory of one model."""

    model_id: str = Field(min_length=1)  # name on the hub
    alias: Name  # short name, unique in a catalogue
    tp_min: TensorParallel = 1  # GPUs that one instance spans (tensor parallelism)
    t_wake_s: Positive  # from SLEPT to ACTIVE
    t_sleep_s: Positive  # from ACTIVE to SLEPT, when this process has slept before
    t_first_sleep_s: Positive  # the first time, when pinned memory is still to be allocated
    t_load_s: Positive  # from nothing to ACTIVE: process start and weights
    t_offload_s: Positive  # until a process has gone and its memory is free
    # per GPU, weights and KV cache while awake
    active_mem_MB: Positive  # noqa: N815  (megabytes, not millibits)
    # what a sleeping instance keeps on its GPU, at `tp_min` 1
    slept_mem_tp1_MB: Positive  # noqa: N815
    # the same per GPU, at `tp_min` above 1
    slept_mem_tpg1_MB: Positive  # noqa: N815
    slots: PositiveInt  # calls that run at once (`max_num_seqs`)
    # calls that may wait in the server beyond those; the router keeps the rest
    queue: NonNegativeInt
    base_s: Positive  # time of an engine step, which gives every running call one token
    per_seq_s: NonNegative  # what each running call adds to it
    # prompt tokens that are computed in a second. A step that computes a prompt takes so long, if
    # that is longer than a step
    prefill_tokens_per_s: Positive

    @model_validator(mode="after")
    def _check(self) -> ModelCard:
        if self.slept_mem_MB >= self.active_mem_MB:
            raise ValueError(
                f"{self.alias}: sleeping keeps {self.slept_mem_MB:g} MB, which must be less than "
                f"active_mem_MB ({self.active_mem_MB:g})"
            )
        return self

    @property
    def slept_mem_MB(self) -> float:  # noqa: N802
        """Memory that a sleeping instance keeps on each of its GPUs."""
        return self.slept_mem_tp1_MB if self.tp_min == 1 else self.slept_mem_tpg1_MB


class Catalogue(StrictModel):
    """Models on one kind of GPU."""

    name: Name
    description: str = ""
    models: tuple[ModelCard, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Catalogue:
        aliases = [card.alias for card in self.models]
        twice = sorted({alias for alias in aliases if aliases.count(alias) > 1})
        if twice:
            raise ValueError(f"the aliases {', '.join(twice)} name more than one model")
        return self


class GpuGroup(StrictModel):
    """GPUs of one kind, numbered one after the other."""

    count: Annotated[PositiveInt, Field(le=MOST_GPUS)]  # how many
    # memory of each
    vram_total_MB: Positive  # noqa: N815
    alpha: Fraction  # largest share of it that sleeping models may keep


class ClusterConfig(StrictModel):
    """GPUs and the models that are asked for on them."""

    name: Name
    description: str = ""  # one line
    catalogue: str  # name or path of a catalogue
    # aliases out of it; their order is that of the actions
    models: tuple[str, ...] = Field(min_length=1, max_length=MOST_MODELS)
    # the GPUs. An instance of `tp_min` k spans the GPUs k·j to k·j + k - 1 for some j
    gpus: tuple[GpuGroup, ...] = Field(min_length=1)

    @property
    def num_gpus(self) -> int:
        """GPUs of all groups."""
        return sum(group.count for group in self.gpus)


def load_cluster(name_or_path: str | Path) -> tuple[ClusterConfig, tuple[ModelCard, ...]]:
    """Read a cluster and the cards of its models.

    Returns:
        The cluster, and its models' cards in its order.

    Raises:
        ConfigError: A file is missing or malformed; a model is not in the catalogue, named twice,
            or fits on no block of GPUs.
    """
    path = find_config("placement/clusters", name_or_path)
    cluster = load_yaml_model(path, ClusterConfig)
    try:
        catalogue_path = find_config("placement/catalogues", cluster.catalogue)
    except ConfigError as error:
        raise ConfigError(f"{path}: catalogue: {error}") from None
    cards = {card.alias: card for card in load_yaml_model(catalogue_path, Catalogue).models}
    vram_mb = [group.vram_total_MB for group in cluster.gpus for _ in range(group.count)]
    for alias in cluster.models:
        if alias not in cards:
            raise ConfigError(f"{path}: models: {unknown('model', alias, cards)}")
        tp = cards[alias].tp_min
        if cluster.models.count(alias) > 1:
            raise ConfigError(f"{path}: models: {alias} is named more than once. Name it once.")
        blocks = (vram_mb[g : g + tp] for g in range(0, len(vram_mb) - tp + 1, tp))
        if not any(min(block) >= cards[alias].active_mem_MB for block in blocks):
            raise ConfigError(
                f"{path}: models: {alias} needs {cards[alias].active_mem_MB:g} MB on each of "
                f"{tp} neighbouring GPUs, and no block of GPUs has that. "
                "Remove it or add GPUs."
            )
    return cluster, tuple(cards[alias] for alias in cluster.models)


class Lengths(StrictModel):
    """A log-normal number of tokens."""

    median: Positive
    sigma: NonNegative  # standard deviation of the logarithm


class Shift(StrictModel):
    """The popularity of models moves on by `by` ranks every `every_s` seconds."""

    every_s: Positive
    by: PositiveInt = 1


class SloRule(StrictModel):
    """A job is on time within `factor` times its ideal latency and `grace_s` seconds more.

    The ideal latency is that of its longest line of calls, each alone on its instance.
    """

    factor: Positive = 3.0
    grace_s: NonNegative = 10.0


class DemandConfig(StrictModel):
    """Demand on a cluster."""

    name: str
    description: str = ""  # one line
    jobs_per_gpu_per_min: Positive  # mean rate over time, of jobs
    # a kind of `simulator.arrivals`, or a mapping with one; `{kind: trace}` replays a trace at that
    # rate, with the trace's own numbers of tokens
    arrivals: dict[str, Any] | str = "poisson"
    # weights of the six topologies; what is not named does not occur
    topologies: dict[str, NonNegative] = Field(min_length=1)
    # weights of the numbers of agents
    num_agents: dict[AgentCount, NonNegative] = Field(min_length=1)
    # exponent s: the model at rank r (from 1) of the cluster's list is asked for with weight r^-s.
    # Every agent of a job draws its own
    zipf: NonNegative = 0.0
    shuffle: bool = False  # draw a new ranking for every episode
    shift: Shift | None = None  # let the ranking move on in time
    prompt_tokens: Lengths  # of a call that follows no other; answers that a call reads are added
    output_tokens: Lengths  # of a call
    max_tokens: PositiveInt = 4096  # neither is more
    slo: SloRule = SloRule()  # when a job is on time

    @field_validator("topologies")
    @classmethod
    def _known(cls, topologies: dict[str, float]) -> dict[str, float]:
        for name in topologies:
            if name not in TOPOLOGIES:
                raise ValueError(unknown("topology", name, TOPOLOGIES))
        return topologies

    @field_validator("topologies", "num_agents")
    @classmethod
    def _some_weight(cls, weights: dict[Any, float]) -> dict[Any, float]:
        if sum(weights.values()) <= 0.0:
            raise ValueError("all weights are 0; give at least one that is positive")
        return weights


def load_demand(name_or_path: str | Path) -> DemandConfig:
    """Read a demand.

    Raises:
        ConfigError: The file is missing or malformed.
    """
    return load_yaml_model(find_config("placement/demands", name_or_path), DemandConfig)


class JobArrivals:
    """Sampler of the arrival times of an episode's jobs.

    Args:
        demand: The demand.
        jobs_per_min: Mean rate of the whole cluster.
        horizon_s: Length of an episode.
        trace: Path of the trace to replay; the demand's own where it is None.

    Attributes:
        capacity: More jobs than come within an episode.
        prompt_tokens, output_tokens: (T,) of a trace's requests; one zero without a trace.

    Raises:
        ConfigError: The arrival process is unknown, malformed or cannot be used here.
    """

    def __init__(
        self, demand: DemandConfig, jobs_per_min: float, horizon_s: float, trace: str | None
    ) -> None:
        self.horizon_s = horizon_s
        spec: dict[str, Any] = (
            {"kind": demand.arrivals} if isinstance(demand.arrivals, str) else dict(demand.arrivals)
        )
        kind = spec.get("kind")
        if trace is not None and kind != "trace":
            raise ConfigError(
                f"`trace` is given, but the demand's arrivals are {kind!r}. Use a demand whose "
                "arrivals are {kind: trace}, such as `trace`."
            )
        if kind == "trace":
            spec |= {} if trace is None else {"path": trace}
            if "path" not in spec:
                raise ConfigError(
                    "demand: arrivals: a trace is to be replayed, but none is named. Give the path "
                    "of a CSV file as the argument `trace` of the environment."
                )
            if not spec.get("rescale", True):
                raise ConfigError(
                    "demand: arrivals: rescale must be true: a demand's rate is "
                    "jobs_per_gpu_per_min, whatever the trace's own pace is."
                )
        try:
            self.process = make_arrivals(spec)
        except ConfigError as error:
            raise ConfigError(f"demand: {error}") from None
        self.rate_per_min = jobs_per_min / self.process.mean_rate_factor()
        expected = jobs_per_min * horizon_s / 60.0
        self._few = int(1.25 * expected + 6.0 * expected**0.5) + 8
        self.capacity = int(_SPARE * expected + 200.0)
        self.prompt_tokens = self.output_tokens = np.zeros(1)
        if isinstance(self.process, TraceArrivals):
            recorded = load_trace(self.process.path)
            self.prompt_tokens = recorded.input_tokens.astype(np.float64)
            self.output_tokens = recorded.output_tokens.astype(np.float64)

    def draw(
        self, rng: np.random.Generator, times_s: NDArray[np.float64], rows: NDArray[np.int64]
    ) -> None:
        """Write the arrival times of one episode.

        Args:
            rng: Source of randomness.
            times_s: (capacity,), written: increasing, infinity after the last arrival within the
                horizon.
            rows: (capacity,), written: each job's row of the trace, 0 without one.

        Raises:
            ConfigError: More jobs come within the horizon than there is room for.
        """
        times_s[:] = np.inf
        rows[:] = 0
        for n in (self._few, self.capacity):
            if isinstance(self.process, TraceArrivals):
                drawn, drawn_rows = self.process.window(self.rate_per_min / 60.0, n, rng)
                rows[:n] = drawn_rows
            else:
                drawn = self.process.sample(self.rate_per_min, n, rng)
            if drawn[-1] > self.horizon_s:
                within = int(np.searchsorted(drawn, self.horizon_s, side="right"))
                times_s[:within] = drawn[:within]
                return
        raise ConfigError(
            f"demand: {self.capacity} jobs came within {drawn[-1]:.0f} s, four times as many as "
            f"the mean rate says for {self.horizon_s:g} s. Use a longer horizon or weaker bursts."
        )


class ForeignMemory(StrictModel):
    """Memory that other processes take on the GPUs, which makes starts fail.

    Every `every_s` seconds each GPU's foreign use is redrawn, uniform in 0..`max_MB` but never more
    than is free at that instant.
    """

    max_MB: Annotated[float, within(0.0, 1e9)] = 12000.0  # noqa: N815
    every_s: Annotated[float, within(0.01, 1e6)] = 30.0


class PlacementConfig(StrictModel):
    """Arguments of `PlacementEnv`, described there, with the values that they may have."""

    cluster: str = "h100-8gpu"
    demand: str = "steady"
    trace: str | None = None
    load: Annotated[float, within(0.001, 1000.0)] = 1.0
    routing_interval_s: Annotated[float, within(0.01, 3600.0)] = 1.0
    decision_interval_s: Annotated[float, within(0.01, 3600.0)] = 5.0
    num_decisions: Annotated[int, within(1, 1_000_000)] = 120
    initial: Literal["spread", "empty"] = "spread"
    illegal_penalty: Annotated[float, within(0.0, 1e6)] = 0.1
    latency_scale_s: Annotated[float, within(0.001, 1e6)] = 10.0
    ema: Fraction = 0.3
    timing_spread: Annotated[float, within(0.0, 3.0)] = 0.2
    timing_noise: Annotated[float, within(0.0, 3.0)] = 0.1
    foreign_memory: Annotated[
        ForeignMemory, BeforeValidator(lambda memory: {} if memory is None else memory)
    ] = ForeignMemory()
    observation: Literal["flat", "dict"] = "flat"

    @model_validator(mode="after")
    def _whole_intervals(self) -> PlacementConfig:
        for name, interval_s in (
            ("decision_interval_s", self.decision_interval_s),
            ("foreign_memory.every_s", self.foreign_memory.every_s),
        ):
            ticks = interval_s / self.routing_interval_s
            if ticks < 1.0 or abs(ticks - round(ticks)) > 1e-9:
                raise ValueError(
                    f"{name} ({interval_s:g}) must be a whole multiple of routing_interval_s "
                    f"({self.routing_interval_s:g})"
                )
        if self.ticks > MOST_TICKS:
            raise ValueError(
                f"decision_interval_s ({self.decision_interval_s:g}) is {self.ticks} times "
                f"routing_interval_s ({self.routing_interval_s:g}); {MOST_TICKS} times at most"
            )
        return self

    @property
    def ticks(self) -> int:
        """Routing intervals of a decision interval."""
        return round(self.decision_interval_s / self.routing_interval_s)

    @property
    def horizon_s(self) -> float:
        """Length of an episode."""
        return self.num_decisions * self.ticks * self.routing_interval_s


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
    calls_per_job = float((share.ravel() * dag["calls"]).sum())
    calls_per_s = jobs_per_min(config, cluster, demand) / 60.0 * calls_per_job
    prompt, output = demand.prompt_tokens, demand.output_tokens
    settings = filled(
        SETTINGS,
        routing_s=config.routing_interval_s,
        request_norm=calls_per_s
        * config.ticks
        * config.routing_interval_s
        * config.latency_scale_s,
        **config.model_dump(include={"illegal_penalty", "ema", "timing_spread", "timing_noise"}),
        foreign_mb=config.foreign_memory.max_MB,
        foreign_ticks=round(config.foreign_memory.every_s / config.routing_interval_s),
        shift_s=demand.shift.every_s if demand.shift else math.inf,
        shift_by=demand.shift.by if demand.shift else 0,
        prompt_log=math.log(prompt.median),
        prompt_sigma=prompt.sigma,
        output_log=math.log(output.median),
        output_sigma=output.sigma,
        max_tokens=demand.max_tokens,
        slo_factor=demand.slo.factor,
        slo_grace_s=demand.slo.grace_s,
        ticks=config.ticks,
        decisions=config.num_decisions,
        initial=SPREAD if config.initial == "spread" else EMPTY,
        traced=isinstance(arrivals.process, TraceArrivals),
    )
    models = []
    for card in cards:
        prefill_token_s = 1.0 / card.prefill_tokens_per_s
        step_s = card.base_s + card.per_seq_s * 0.5 * card.slots  # half a batch
        times = ("t_wake_s", "t_sleep_s", "t_load_s", "t_offload_s", "t_first_sleep_s")
        model = filled(
            MODEL,
            time_s=tuple(getattr(card, name) for name in times),
            active_mb=card.active_mem_MB,
            slept_mb=card.slept_mem_MB,
            tp=card.tp_min,
            **{name: getattr(card, name) for name in ("base_s", "per_seq_s", "slots", "queue")},
            prefill_token_s=prefill_token_s,
            latency_s=output.median * math.exp(0.5 * output.sigma**2) * step_s
            + prompt.median * math.exp(0.5 * prompt.sigma**2) * prefill_token_s,
        )
        models.append(model)
    gpus = [(group.vram_total_MB, group.alpha * group.vram_total_MB) for group in cluster.gpus]
    return ClusterParams(
        settings=settings,
        model=np.concatenate(models),
        gpu=np.repeat(np.array(gpus, GPU), [group.count for group in cluster.gpus]),
        dag=dag,
        topology_cdf=cumulative(topology),
        agents_cdf=cumulative(agents),
        mix_cdf=cumulative(mix),
        trace_prompt=arrivals.prompt_tokens,
        trace_output=arrivals.output_tokens,
    )


def jobs_per_min(config: PlacementConfig, cluster: ClusterConfig, demand: DemandConfig) -> float:
    """Return the mean rate of jobs of the whole cluster."""
    return demand.jobs_per_gpu_per_min * config.load * cluster.num_gpus
