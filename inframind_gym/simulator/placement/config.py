"""Clusters and the demand on them, read from YAML.

A *catalogue* (`envs_configs/placement/catalogues`) describes models on one kind of GPU; a *cluster*
(`envs_configs/placement/clusters`) names a catalogue, some of its models and its GPUs; a *demand*
(`envs_configs/placement/demands`) says when jobs arrive, with which graphs, models and lengths. A
demand fits every cluster: its rate is per GPU, its mix of models goes by rank in the cluster's
list of models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

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
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.arrivals import BurstArrivals, TraceArrivals, load_trace, make_arrivals
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES

MOST_MODELS = 64
MOST_GPUS = 4096  # of a group
TensorParallel = Annotated[int, Field(ge=1, le=8)]
ARRIVAL_KINDS = ("poisson", "burst", "diurnal", "trace")
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
    # "poisson", "burst", "diurnal", or a mapping with such a kind; `{kind: trace}` replays a trace
    # at that rate, with the trace's own numbers of tokens
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


class TraceTokens(NamedTuple):
    """Tokens of a trace's requests; one row of zeros where no trace is replayed."""

    prompt: NDArray[np.float64]  # (T,)
    output: NDArray[np.float64]  # (T,)


class JobArrivals:
    """Sampler of the arrival times of an episode's jobs.

    Args:
        demand: The demand.
        jobs_per_min: Mean rate of the whole cluster.
        horizon_s: Length of an episode.
        trace: Path of the trace to replay; the demand's own where it is None.

    Attributes:
        capacity: More jobs than come within an episode.
        tokens: The trace's numbers of tokens.

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
        if kind not in ARRIVAL_KINDS:
            raise ConfigError(f"demand: arrivals: {unknown('kind', str(kind), ARRIVAL_KINDS)}")
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
        self.process = make_arrivals(spec)
        self.rate_per_min = jobs_per_min
        if isinstance(self.process, BurstArrivals):
            self.rate_per_min /= self.process.mean_rate_factor()
        expected = jobs_per_min * horizon_s / 60.0
        self._few = int(1.25 * expected + 6.0 * expected**0.5) + 8
        self.capacity = int(_SPARE * expected + 200.0)
        self.tokens = TraceTokens(np.zeros(1), np.zeros(1))
        if isinstance(self.process, TraceArrivals):
            recorded = load_trace(self.process.path)
            self.tokens = TraceTokens(
                recorded.input_tokens.astype(np.float64), recorded.output_tokens.astype(np.float64)
            )

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
