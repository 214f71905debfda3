"""Arrival processes: when the queries of a stream come; traces of production traffic.

Every process draws arrival times from a generator that the caller seeds. Processes with a changing
rate are sampled exactly: a unit-rate Poisson process is mapped through the inverse of the
cumulative intensity (time rescaling), which is piecewise linear here.

A trace has one of three CSV layouts, recognised by the header:

- Azure LLM inference: `TIMESTAMP,ContextTokens,GeneratedTokens`, date and time of day;
- Mooncake: `timestamp_ms,input_length,output_length`, milliseconds;
- plain: `timestamp,input,output`, seconds.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from inframind_gym.configs import Fraction, StrictModel, validate, within
from inframind_gym.errors import ConfigError, did_you_mean, shortened, unknown
from inframind_gym.files import read_csv

Times = NDArray[np.float64]
Factor = Annotated[float, within(0.001, 1000.0)]  # of the base rate
Seconds = Annotated[float, within(0.001, 1e6)]
MIN_ARRIVALS: Final = 2  # of a trace: one gap at least
_LATEST_NS: Final = 4.6e18  # 2115 if counted since 1970; the difference of two fits an int64
_MOST_TOKENS: Final = 1 << 24  # of a request
_MOST_CYCLES: Final = 1_000_000  # of a two-state process, drawn at once


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
        """
        return _strictly_increasing(self._sample(rate_per_min / 60.0, n, rng))

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON types."""
        return self.model_dump(mode="json")

    def mean_rate_factor(self) -> float:
        """Return the mean rate of a long stream over the base rate."""
        return 1.0

    @abstractmethod
    def _sample(self, rate_per_s: float, n: int, rng: np.random.Generator) -> Times:
        """Draw sorted times."""


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
        return _periodic(_unit_poisson(n, rng), knots, counts)


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
        return _periodic(_unit_poisson(n, rng), *_cumulative(rates, self.period_s))


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
        knots, counts = _cumulative(rates, period_s)
        before = np.interp(start_s, knots, counts)
        return _periodic(before + _unit_poisson(n, rng), knots, counts) - start_s


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
        per_cycle = rate_per_s * float(means_s @ factors)  # expected arrivals
        while counts[-1] <= targets[-1]:
            cycles = int(min((targets[-1] - counts[-1]) / per_cycle, _MOST_CYCLES)) + 8
            durations_s = rng.standard_exponential((cycles, 2)) * means_s[order]
            expected = durations_s * factors[order] * rate_per_s
            knots = np.concatenate([knots, knots[-1] + np.cumsum(durations_s)])
            counts = np.concatenate([counts, counts[-1] + np.cumsum(expected)])
        times: Times = np.interp(targets, counts, knots)
        return times


class TraceArrivals(ArrivalProcess):
    """Replay of a trace: consecutive arrivals from a random start; its end joins its beginning.

    With `rescale` the window is stretched to the requested mean rate; without, the trace keeps its
    own rate and the requested one is not used.
    """

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    rescale: bool = True

    def window(
        self, rate_per_s: float, n: int, rng: np.random.Generator
    ) -> tuple[Times, NDArray[np.int64]]:
        """Draw a window of `n` consecutive arrivals.

        Returns:
            (n,) times in s and (n,) rows of these arrivals in the trace.
        """
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
    "profile": ProfileArrivals,
    "mmpp": MmppArrivals,
    "trace": TraceArrivals,
}


def make_arrivals(spec: str | Mapping[str, Any] | ArrivalProcess) -> ArrivalProcess:
    """Build an arrival process from its JSON specification.

    Args:
        spec: A kind by name ("poisson", "burst", "diurnal", "mmpp"), the path of a
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
        load_trace(process.path)
    return process


def _unit_poisson(n: int, rng: np.random.Generator) -> Times:
    """Return the first `n` arrivals of a Poisson process of rate 1."""
    return np.cumsum(rng.standard_exponential(n))


def _cumulative(rates: NDArray[np.float64], period_s: float) -> tuple[Times, Times]:
    """Return the ends of a period's equal steps, in s, and the expected arrivals until then."""
    counts = np.concatenate(([0.0], np.cumsum(rates * (period_s / len(rates)))))
    return np.linspace(0.0, period_s, len(rates) + 1), counts


def _periodic(targets: Times, knots: Times, counts: Times) -> Times:
    """Map arrivals of rate 1 to a period that repeats, with `counts` expected until `knots`."""
    periods, rest = np.divmod(targets, counts[-1])
    times: Times = periods * knots[-1] + np.interp(rest, counts, knots)
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


# Traces


@dataclass(frozen=True, eq=False)
class Trace:
    """Arrivals of a trace with N requests. The arrays are read-only.

    Args:
        path: The file.
        times_s: (N,) float64, seconds since the first arrival, strictly increasing.
        input_tokens: (N,) int64, tokens of each prompt.
        output_tokens: (N,) int64, tokens of each answer.
    """

    path: Path
    times_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of requests N."""
        return len(self.times_s)

    @property
    def rate_per_min(self) -> float:
        """Mean rate of the trace, requests per minute."""
        return 60.0 * (len(self) - 1) / float(self.times_s[-1])


def _from_datetime(text: str) -> int:
    """Return the nanoseconds since 1970 of an ISO date and time in UTC."""
    text = text.removesuffix("Z").removesuffix("+00:00")
    if "-" not in text or ":" not in text:
        raise ValueError("not a date with a time of day")
    whole_s = int(np.datetime64(text, "s").astype(np.int64))  # in ns, years past 2262 wrap around
    _from_number(str(whole_s), 1.0)
    return int(np.datetime64(text, "ns").astype(np.int64))


def _from_number(text: str, unit_s: float) -> int:
    time_ns = float(text) * unit_s * 1e9
    if not abs(time_ns) < _LATEST_NS:
        raise ValueError("the time lies more than 145 years from the start of the clock")
    return round(time_ns)


# Columns, unit of a timestamp, and its nanoseconds: integers keep Azure's 0.1 µs.
_LAYOUTS: Final[tuple[tuple[tuple[str, ...], str, Callable[[str], int]], ...]] = (
    (("TIMESTAMP", "ContextTokens", "GeneratedTokens"), "date and time of day", _from_datetime),
    (
        ("timestamp_ms", "input_length", "output_length"),
        "milliseconds",
        lambda text: _from_number(text, 1e-3),
    ),
    (("timestamp", "input", "output"), "seconds", lambda text: _from_number(text, 1.0)),
)


def load_trace(path: str | Path) -> Trace:
    """Read a trace; a file that has not changed is read once per process.

    Requests are sorted by time. Those with the same timestamp are spread evenly over the trace's
    resolution (its smallest gap, e.g. 3 s in Mooncake), in the file's order: the timestamp only
    says that they came within it.

    Args:
        path: A CSV file; a relative path starts at the working directory.

    Returns:
        The trace.

    Raises:
        ConfigError: If the file is missing or has other columns, if a row cannot be read (file and
            line), or if there are fewer than two distinct times.
    """
    path = Path(path)
    if not path.is_file():
        kind = "is a folder, wanted a CSV file" if path.is_dir() else "no such trace file"
        near = sorted(p.name for p in path.parent.glob("*.csv")) if path.parent.is_dir() else []
        raise ConfigError(f"{path}: {kind}.{did_you_mean(path.name, near)}")
    stat = path.stat()
    return _load(path.resolve(), path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _load(resolved: Path, path: Path, mtime_ns: int, size: int) -> Trace:
    rows = np.frombuffer(_read_rows(path), np.int64).reshape(-1, 3)
    stamps = rows[:, 0]
    if len(stamps) < MIN_ARRIVALS or stamps.min() == stamps.max():
        raise ConfigError(
            f"{path}: too short, {len(stamps)} rows with {len(np.unique(stamps))} distinct times. "
            f"A replay needs at least {MIN_ARRIVALS} distinct times."
        )
    order = np.argsort(stamps, kind="stable")
    tokens = rows[order, 1:]
    times = _spread_ties((stamps[order] - stamps[order[0]]) * 1e-9)
    arrays = (times, tokens[:, 0].copy(), tokens[:, 1].copy())
    for column in arrays:
        column.flags.writeable = False
    return Trace(path, *arrays)


def _read_rows(path: Path) -> array[int]:
    """Return a flat array with three numbers for each request: time in ns, input, output tokens."""
    reader = read_csv(path)
    header = [name.strip() for name in next(reader, (1, []))[1]]
    names = [name.lower() for name in header]
    known_layouts = [
        layout for layout in _LAYOUTS if all(column.lower() in names for column in layout[0])
    ]
    if not known_layouts:
        known = [f"{','.join(columns)} ({unit})" for columns, unit, _ in _LAYOUTS]
        raise ConfigError(
            f"{path}:1: unknown columns. Found: {','.join(header)[:80] or 'nothing'}. Wanted: "
            f"{', '.join(known[:-1])}, or {known[-1]}."
        )
    columns, unit, nanoseconds = known_layouts[0]
    places = [names.index(column.lower()) for column in columns]
    rows = array("q")
    for line, record in reader:
        if not record or record == [""]:
            continue
        try:
            stamp, *counts = (record[place].strip() for place in places)
            tokens = [int(float(count)) for count in counts]
            if not all(0 <= count <= _MOST_TOKENS for count in tokens):
                raise ValueError(f"a count of tokens is not in 0 to {_MOST_TOKENS:,}")
            rows.extend((nanoseconds(stamp), *tokens))
        except (IndexError, ValueError, OverflowError) as error:
            text = shortened(",".join(record))
            raise ConfigError(
                f"{path}:{line}: cannot read the row {text!r} ({shortened(error)}), wanted "
                f"{shortened(','.join(header))} with {unit} as the time. Correct or remove the "
                "line."
            ) from None
    return rows


def _spread_ties(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Spread equal times evenly over the resolution, at most up to the next distinct time.

    Args:
        times: (N,) sorted times with at least two distinct values.

    Returns:
        (N,) strictly increasing times; those that were distinct stay as they are.
    """
    distinct, first, count = np.unique(times, return_index=True, return_counts=True)
    gaps = np.diff(distinct)
    room = np.append(np.minimum(gaps, gaps.min()), gaps.min())
    group = np.repeat(np.arange(len(distinct)), count)
    rank = np.arange(len(times)) - first[group]
    spread: NDArray[np.float64] = times + room[group] * rank / count[group]
    return spread
