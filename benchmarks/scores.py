"""Scores of the entries with one execution, their bootstrap draws, and their text in tables."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.intervals import Draws, draw, mean
from benchmarks.pages import NONE
from benchmarks.plan import EntryConfig, Execution, PlanConfig
from benchmarks.record_table import (
    BOUNDS,
    FLUID,
    RECORDS,
    Place,
    read_index,
    read_rows,
    read_scores,
    table_path,
)

AGENT: Final = "bid_price"  # the default agent
PAPER: Final = "inframind"  # the published agent
REPLAYED: Final = "inframind_sequential"  # the same, trained with the published execution
OBLIVIOUS: Final = "static_mix"  # the measured choices of the published MasRouter
BOUND: Final = "clairvoyant"
DATASETS: Final = {
    "math": "MATH",
    "mbpp": "MBPP",
    "gsm_hard": "GSM-Hard",
    "humaneval": "HumanEval",
    "mmlu_pro": "MMLU-Pro",
}
ELSEWHERE: Final = "measured elsewhere"


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table.

    Attributes:
        name: Metric in the records.
        label: Heading with the unit.
        scale: Factor from the recorded to the shown value.
        sign: 1.0 where higher is better, -1.0 where lower is.
    """

    name: str
    label: str
    scale: float = 100.0
    sign: float = 1.0


COLUMNS: Final = (  # of the full tables
    Column("accuracy", "solved %"),
    Column("latency_mean_s", "mean s", 1.0, -1.0),
    Column("slo_100s", "≤100 s %"),
    Column("slo_own", "in budget %"),
    Column("goodput", "goodput %"),
)
GOODPUT: Final = COLUMNS[-1]


class Board:
    """Entries with a record for one execution.

    Attributes:
        index: Origin of each record.
        bounds: Fluid bounds on goodput at each place by their names in `FLUID`: means over the
            suite's budgets.
        workloads: Workloads of the bounds.
        rates: Arrival rates of the bounds, queries/min.
        entries: Entries of the plan with a record, valid or not, of all these places.
        scores: Scores of each of them.
    """

    def __init__(self, plan: PlanConfig, execution: Execution, folder: Path = RECORDS) -> None:
        self.index = read_index(folder).get(execution, {})
        by_place: dict[Place, list[dict[str, str]]] = defaultdict(list)
        for row in read_rows(folder / BOUNDS):
            if row["execution"] == execution:
                by_place[row["workload"], float(row["rate_per_min"])].append(row)
        self.bounds = {
            place: {name: float(np.mean([float(row[name]) for row in rows])) for name in FLUID}
            for place, rows in by_place.items()
        }
        self.workloads = list(dict.fromkeys(workload for workload, _ in self.bounds))
        self.rates = list(dict.fromkeys(rate for _, rate in self.bounds))
        names = [entry.name for entry in plan.entries if entry.name in self.index]
        recorded = {name: read_scores(table_path(execution, name, folder)) for name in names}
        complete = {name for name in names if self.bounds.keys() <= recorded[name].keys()}
        self.entries = [entry for entry in plan.entries if entry.name in complete]
        self.scores = {name: recorded[name] for name in complete}
        self._goodput: dict[tuple[str, Place], Draws] = {}

    def of_kind(self, *kinds: str) -> list[EntryConfig]:
        """Entries of some kinds."""
        return [entry for entry in self.entries if entry.kind in kinds]

    def places(self, rate: float | None = None, workload: str | None = None) -> list[Place]:
        """Places of a rate and of a workload, or all, in the order of the suite."""
        return [
            (w, r)
            for w in self.workloads
            for r in self.rates
            if rate in (None, r) and workload in (None, w)
        ]

    def draws(self, entry: str, place: Place, metric: str) -> Draws:
        """A score at a place; episodes with different budgets are different strata."""
        key = (entry, place)
        if metric == "goodput" and key in self._goodput:  # most tables need it
            return self._goodput[key]
        scores = self.scores[entry][place]
        trained = self.index[entry]["training"] or entry
        strata = [
            draw(
                scores.columns[metric][:, [b == budget_s for b in scores.budgets_s]],
                trained,
                (*place, budget_s),
            )
            for budget_s in dict.fromkeys(scores.budgets_s)
        ]
        found = mean(strata)
        if metric == "goodput":
            self._goodput[key] = found
        return found

    def mean(
        self, entry: str, metric: str, rate: float | None = None, workload: str | None = None
    ) -> Draws:
        """The mean of a score over places."""
        return mean([self.draws(entry, place, metric) for place in self.places(rate, workload)])

    def difference(
        self,
        one: str,
        other: str,
        metric: str = "goodput",
        rate: float | None = None,
        workload: str | None = None,
    ) -> Draws:
        """The mean paired difference of two entries over places."""
        return self.mean(one, metric, rate, workload) - self.mean(other, metric, rate, workload)

    def rivals(self, agent: str) -> list[str]:
        """Agents and baselines that play with another policy than an agent's, however trained."""
        policies = {entry.name: entry.policy.partition(":")[0] for entry in self.entries}
        ranked = self.of_kind("agent", "baseline")
        return [entry.name for entry in ranked if policies[entry.name] != policies[agent]]

    def best(self, entries: list[str], place: Place, metric: str = "goodput") -> str:
        """The entry with the highest score at a place."""
        return max(entries, key=lambda name: self.draws(name, place, metric).value)

    def share(self, entry: str, column: str, rate: float) -> float:
        """A share of decisions at a rate: mean over workloads, training seeds and episodes."""
        columns = [self.scores[entry][place].columns[column] for place in self.places(rate)]
        return float(np.mean(np.concatenate(columns, axis=None)))


def title(workload: str) -> str:
    """A workload's name as it is written."""
    return DATASETS.get(workload, workload)


def per_minute(rate: float) -> str:
    """An arrival rate."""
    return f"{rate:g}/min"


def named(entry: EntryConfig) -> str:
    """The name of a row; bounds are in italics."""
    return f"*`{entry.name}`*" if entry.kind == "bound" else f"`{entry.name}`"


def margin(draws: Draws, column: Column) -> str:
    """A score and half of the width of its interval."""
    low, high = draws.interval()
    half = (high - low) / 2 * column.scale
    return f"{text(draws.value, column)}±{half:,.{_decimals(half, column)}f}"


def difference(draws: Draws, column: Column) -> str:
    """A difference with its interval; bold where the interval leaves 0 out."""
    low, high = draws.interval()
    shown = f"{signed(draws.value, column)} [{signed(low, column)}, {signed(high, column)}]"
    return f"**{shown}**" if low > 0 or high < 0 else shown


def text(value: float | None, column: Column) -> str:
    """A score in the unit that it is shown in; a dash for None."""
    if value is None:
        return NONE
    shown = value * column.scale
    return f"{shown:,.{_decimals(shown, column)}f}"


def signed(value: float, column: Column) -> str:
    """A score with its sign; 0 has none."""
    shown = value * column.scale
    words = f"{shown:+,.{_decimals(shown, column)}f}"
    return words[1:] if float(words.replace(",", "")) == 0.0 else words


def _decimals(shown: float, column: Column) -> int:
    return 1 if column.scale != 1.0 or abs(shown) < 100 else 0
