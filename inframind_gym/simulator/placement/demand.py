"""Demand: arrival times, graphs, models and lengths of jobs.

Read from YAML (`envs_configs/placement/demands`). A demand fits every cluster: its rate is per GPU,
its mix of models goes by rank in the cluster's list of models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from inframind_gym.configs import (
    NonNegative,
    Positive,
    PositiveInt,
    StrictModel,
    find_config,
    load_yaml_model,
)
from inframind_gym.errors import ConfigError, unknown
from inframind_gym.simulator.arrivals import (
    ArrivalProcess,
    BurstArrivals,
    TraceArrivals,
    make_arrivals,
)
from inframind_gym.simulator.traces import load_trace
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES

ARRIVAL_KINDS = ("poisson", "burst", "diurnal", "trace")
_SPARE = 4.0  # times the expected number of jobs: what arrays have room for
AgentCount = Annotated[int, Field(ge=1, le=MAX_AGENTS)]


class Lengths(StrictModel):
    """A log-normal number of tokens.

    Attributes:
        median: Median.
        sigma: Standard deviation of the logarithm.
    """

    median: Positive
    sigma: NonNegative


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
    """Demand on a cluster.

    Attributes:
        name: Name of the demand.
        description: One line.
        jobs_per_gpu_per_min: Mean rate over time, of jobs.
        arrivals: "poisson", "burst", "diurnal", or a mapping with such a kind; `{kind: trace}`
            replays a trace at that rate, with the trace's own numbers of tokens.
        topologies: Weights of the six topologies; what is not named does not occur.
        num_agents: Weights of the numbers of agents.
        zipf: Exponent s: the model at rank r (from 1) of the cluster's list is asked for with
            weight r^-s. Every agent of a job draws its own.
        shuffle: Draw a new ranking for every episode.
        shift: Let the ranking move on in time.
        prompt_tokens: Of a call that follows no other; answers that a call reads are added.
        output_tokens: Of a call.
        max_tokens: Neither is more.
        slo: When a job is on time.
    """

    name: str
    description: str = ""
    jobs_per_gpu_per_min: Positive
    arrivals: dict[str, Any] | str = "poisson"
    topologies: dict[str, NonNegative] = Field(min_length=1)
    num_agents: dict[AgentCount, NonNegative] = Field(min_length=1)
    zipf: NonNegative = 0.0
    shuffle: bool = False
    shift: Shift | None = None
    prompt_tokens: Lengths
    output_tokens: Lengths
    max_tokens: PositiveInt = 4096
    slo: SloRule = SloRule()

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
        self.process = _process(demand.arrivals, trace)
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


def _process(spec: dict[str, Any] | str, trace: str | None) -> ArrivalProcess:
    kind = spec if isinstance(spec, str) else spec.get("kind")
    if kind not in ARRIVAL_KINDS:
        raise ConfigError(f"demand: arrivals: {unknown('kind', kind, ARRIVAL_KINDS)}")
    if kind != "trace":
        if trace is not None:
            raise ConfigError(
                f"`trace` is given, but the demand's arrivals are {kind!r}. Use a demand whose "
                "arrivals are {kind: trace}, such as `trace`."
            )
        return make_arrivals(spec)
    given = {"kind": "trace"} if isinstance(spec, str) else dict(spec)
    if trace is not None:
        given["path"] = trace
    if "path" not in given:
        raise ConfigError(
            "demand: arrivals: a trace is to be replayed, but none is named. Give the path of a "
            "CSV file as the argument `trace` of the environment."
        )
    if not given.get("rescale", True):
        raise ConfigError(
            "demand: arrivals: rescale must be true here: a demand's rate is "
            "jobs_per_gpu_per_min, whatever the trace's own pace is."
        )
    return make_arrivals(given)
