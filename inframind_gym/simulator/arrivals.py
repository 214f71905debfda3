"""Arrival processes: when the queries of a stream come.

Every process draws arrival times from a generator that the caller seeds. Those with a rate that
changes are sampled exactly: a unit-rate Poisson process is mapped through the inverse of the
cumulative intensity (time rescaling), which is piecewise linear here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from inframind_gym.configs import Fraction, StrictModel, validate, within
from inframind_gym.errors import ConfigError, require_within, unknown

Times = NDArray[np.float64]
Factor = Annotated[float, within(0.001, 1000.0)]  # of the base rate
Seconds = Annotated[float, within(0.001, 1e6)]
_MOST_CYCLES: Final = 1_000_000  # of a process with two states that are drawn at once


class ArrivalProcess(StrictModel):
    """Arrival times of queries, made from JSON by `make_arrivals`; `to_json` gives it back."""

    kind: str

    def sample(self, rate_per_min: float, n: int, rng: np.random.Generator) -> Times:
        """Draw the arrival times of one stream.

        Args:
            rate_per_min: Base rate, queries per minute.
            n: Number of queries, at least 1.
            rng: Source of randomness; the same state gives the same times.

        Returns:
            (n,) float64 seconds since the start of the stream, strictly increasing, the first > 0.

        Raises:
            ConfigError: If the rate is not in 1e-6 to 1e9, or `n` is not at least 1.
        """
        rate_per_s = require_within(rate_per_min, 1e-6, 1e9, "arrival_rate_per_min") / 60.0
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ConfigError(f"num_queries must be an integer of at least 1, got {n!r}.")
        return _strictly_increasing(self._sample(rate_per_s, int(n), rng))

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON types."""
        return self.model_dump(mode="json")

    def mean_rate_factor(self) -> float:
        """Return the mean rate of a long stream over the base rate."""
        return 1.0

    @abstractmethod
    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        """Draw sorted times; `sample` has checked the arguments."""


class PoissonArrivals(ArrivalProcess):
    """Independent exponential gaps: the arrivals of the published runs."""

    kind: Literal["poisson"] = "poisson"

    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        return _unit_poisson(n, rng) / rate_per_s


class BurstArrivals(ArrivalProcess):
    """Poisson arrivals whose rate is `factor` times the base rate at the end of every period."""

    kind: Literal["burst"] = "burst"
    factor: Factor = 10.0
    duration_s: Seconds = 3.0
    period_s: Seconds = 20.0

    @model_validator(mode="after")
    def _check(self) -> BurstArrivals:
        if self.duration_s >= self.period_s:
            raise ValueError(
                f"duration_s ({self.duration_s:g}) must be less than period_s ({self.period_s:g})"
            )
        return self

    def mean_rate_factor(self) -> float:
        """Return mean rate over base rate: 2.35 for x10 during 3 of 20 s."""
        return 1.0 + (self.factor - 1.0) * self.duration_s / self.period_s

    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        quiet_s = self.period_s - self.duration_s
        knots = np.array([0.0, quiet_s, self.period_s])
        counts = rate_per_s * np.array([0.0, quiet_s, quiet_s + self.factor * self.duration_s])
        periods, rest = np.divmod(_unit_poisson(n, rng), counts[-1])
        times: Times = periods * self.period_s + np.interp(rest, counts, knots)
        return times


class DiurnalArrivals(ArrivalProcess):
    """Poisson arrivals whose rate swings around the base rate as a sine, like day and night.

    The rate is that of the middle of each of 48 steps of a period.
    """

    kind: Literal["diurnal"] = "diurnal"
    amplitude: Fraction = 0.8
    period_s: Seconds = 600.0

    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        steps = 48
        middles = (np.arange(steps) + 0.5) / steps
        rates = rate_per_s * (1.0 + self.amplitude * np.sin(2.0 * np.pi * middles))
        return _periodic(_unit_poisson(n, rng), rates, self.period_s)


class ProfileArrivals(ArrivalProcess):
    """Poisson arrivals whose rate goes through the steps of a profile, over and over.

    A stream begins at a random time of the profile, which is scaled to a mean of 1: the base rate
    is the mean rate.
    """

    kind: Literal["profile"] = "profile"
    rates: tuple[Factor, ...] = Field(min_length=2)  # of the steps, relative to one another
    step_s: Seconds = 60.0

    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        rates = rate_per_s * np.array(self.rates) / np.mean(self.rates)
        period_s = len(rates) * self.step_s
        start_s = rng.uniform(0.0, period_s)
        before = np.interp(start_s, *_cumulative(rates, period_s))
        return _periodic(before + _unit_poisson(n, rng), rates, period_s) - start_s


class MmppArrivals(ArrivalProcess):
    """Markov-modulated Poisson process with two states, quiet and burst.

    Times in a state are exponential. The base rate is that of the quiet state; bursts have `factor`
    times it. A stream begins in either state, as likely as it is in the long run.
    """

    kind: Literal["mmpp"] = "mmpp"
    factor: Factor = 10.0
    burst_s: Seconds = 10.0  # mean
    quiet_s: Seconds = 100.0  # mean

    def mean_rate_factor(self) -> float:
        """Return mean rate over base rate: 1.82 for x10 during 10 of 110 s."""
        return 1.0 + (self.factor - 1.0) * self.burst_s / (self.burst_s + self.quiet_s)

    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        targets = _unit_poisson(n, rng)
        means_s, factors = np.array([self.quiet_s, self.burst_s]), np.array([1.0, self.factor])
        in_burst = rng.random() < self.burst_s / (self.burst_s + self.quiet_s)
        order = [1, 0] if in_burst else [0, 1]
        knots, counts = np.zeros(1), np.zeros(1)
        a_cycle = rate_per_s * float(means_s @ factors)
        while counts[-1] <= targets[-1]:
            cycles = int(min((targets[-1] - counts[-1]) / a_cycle, _MOST_CYCLES)) + 8
            lasts_s = rng.standard_exponential((cycles, 2)) * means_s[order]
            arriving = lasts_s * factors[order] * rate_per_s
            knots = np.concatenate([knots, knots[-1] + np.cumsum(lasts_s)])
            counts = np.concatenate([counts, counts[-1] + np.cumsum(arriving)])
        times: Times = np.interp(targets, counts, knots)
        return times


class SustainedArrivals(ArrivalProcess):
    """Poisson arrivals with one stretch of `factor` times the base rate.

    The stretch lies between two fractions of the stream's expected duration, in which the raised
    rate is included.
    """

    kind: Literal["sustained"] = "sustained"
    factor: Factor = 3.0
    start_frac: Fraction = 0.25
    end_frac: Fraction = 0.75

    @model_validator(mode="after")
    def _check(self) -> SustainedArrivals:
        if self.start_frac >= self.end_frac:
            raise ValueError(
                f"start_frac ({self.start_frac:g}) must be less than end_frac ({self.end_frac:g})"
            )
        return self

    def mean_rate_factor(self) -> float:
        """Return mean rate over base rate: 2 for x3 during half of the time."""
        return 1.0 + (self.factor - 1.0) * (self.end_frac - self.start_frac)

    def duration_s(self, rate_per_s: float, n: int) -> float:
        """Return the expected duration of a stream of `n` queries, in seconds."""
        return n / (rate_per_s * self.mean_rate_factor())

    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        start_s, end_s = self.duration_s(rate_per_s, n) * np.array([self.start_frac, self.end_frac])
        targets = _unit_poisson(n, rng)
        tail_s = end_s + targets[-1] / rate_per_s  # late enough to hold every arrival
        knots = np.array([0.0, start_s, end_s, tail_s])
        rates = rate_per_s * np.array([1.0, self.factor, 1.0])
        counts = np.concatenate(([0.0], np.cumsum(rates * np.diff(knots))))
        times: Times = np.interp(targets, counts, knots)
        return times


class TraceArrivals(ArrivalProcess):
    """Replay of a trace: consecutive arrivals from a random start; its end joins its beginning.

    With `rescale` the window is stretched so that its mean rate is the rate that is asked for;
    without, the trace keeps its own pace and the rate is not used.
    """

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    rescale: bool = True

    def window(
        self, rate_per_s: float, n: int, rng: np.random.Generator
    ) -> tuple[Times, NDArray[np.int64]]:
        """Draw a window of `n` consecutive arrivals.

        Returns:
            (n,) times in s and (n,) rows of the trace that they are the arrivals of.
        """
        from inframind_gym.simulator.traces import load_trace

        recorded = load_trace(self.path).times_s
        gaps = np.diff(recorded)
        gaps = np.append(gaps, gaps.mean())  # from the last arrival around to the first
        steps = (int(rng.integers(len(gaps))) + np.arange(n)) % len(gaps)
        times: Times = np.cumsum(gaps[steps])
        if self.rescale:
            times = times * (n / (rate_per_s * times[-1]))
        return times, (steps + 1) % len(gaps)

    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        return self.window(rate_per_s, n, rng)[0]


_KINDS: Final[dict[str, type[ArrivalProcess]]] = {
    "poisson": PoissonArrivals,
    "burst": BurstArrivals,
    "diurnal": DiurnalArrivals,
    "sustained": SustainedArrivals,
    "profile": ProfileArrivals,
    "mmpp": MmppArrivals,
    "trace": TraceArrivals,
}


def make_arrivals(spec: str | Mapping[str, Any] | ArrivalProcess) -> ArrivalProcess:
    """Build an arrival process from its JSON specification.

    Args:
        spec: A kind by name ("poisson", "burst", "diurnal", "sustained", "mmpp"), the path of a
            trace (ends with .csv), or a mapping with the key "kind" and that kind's fields, e.g.
            `{"kind": "burst", "factor": 10, "duration_s": 3, "period_s": 20}`.

    Returns:
        The process. A trace's file has been read and checked.

    Raises:
        ConfigError: If the specification or the trace is wrong; names the nearest kind or key.
    """
    if isinstance(spec, ArrivalProcess):
        return spec
    if isinstance(spec, str):
        trace = {"kind": "trace", "path": spec}
        spec = trace if spec.lower().endswith(".csv") else {"kind": spec}
    if not isinstance(spec, Mapping):
        raise ConfigError(f"arrivals must be a name or a mapping with a kind, got {spec!r}.")
    if "kind" not in spec:
        raise ConfigError(f"arrivals: the key kind is required, one of {', '.join(_KINDS)}.")
    kind = spec["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"arrivals: {unknown('kind', kind, _KINDS)}")
    process = validate(dict(spec), _KINDS[kind], source="arrivals")
    if isinstance(process, TraceArrivals):
        from inframind_gym.simulator.traces import load_trace

        load_trace(process.path)
    return process


def _unit_poisson(n: int, rng: np.random.Generator) -> Times:
    """Return the first `n` arrivals of a Poisson process of rate 1."""
    return np.cumsum(rng.standard_exponential(n))


def _cumulative(rates: NDArray[np.float64], period_s: float) -> tuple[Times, Times]:
    """Return the ends of a period's equal steps, in s, and the expected arrivals until then."""
    counts = np.concatenate(([0.0], np.cumsum(rates * (period_s / len(rates)))))
    return np.linspace(0.0, period_s, len(rates) + 1), counts


def _periodic(targets: Times, rates: NDArray[np.float64], period_s: float) -> Times:
    """Map arrivals of rate 1 to a rate that goes through equal steps, over and over."""
    knots, counts = _cumulative(rates, period_s)
    periods, rest = np.divmod(targets, counts[-1])
    times: Times = periods * period_s + np.interp(rest, counts, knots)
    return times


def _strictly_increasing(times: Times) -> Times:
    """Move apart the times that rounding made equal or zero, by the smallest step of float64."""
    previous = np.concatenate(([0.0], times[:-1]))
    for index in np.flatnonzero(times <= previous):
        before = times[index - 1] if index else 0.0
        position = index
        while position < len(times) and times[position] <= before:
            times[position] = before = np.nextafter(before, np.inf)
            position += 1
    return times
