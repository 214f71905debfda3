"""Read traces of production traffic: when requests came, with how many tokens.

Three CSV layouts are known, told apart by their header:

- Azure LLM inference: `TIMESTAMP,ContextTokens,GeneratedTokens`, date and time of day;
- Mooncake: `timestamp_ms,input_length,output_length`, milliseconds;
- plain: `timestamp,input,output`, seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.errors import ConfigError, did_you_mean, shortened
from inframind_gym.files import read_csv

MIN_ARRIVALS: Final = 2  # one gap at least
_LATEST_NS: Final = 4.6e18  # 2115 if counted since 1970; the difference of two fits an int64
_MOST_TOKENS: Final = 1 << 24  # of a request


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
    """Nanoseconds since 1970 of an ISO date and time in UTC."""
    text = text.removesuffix("Z").removesuffix("+00:00")
    if "-" not in text or ":" not in text:
        raise ValueError("not a date with a time of day")
    whole_s = int(np.datetime64(text, "s").astype(np.int64))  # in ns, years past 2262 wrap around
    _check_time(whole_s * 1e9)
    return int(np.datetime64(text, "ns").astype(np.int64))


def _from_number(text: str, unit_s: float) -> int:
    time_ns = float(text) * unit_s * 1e9
    _check_time(time_ns)
    return round(time_ns)


def _check_time(time_ns: float) -> None:
    if not abs(time_ns) < _LATEST_NS:
        raise ValueError("the time lies more than 145 years from the start of the clock")


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

    Requests are sorted by time. Those with one and the same timestamp are spread evenly over the
    trace's resolution (its smallest gap, e.g. 3 s in Mooncake), in the file's order: the recorded
    stamp says no more than that they came within it.

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
    """Return time in ns, tokens of prompt and of answer of every request, one after the other."""
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
