"""Scores of the entries with one execution, with their bootstrap draws and bounds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from benchmarks.intervals import Draws, draw, mean
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
