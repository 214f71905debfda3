"""Streams of queries: their records and metrics, and the window of queries that is scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from inframind_gym.evaluation.metrics import RECORDS, Columns, Layout, Metric, by_name
from inframind_gym.evaluation.play import Batch, Fields
from inframind_gym.simulator.workflow.dispatch import DECISION
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.simulator.workflow.topology import CUSTOM, STRATEGIES, TOPOLOGIES
from inframind_gym.tasks.taskset import DOMAINS

SLO_TARGETS_S: Final = (10, 30, 50, 100, 200, 300)
SHARES: Final = ("model_share", "strategy_share", "topology_share")
METRICS: Final = by_name(  # on the boards of routing and of tracks
    Metric("accuracy", "solved", "%", "higher"),
    Metric("goodput", "goodput", "%", "higher"),
    Metric("slo_own", "SLO", "%", "higher"),
    *(Metric(f"slo_{t}s", f"≤{t} s", "%", "higher") for t in SLO_TARGETS_S),
    Metric("latency_mean_s", "mean", "s", "lower"),
    Metric("latency_p95_s", "p95", "s", "lower", tail_of="latency_s"),
    Metric("cost_ratio", "cost", "", "lower"),
    Metric("imbalance", "imbalance", "", "lower", whole=""),
    Metric("tokens_per_query", "tokens/query", part=("prompt_tokens", "output_tokens")),
    Metric("output_tokens_per_query", "output tokens/query", part="output_tokens"),
    Metric("calls_per_query", "calls/query"),
    Metric("truncated_share", "cut", "%", "lower", part="truncated_calls", whole="calls_per_query"),
    Metric("wait_s", "wait", "s", "lower", whole="ended_calls"),
    Metric("avoidable_s", "avoidable", "s", "lower", whole="ended_calls"),
    Metric("wasted_share", "wasted", "%", "lower", part="wasted_tokens", whole="generated_tokens"),
    Metric("idle_share", "idle", "%", part="busy_s", whole="offered_s", complement=True),
)
PLAIN_SUMS: Final = (
    *(RECORDS, "accuracy", "latency_mean_s", "slo_own"),
    *(f"slo_{target}s" for target in SLO_TARGETS_S),
    *("goodput", "cost_ratio"),
    *("calls_per_query", "prompt_tokens", "output_tokens", "truncated_calls"),
    *("ended_calls", "wait_s", "avoidable_s", "generated_tokens", "wasted_tokens"),
    *("busy_s", "offered_s"),
)
FIELDS: Final = (  # of the environment's records of queries that are kept unchanged
    *("query", "topology", "num_agents", "num_nodes", "solved"),
    *("arrival_s", "finish_s", "latency_s", "budget_s", "cost"),
    *("calls", "truncated_calls", "prompt_tokens", "output_tokens"),
    *("final_model", "model", "strategy"),
)
_MARGIN: Final = 1.5  # drawn over expected arrivals outside of a window


# Metrics


class QueryLayout(Layout):
    """Layout of a row of sums over queries; `names` are of models, strategies and topologies."""

    @cached_property
    def counted(self) -> dict[str, Sequence[str]]:
        """Names of the models, strategies and topologies that are counted, by their share."""
        kinds = ("models", "strategies", "topologies")
        return dict(zip(SHARES, (self.names[kind] for kind in kinds), strict=True))

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Names of the columns of the table: plain sums, then counts."""
        counts = (f"{share}/{name}" for share, own in self.counted.items() for name in own)
        return (*PLAIN_SUMS, *counts)

    def derived(self, columns: Columns) -> dict[str, NDArray[Any]]:
        """Return each query's share of the sums that are not fields, (num_queries,) each."""
        solved, latency_s, calls = (columns[name] for name in ("solved", "latency_s", "calls"))
        in_time = latency_s <= columns["budget_s"]
        parts = {
            RECORDS: np.ones(len(solved)),
            "accuracy": solved,
            "latency_mean_s": latency_s,
            "slo_own": in_time,
            **{f"slo_{target}s": latency_s <= target for target in SLO_TARGETS_S},
            "goodput": solved * in_time,
            "cost_ratio": columns["cost"],
            "calls_per_query": calls,
            "wasted_tokens": columns["generated_tokens"] * (~in_time | (calls == 0)),
        }
        chosen = (columns["model"], columns["strategy"], columns["topology"][:, None])
        for index, (share, names) in zip(chosen, self.counted.items(), strict=True):
            parts |= {f"{share}/{name}": (index == i).sum(axis=1) for i, name in enumerate(names)}
        return parts

    def evaluate(self, sums: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Compute all metrics but the tail from sums ``(..., width)``, ``(...)`` each."""
        total = self.named(sums)
        decisions = [total[f"model_share/{name}"] for name in self.counted["model_share"]]
        return {**super().evaluate(sums), "imbalance": imbalance(np.stack(decisions, axis=-1))}

    def shares(self, sums: NDArray[np.float64]) -> dict[str, dict[str, float]]:
        """Return shares of models and strategies (of decisions) and of topologies (of queries)."""
        total, shares = self.named(sums), {}
        for kind, names in self.counted.items():
            counts = np.array([total[f"{kind}/{name}"] for name in names])
            shares[kind] = dict(zip(names, (counts / max(counts.sum(), 1.0)).tolist(), strict=True))
        return shares


def imbalance(calls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the population standard deviation over the mean of the models' shares of decisions.

    Shares of [.25, .5, .125, .125] give 0.612.

    Args:
        calls: Calls of each model, ``(..., num_models)``.

    Returns:
        0 for equal shares, ``sqrt(num_models - 1)`` if one model takes all; 0 where there are no
        calls. ``(...)``.
    """
    mean = calls.mean(axis=-1)
    return np.asarray(calls.std(axis=-1) / np.where(mean > 0, mean, 1.0), dtype=np.float64)


def names_of(models: Sequence[str]) -> dict[str, list[str]]:
    """Return the names behind the indices in records, by kind, for ``run.json``."""
    topologies = [*TOPOLOGIES, CUSTOM]
    return {"models": list(models), "strategies": list(STRATEGIES), "topologies": topologies}


# Streams


@dataclass
class Window:
    """Scored queries k, ..., k + n - 1 of every row of a batch."""

    first: NDArray[np.int64]  # (E,) k
    count: int  # n
    until_s: NDArray[np.float64]  # (E,) time at which a row ends, even with unanswered queries
    left: NDArray[np.int64] = field(init=False)  # (E,) scored queries that have no answer yet

    def __post_init__(self) -> None:
        """Start with all queries unanswered."""
        self.left = np.full(len(self.first), self.count)

    @classmethod
    def steady(cls, arrival_s: NDArray[np.float64], count: int, longest_s: float) -> Self:
        """Return the window that begins `longest_s` after the start of the stream.

        Args:
            arrival_s: (E, N) arrivals of the rows' streams.
            count: n.
            longest_s: The longest budget: by then the queues are in steady state. A query that
                has waited as long is unanswered.
        """
        first = (arrival_s < longest_s).sum(axis=1)
        first = np.minimum(first, arrival_s.shape[1] - count)
        last_s = arrival_s[np.arange(len(first)), first + count - 1]
        return cls(first, count, last_s + longest_s)

    def keep(self, done: NDArray[Any], rows: NDArray[np.int64], records: NDArray[Any]) -> int:
        """Write scored records (k,) of rows (k,) into `done` (E, n); return their number."""
        position = records["query"] - self.first[rows]
        scored = (position >= 0) & (position < self.count)
        rows, position = rows[scored], position[scored]
        done[rows, position] = records[scored]
        np.subtract.at(self.left, rows, 1)
        return len(rows)

    def over(self, time_s: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return (E,) rows whose scored queries are answered, or that end at these times."""
        over: NDArray[np.bool_] = (self.left == 0) | (time_s >= self.until_s)
        return over


def stream_length(rate_per_min: float, count: int, longest_s: float) -> int:
    """Return the number of queries that arrive before, in and after a steady window.

    Arrivals go on until the last scored query is answered or `longest_s` old.
    """
    expected = 2.0 * longest_s * rate_per_min / 60.0
    return count + math.ceil(_MARGIN * expected + 10.0 * math.sqrt(expected) + 100.0)


class QueryBatch(Batch):
    """Streams of queries; a record is a query, in the order of arrival."""

    def begin(self) -> None:
        """Open the window, with no record."""
        self.window = self.scored()
        self.done = np.zeros((len(self.cells), self.window.count), COMPLETED)  # (E, n)

    def scored(self) -> Window:
        """Return the window of scored queries: here all."""
        rows = len(self.cells)
        first = np.zeros(rows, np.int64)
        return Window(first, self.simulation.num_queries, np.full(rows, np.inf))

    def note(self, rows: NDArray[np.int64]) -> int:
        """Keep the queries that ended, and show them to a policy that learns from them."""
        row_of, records = self.simulation.completed_batch()
        if len(rows) < len(self.cells):  # rows that are over still show their last step
            playing = np.isin(row_of, rows)
            row_of, records = row_of[playing], records[playing]
        if (observe := getattr(self.policy, "observe", None)) is not None:
            with self.calling():
                for row in np.unique(row_of).tolist():
                    observe(records[row_of == row], row)
        return self.window.keep(self.done, row_of, records)

    def over(self) -> NDArray[np.bool_]:
        """Return the rows whose window is over, (E,)."""
        ended: NDArray[np.bool_] = self.simulation.status != DECISION
        return ended | self.window.over(self.simulation.decisions["time_s"])

    def columns(self, row: int) -> Fields:
        """Return the queries of a row."""
        return columns_of(self.simulation, self.done[row], self.simulation.calls(row))


def columns_of(simulation: Any, completed: NDArray[np.void], calls: NDArray[Any]) -> Fields:
    """Return the records of an episode by field, in the order of arrival.

    Args:
        simulation: In which the episode was played.
        completed: One record of the COMPLETED dtype for each query, in any order.
        calls: CALL records of its ended calls. They add to a query, answered or not, the seconds
            that its calls waited, those while another server was empty (`avoidable_s`) and tokens.
            `busy_s`: slot-seconds in use from its arrival to the next one, of `offered_s`.
    """
    ordered = completed[np.argsort(completed["query"], kind="stable")]
    columns = {name: ordered[name] for name in FIELDS}
    for name in ("model", "strategy"):  # (num_queries, most nodes); -1 where a query has fewer
        unused = np.arange(columns[name].shape[1]) >= ordered["num_nodes"][:, None]
        masked = np.where(unused, np.int8(-1), columns[name])
        columns[name] = masked[:, : max(ordered["num_nodes"].max(), 1)]
    tasks, task = simulation.tasks, ordered["task"]
    columns |= {"task": np.array(tasks.ids)[task], "dataset": np.array(tasks.datasets)[task]}
    columns["domain"] = np.array(DOMAINS)[ordered["domain"]]
    num_ordinals = int(ordered["query"].max()) + 1
    submit_s, finish_s = calls["submit_s"], calls["finish_s"]
    # A live server may not say when it admits a call; a call that failed may never be admitted.
    admitted_s = calls["admitted_s"].copy()
    for known_s in (calls["first_token_s"], finish_s):
        admitted_s = np.where(np.isnan(admitted_s), known_s, admitted_s)
    slots = simulation.policy_spec().max_num_seqs
    event_s, empty_s = time_with_an_empty_server(calls, len(slots))
    avoidable_s = np.interp(admitted_s, event_s, empty_s) - np.interp(submit_s, event_s, empty_s)
    for name, values in {
        "ended_calls": np.ones(len(calls)),
        "wait_s": admitted_s - submit_s,
        "avoidable_s": avoidable_s,
        "generated_tokens": calls["output_tokens"],
    }.items():
        by_query = np.bincount(calls["query"], values, minlength=num_ordinals)
        kind = np.float64 if name.endswith("_s") else np.int32
        columns[name] = by_query[ordered["query"]].astype(kind)
    arrival_s = ordered["arrival_s"]
    used_s = sum_of_earlier(finish_s, arrival_s) - sum_of_earlier(admitted_s, arrival_s)
    columns["busy_s"] = np.diff(used_s, append=used_s[-1:])
    columns["offered_s"] = slots.sum() * np.diff(arrival_s, append=arrival_s[-1:])
    return columns


def time_with_an_empty_server(
    calls: NDArray[Any], num_models: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how long, up to each event, at least one server had no call at all.

    Args:
        calls: (k,) CALL of an episode.
        num_models: Number of servers.

    Returns:
        Times of events, (1 + 2k,): 0, then those at which a call came or ended; and the seconds
        with an empty server up to each, (1 + 2k,).
    """
    times_s = np.concatenate([calls["submit_s"], calls["finish_s"]])
    order = np.argsort(times_s, kind="stable")
    change = np.zeros((len(order), num_models), np.int32)
    change[np.arange(len(calls)), calls["model"]] = 1
    change[np.arange(len(calls), len(order)), calls["model"]] = -1
    empty = (np.cumsum(change[order], axis=0) == 0).any(axis=1)
    event_s = np.append(0.0, times_s[order])
    lasts_s = np.diff(event_s, append=event_s[-1:]) * np.append(True, empty)
    return event_s, np.append(0.0, np.cumsum(lasts_s[:-1]))


def sum_of_earlier(times_s: NDArray[np.float64], at_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return, for each of `at_s` (n,), the sum over times (k,) of the smaller of both, (n,)."""
    ordered = np.sort(times_s)
    before = np.searchsorted(ordered, at_s)
    sums: NDArray[np.float64] = np.append(0.0, np.cumsum(ordered))[before]
    return sums + (len(ordered) - before) * at_s
