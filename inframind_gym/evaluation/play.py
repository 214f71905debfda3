"""Plays one policy in several episodes in lock-step, each a row of one simulation.

A row's result depends on its own cell alone: not on the rows beside it, not on the size of the
batch, not on the process. That is the simulation's and the policies' contract, and the tests hold
both to it. The loop is that of the environment, without its autoreset: when an episode is over, its
simulation is still there to be read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from inframind_gym.evaluation.errors import PolicyFailedError, blame, checked
from inframind_gym.evaluation.metrics import TAIL
from inframind_gym.evaluation.suite import Cell
from inframind_gym.simulator.rng import STREAM_BUDGET, uniform_array
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.workflow.dispatch import DECISION
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.tasks.taskset import DOMAINS

Timing = dict[str, float]  # name of a measurement -> milliseconds
Fields = dict[str, NDArray[Any]]  # records of an episode by field, ``(num_records, ...)`` each
Played = tuple[Cell, Fields, Timing | None]

LIVE_ID: Final = "InfraMind-StreamLive-v0"
FIELDS: Final = (  # of the environment's records of queries, as they are
    *("query", "topology", "num_agents", "num_nodes", "solved"),
    *("arrival_s", "finish_s", "latency_s", "budget_s", "cost"),
    *("calls", "truncated_calls", "prompt_tokens", "output_tokens"),
    *("final_model", "model", "strategy"),
)
_MARGIN: Final = 1.5  # of the arrivals that are drawn over those that are expected


class Batch:
    """Cells of one group, begun on one simulation; keeps the records of their episodes.

    Attributes:
        suite: Of the cells.
        cells: One a row.
        policy: Reset for them.
        simulation: Of all rows.
        observations: (E, d), written by every step.
        actions: (E, a), those of the last step.
    """

    def __init__(self, suite: Any, cells: Sequence[Cell], policy: Any, simulation: Any) -> None:
        self.suite, self.cells, self.policy, self.simulation = suite, cells, policy, simulation
        self.observations = simulation.observations()
        self.actions = np.zeros((len(cells), len(simulation.highs)), np.int64)

    def begin(self) -> None:
        """Prepare for records; the simulation has been reset."""

    def note(self, rows: NDArray[np.int64]) -> int:
        """Take the records of a step of some rows (k,); returns the number of those finished."""
        raise NotImplementedError

    def over(self) -> NDArray[np.bool_]:
        """Return the rows whose episodes are over, (E,)."""
        over: NDArray[np.bool_] = self.simulation.over()
        return over

    def columns(self, row: int) -> Fields:
        """Return the records of a row's episode, which is over."""
        raise NotImplementedError


class Player:
    """Plays batches of cells of a suite.

    Args:
        suite: Settings that all cells share.
        progress: Called with the number of records that have been finished.

    Attributes:
        batch: Class of the batches.
        is_timed: Whether results have the time that policies take to decide.
        arguments: Of the environment, beside those of the suite.
    """

    batch: ClassVar[type[Batch]]
    is_timed: ClassVar[bool] = False

    def __init__(self, suite: Any, progress: Callable[[int], None] = lambda _: None) -> None:
        self.suite, self.progress = suite, progress
        self.arguments: dict[str, Any] = {}
        self._last: tuple[Any, Any] | None = None  # arguments of a simulation, and itself

    def run(self, cells: Sequence[Cell]) -> list[Played]:
        """Play cells of one `Suite.group_of` to the ends of their episodes.

        Raises:
            PolicyFailedError: The policy raised an error or gave no valid action.
        """
        return self.play(self.begin(cells))

    def begin(self, cells: Sequence[Cell]) -> Any:
        """Make the policy and the simulation of cells, and reset both.

        Raises:
            PolicyFailedError: The policy cannot play there.
        """
        batch = self.make(cells)
        with blame(cells[0].policy):
            self.reset(batch)
            self.reset_policy(batch)
        batch.begin()
        return batch

    def play(self, batch: Batch) -> list[Played]:
        """Play a batch that has begun."""
        simulation, policy, cells = batch.simulation, batch.policy, batch.cells
        name, truth = cells[0].policy, getattr(policy, "sees_truth", False)
        took_ms: list[float] = []
        while len(rows := np.flatnonzero(~batch.over())):
            contexts = simulation.contexts(rows, truth=truth)
            with blame(name):
                began = time.thread_time()
                actions = policy.act_batch(batch.observations[rows], contexts, rows)
                took_ms.append(1e3 * (time.thread_time() - began) / len(rows))
            batch.actions[rows] = checked(name, actions, simulation.action_space, len(rows))
            self.step(batch, rows)
            self.progress(batch.note(rows))
        timing = None
        if self.is_timed:
            median, tail = np.quantile(took_ms, [0.5, TAIL]).tolist()
            timing = {"decide_median_ms": median, "decide_p95_ms": tail}
        return [(cell, batch.columns(row), timing) for row, cell in enumerate(cells)]

    def check(self, cell: Cell) -> None:
        """Check that a policy can play a cell.

        Raises:
            PolicyFailedError: It cannot.
        """
        self.begin([cell])

    def refused(self, cells: Iterable[Cell]) -> Iterator[PolicyFailedError]:
        """Yield the error of every policy that cannot play one of some cells."""
        out: set[str] = set()
        for cell in cells:
            try:
                if cell.policy not in out:
                    self.check(cell)
            except PolicyFailedError as error:
                out.add(cell.policy)
                yield error

    def warm_up(self, cell: Cell) -> None:
        """Take one step as in a cell, so that compiled code is in the cache."""
        self.step(self.begin([cell]), np.zeros(1, np.int64))

    def close(self) -> None:
        """Release what it holds: the last simulation."""
        if self._last is not None:
            self._last[1].close()
            self._last = None

    # Parts, which families replace

    def policy(self, cells: Sequence[Cell]) -> Any:
        """Make the policy that plays cells."""
        return self.suite.resolve_policy(cells[0].policy)

    def arguments_of(self, cells: Sequence[Cell], policy: Any) -> dict[str, Any]:
        """Return the arguments of the environment of cells."""
        kwargs: dict[str, Any] = self.suite.env_kwargs(cells[0].place, policy)
        return kwargs

    def options(self, cells: Sequence[Cell]) -> dict[str, Any] | None:
        """Return the options of the reset."""
        return None

    def simulate(self, policy: Any, kwargs: dict[str, Any], rows: int) -> Any:
        """Make a simulation from the arguments of the environment."""
        return self.suite.environment().simulation_of(kwargs, rows)

    def make(self, cells: Sequence[Cell]) -> Any:
        """Make the policy of cells and their simulation, which is the last one if that fits."""
        with blame(cells[0].policy):
            policy = self.policy(cells)
            kwargs = self.arguments_of(cells, policy) | self.arguments
            key = (getattr(policy, "simulation", None), kwargs, len(cells))
            if self._last is None or self._last[0] != key:
                Player.close(self)
                self._last = (key, self.simulate(policy, kwargs, len(cells)))
            return self.batch(self.suite, cells, policy, self._last[1])

    def reset(self, batch: Batch) -> None:
        """Begin the episodes of a batch."""
        simulation, cells = batch.simulation, batch.cells
        simulation.set_options(self.options(cells))
        simulation.seeded()
        generators = [seeding.np_random(cell.episode_seed)[0] for cell in cells]
        simulation.reset(np.arange(len(cells)), generators, batch.observations)

    def reset_policy(self, batch: Batch) -> None:
        """Show the policy of a batch what it is to play."""
        seeds = [cell.policy_seed for cell in batch.cells]
        batch.policy.reset(batch.simulation.policy_spec(), seeds)
        if getattr(self.suite, "division", "") == "route":
            getattr(batch.policy, "plan_single_calls", lambda: None)()

    def step(self, batch: Batch, rows: NDArray[np.int64]) -> None:
        """Carry out the actions of some rows."""
        actions = batch.simulation.checked(batch.actions)
        batch.simulation.step(rows, actions, batch.observations)


# Streams of queries


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


class QueryBatch(Batch):
    """Streams of queries; a record is a query, in the order of arrival.

    Attributes:
        window: Scored queries.
        done: (E, n) their COMPLETED.
    """

    def begin(self) -> None:
        """Open the window."""
        self.window = self.scored()
        self.done = np.zeros((len(self.cells), self.window.count), COMPLETED)

    def scored(self) -> Window:
        """Return the queries that are scored."""
        return Window.whole(len(self.cells), self.simulation.num_queries)

    def note(self, rows: NDArray[np.int64]) -> int:
        """Keep the queries that ended, and show them to a policy that learns from them."""
        of, records = self.simulation.completed_batch()
        if len(rows) < len(self.cells):  # rows that are over still show their last step
            here = np.isin(of, rows)
            of, records = of[here], records[here]
        if (observe := getattr(self.policy, "observe", None)) is not None:
            with blame(self.cells[0].policy):
                for row in np.unique(of).tolist():
                    observe(records[of == row], row)
        return self.window.keep(self.done, of, records)

    def over(self) -> NDArray[np.bool_]:
        """Return the rows whose window is over, (E,)."""
        ended: NDArray[np.bool_] = self.simulation.status != DECISION
        return ended | self.window.over(self.simulation.decisions["time_s"])

    def columns(self, row: int) -> Fields:
        """Return the queries of a row, with what they cost if the pool has prices."""
        calls = self.simulation.calls(row)
        done = with_prices(self.simulation.pool, self.done[row], calls)
        return columns_of(self.simulation, done, calls)


class RoutingPlayer(Player):
    """Plays streams of queries at the rates and budgets of their cells."""

    batch = QueryBatch

    def options(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """Return rate and budget of every row."""
        _, rates, budgets = zip(*(cell.place for cell in cells), strict=True)
        budgets_s = [math.nan if budget == "tiers" else budget for budget in budgets]
        return {"arrival_rate_per_min": np.array(rates), "budget_s": np.array(budgets_s)}


def columns_of(simulation: Any, completed: NDArray[np.void], calls: NDArray[Any]) -> Fields:
    """Return the records of an episode by field, in the order of arrival.

    Args:
        simulation: In which it was played.
        completed: One record of the COMPLETED dtype for each query, in any order; with `usd` if
            the pool has prices (`with_prices`).
        calls: Its CALL records. Those of a query say how long its calls that ended waited in
            queues, and what they wrote, whether the query has an answer or not.
    """
    ordered = completed[np.argsort(completed["query"], kind="stable")]
    priced = ("usd",) if "usd" in (completed.dtype.names or ()) else ()
    columns = {name: ordered[name] for name in (*FIELDS, *priced)}
    for name in ("model", "strategy"):  # (num_queries, most nodes); -1 where a query has fewer
        unused = np.arange(columns[name].shape[1]) >= ordered["num_nodes"][:, None]
        masked = np.where(unused, np.int8(-1), columns[name])
        columns[name] = masked[:, : max(ordered["num_nodes"].max(), 1)]
    tasks, task = simulation.tasks, ordered["task"]
    columns |= {"task": np.array(tasks.ids)[task], "dataset": np.array(tasks.datasets)[task]}
    columns["domain"] = np.array(DOMAINS)[ordered["domain"]]
    most = int(ordered["query"].max()) + 1
    wait_s = np.nan_to_num(calls["admitted_s"] - calls["submit_s"])  # a call that failed has none
    for name, values in {
        "ended_calls": np.ones(len(calls)),
        "wait_s": wait_s,
        "generated_tokens": calls["output_tokens"],
    }.items():
        by_query = np.bincount(calls["query"], values, minlength=most)
        kind = np.float64 if name == "wait_s" else np.int32
        columns[name] = by_query[ordered["query"]].astype(kind)
    return columns


def with_prices(pool: PoolConfig, completed: NDArray[Any], calls: NDArray[Any]) -> NDArray[Any]:
    """Return the queries of an episode with a further field `usd`, if the pool has prices.

    GPUs are paid from the first arrival to the last answer, busy or not; every query bears the same
    share. Tokens are paid by the query whose calls they are.

    Args:
        pool: The servers.
        completed: (q,) COMPLETED, all queries of the episode.
        calls: Its CALL records.
    """
    if not pool.has_prices:
        return completed
    fields: Any = completed.dtype.fields
    out = np.zeros(
        len(completed), [*((name, kind[0]) for name, kind in fields.items()), ("usd", "f8")]
    )
    for name in fields:
        out[name] = completed[name]
    hourly_usd = sum(gpu.price_per_gpu_hour_usd or 0.0 for gpu in pool.gpus)
    hours = (completed["finish_s"].max() - completed["arrival_s"].min()) / 3600.0
    out["usd"] = hourly_usd * hours / len(completed)
    for tokens in ("prompt_tokens", "output_tokens"):
        prices = [getattr(model, f"price_per_million_{tokens}_usd") or 0.0 for model in pool.models]
        paid = np.bincount(
            calls["query"],
            calls[tokens] * np.array(prices)[calls["model"]] / 1e6,
            minlength=int(completed["query"].max()) + 1,
        )
        out["usd"] += paid[completed["query"]]
    return out


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
    task, arrival_s = state.task[row, ordinal], state.arrival_s[row, ordinal]
    tiers = params.budget_tiers_s
    keys = np.full(len(ordinal), state.stream[row]["key"], np.uint64)
    drawn = uniform_array(keys, STREAM_BUDGET, ordinal, 0)
    budget_s = tiers[(drawn * len(tiers)).astype(np.int64)]
    for name, values in {
        **{"query": ordinal, "task": task, "domain": params.task_domain[task]},
        **{"arrival_s": arrival_s, "finish_s": arrival_s + longest_s, "latency_s": longest_s},
        **{"budget_s": budget_s, "cost": longest_s / budget_s},
        **dict.fromkeys(("topology", "final_model", "model", "strategy"), -1),
    }.items():
        out[name][late] = values
    return out
