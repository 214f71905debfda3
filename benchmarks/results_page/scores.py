"""What the runs of a plan have scored: a matrix of training seeds x sweeps for every cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.results_page.bootstrap import Draws, draw, mean
from benchmarks.results_page.plan import EntryConfig, EntryRun, Protocol
from benchmarks.results_page.records import Lines, Place, Record
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.metrics import Metric
from inframind_gym.benchmark.routing.suite import RoutingSuite

COLUMNS: Final = tuple(  # of the full tables
    (
        Metric("accuracy", "solved", "%", "higher"),
        Metric("latency_mean_s", "mean", "s", "lower"),
        Metric("slo_100s", "≤100 s", "%", "higher"),
        Metric("slo_own", "in budget", "%", "higher"),
        Metric("goodput", "goodput", "%", "higher"),
    )
)


@dataclass
class Scores:
    """Scores of one protocol.

    Attributes:
        suite: What was run, without policies.
        cells: For each entry and (workload, rate): the lines of ``cells.jsonl``, ``[training
            seed][sweep]``; sweeps with other budgets are further ones.
        origins: Machine, revision and simulator of every run.
        trained: Which training each entry plays with: entries of the same one are paired.
    """

    suite: RoutingSuite
    cells: dict[str, Lines] = field(default_factory=dict)
    origins: list[dict[str, Any]] = field(default_factory=list)
    trained: dict[str, str] = field(default_factory=dict)
    _draws: dict[tuple[str, Place], Draws] = field(default_factory=dict)

    @property
    def places(self) -> list[Place]:
        """Workloads and rates, in the order of the suite."""
        workloads = self.suite.names("workloads")
        return [(w, float(rate)) for w in workloads for rate in self.suite.rates_per_min]

    def at_rate(self, rate: float | None, *entries: str) -> list[Place]:
        """The places of one rate, or all, at which all of some entries have been run."""
        return [
            place
            for place in self.places
            if (rate is None or place[1] == rate) and all(self.has(e, place) for e in entries)
        ]

    def has(self, entry: str, place: Place | None = None) -> bool:
        """Whether the entry has been run, or whether at this place."""
        return entry in self.cells and (place is None or place in self.cells[entry])

    def lacks(self, entry: str) -> bool:
        """Whether there are workloads that the entry does not run on."""
        return len(self.cells[entry]) < len(self.places)

    def matrix(self, entry: str, place: Place, metric: str) -> NDArray[np.float64]:
        """Scores, ``(num_training_seeds, num_sweeps)``."""
        return np.array([[line[metric] for line in row] for row in self.cells[entry][place]])

    def draws(self, entry: str, place: Place, metric: str) -> Draws:
        """A score with its bootstrap draws."""
        key = (entry, place)
        if metric == "goodput" and key in self._draws:  # most tables ask for it
            return self._draws[key]
        matrix, trained = self.matrix(entry, place, metric), self.trained.get(entry, entry)
        budgets = [line["budget_s"] for line in self.cells[entry][place][0]]
        draws = mean(  # sweeps with one budget are alike, those with others are other strata
            [
                draw(matrix[:, [b == budget_s for b in budgets]], trained, (*place, budget_s))
                for budget_s in dict.fromkeys(budgets)
            ]
        )
        if metric == "goodput":
            self._draws[key] = draws
        return draws

    def mean(
        self, entry: str, metric: str, rate: float | None = None, *, beside: str | None = None
    ) -> Draws:
        """The mean over workloads at one rate, or over all cells.

        Args:
            entry: Name of the entry.
            metric: Name of the metric.
            rate: Queries per minute; None: all.
            beside: Only where this entry has been run, too.
        """
        places = self.at_rate(rate, entry, beside or entry)
        return mean([self.draws(entry, place, metric) for place in places])

    def share(self, entry: str, share: str, name: str, rate: float) -> float:
        """A share of decisions at a rate, averaged over workloads, training seeds and sweeps."""
        return float(
            np.mean(
                [
                    line[share][name]
                    for place in self.at_rate(rate, entry)
                    for row in self.cells[entry][place]
                    for line in row
                ]
            )
        )


def check_suites(suites: Mapping[Protocol, RoutingSuite]) -> None:
    """Check that intervals can be made of what suites run.

    Raises:
        BenchmarkError: A suite has a single sweep a cell.
    """
    for suite in suites.values():
        if len(suite.seed_list) < 2:
            raise BenchmarkError(
                f"suite {suite.name}: the results page needs at least 2 seeds, got "
                f"{len(suite.seed_list)}."
            )


def scores_of(
    suites: Mapping[Protocol, RoutingSuite], records: Iterable[tuple[EntryRun, Record]]
) -> dict[Protocol, Scores]:
    """The scores of each protocol.

    Args:
        suites: The suite of each protocol.
        records: What has been run, of each entry all or nothing.
    """
    scores = {protocol: Scores(suite) for protocol, suite in suites.items()}
    for run, record in records:
        of, name, training = scores[run.protocol], run.entry.name, run.entry.training
        of.cells.setdefault(name, {}).update(record.cells)
        of.trained[name] = training.folder if training else name
        of.origins.append(record.origin)
    return scores


def kinds(entries: Sequence[EntryConfig], *wanted: str) -> list[EntryConfig]:
    """The entries of some kinds."""
    return [entry for entry in entries if entry.kind in wanted]
