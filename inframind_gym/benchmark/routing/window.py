"""The queries of an episode that are scored: all of them, or n in the middle of steady load."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.rng import STREAM_BUDGET, uniform_array
from inframind_gym.simulator.workflow.state import COMPLETED

_MARGIN = 1.5  # of the arrivals that are drawn over those that are expected


@dataclass
class Window:
    """Scored queries k to k + n of every row of a batch.

    Attributes:
        first: (E,) k.
        count: n.
        until_s: (E,) time at which a row ends, whatever is unanswered.
        left: (E,) scored queries that have no answer yet.
    """

    first: NDArray[np.int64]
    count: int
    until_s: NDArray[np.float64]
    left: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no answer."""
        self.left = np.full(len(self.first), self.count)

    @classmethod
    def whole(cls, rows: int, num_queries: int) -> Self:
        """Return the window of all queries."""
        return cls(np.zeros(rows, np.int64), num_queries, np.full(rows, np.inf))

    @classmethod
    def steady(cls, arrival_s: NDArray[np.float64], count: int, longest_s: float) -> Self:
        """Return the window that begins `longest_s` after the start of the stream.

        Args:
            arrival_s: (E, N) arrivals of the rows' streams.
            count: n.
            longest_s: The longest budget: by then the queues have what they have in steady state.
                A query has no answer if it has none after that time.
        """
        first = (arrival_s < longest_s).sum(axis=1)
        first = np.minimum(first, arrival_s.shape[1] - count)
        last_s = arrival_s[np.arange(len(first)), first + count - 1]
        return cls(first, count, last_s + longest_s)

    def keep(self, done: NDArray[Any], rows: NDArray[np.int64], records: NDArray[Any]) -> int:
        """Write scored records (k,) of rows (k,) into `done` (E, n); returns their number."""
        place = records["query"] - self.first[rows]
        scored = (place >= 0) & (place < self.count)
        rows, place = rows[scored], place[scored]
        done[rows, place] = records[scored]
        np.subtract.at(self.left, rows, 1)
        return len(rows)

    def over(self, time_s: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return (E,) rows whose scored queries are answered, or that end at these times."""
        over: NDArray[np.bool_] = (self.left == 0) | (time_s >= self.until_s)
        return over


def stream_length(rate_per_min: float, count: int, longest_s: float) -> int:
    """Return the queries of a stream that arrive before, in and after a steady window.

    Arrivals go on until the last scored query is answered or `longest_s` old.
    """
    expected = 2.0 * longest_s * rate_per_min / 60.0
    return count + math.ceil(_MARGIN * expected + 10.0 * math.sqrt(expected) + 100.0)


def with_unanswered(
    done: NDArray[Any], simulation: Any, row: int, first: int, longest_s: float
) -> NDArray[Any]:
    """Return the scored records (n,) of a row with those of queries that have no answer in time.

    They are not solved and have the longest latency, no decisions and no tokens.
    """
    out = done.copy()
    late = (out["num_nodes"] == 0) | (out["latency_s"] > longest_s)
    ordinal = first + np.flatnonzero(late)
    state, params = simulation.state, simulation.params
    out[late] = np.zeros(1, COMPLETED)
    task = state.task[row, ordinal]
    arrival_s = state.arrival_s[row, ordinal]
    tiers = params.budget_tiers_s
    keys = np.full(len(ordinal), state.stream[row]["key"], np.uint64)
    drawn = uniform_array(keys, STREAM_BUDGET, ordinal, 0)
    budget_s = tiers[(drawn * len(tiers)).astype(np.int64)]
    for name, values in {
        "query": ordinal,
        "task": task,
        "domain": params.task_domain[task],
        "arrival_s": arrival_s,
        "finish_s": arrival_s + longest_s,
        "latency_s": longest_s,
        "budget_s": budget_s,
        "cost": longest_s / budget_s,
        "topology": -1,
        "final_model": -1,
        "model": -1,
        "strategy": -1,
    }.items():
        out[name][late] = values if np.ndim(values) != 1 else np.asarray(values)
    return out
