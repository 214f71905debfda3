"""All that the results page shows, gathered once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_page.load_awareness import Sides
from benchmarks.results_page.plan import EntryConfig, EntryRun, PlanConfig, Protocol, runs_of
from benchmarks.results_page.published import Published, load_published
from benchmarks.results_page.records import Place, Record, find, record_of
from benchmarks.results_page.scores import Scores, check_suites, kinds, scores_of
from benchmarks.results_page.targets import Target, targets
from benchmarks.results_page.trained import Note
from inframind_gym.benchmark.bounds import FluidBound, fluid_bounds, mean_bound
from inframind_gym.benchmark.progress import say
from inframind_gym.benchmark.routing.suite import RoutingSuite


@dataclass(frozen=True)
class Evidence:
    """What the page is made of.

    Attributes:
        plan: The plan.
        entries: The entries that were asked for.
        scores: Scores of each protocol.
        missing: What has not been run, in words.
        published: The published table.
        targets: The targets and whether they are met.
        sides: For each protocol, the entries' shares of models by cost ratio.
        fluid: For each protocol, the fluid bounds of every workload and rate.
        notes: What the trainings of each entry tell.
    """

    plan: PlanConfig
    entries: tuple[EntryConfig, ...]
    scores: dict[Protocol, Scores]
    missing: list[str]
    published: Published
    targets: list[Target]
    sides: dict[Protocol, dict[str, Sides]]
    fluid: dict[Protocol, dict[Place, FluidBound]]
    notes: dict[str, tuple[Note, ...]]

    def shown(self, protocol: Protocol, *wanted: str) -> list[EntryConfig]:
        """The entries of some kinds that have been run under a protocol."""
        has = self.scores[protocol].has
        return [entry for entry in kinds(self.entries, *wanted) if has(entry.name)]


def gather(
    plan: PlanConfig,
    entries: Sequence[EntryConfig],
    suites: Mapping[Protocol, RoutingSuite],
    results: Path,
    records: Path | None = None,
) -> Evidence:
    """Read what has been run and compute what follows from it.

    Args:
        plan: The plan.
        entries: The entries to show.
        suites: The suite of each protocol.
        results: Folder of the results folders.
        records: Folder of records, which come first.

    Raises:
        BenchmarkError: A results folder or a record is damaged, or a suite has a single sweep of a
            place.
    """
    check_suites(suites)
    found: list[tuple[EntryRun, Record]] = []
    lacking: Counter[tuple[str, Protocol]] = Counter()
    for run in (run for entry in entries for run in runs_of(entry, suites, results)):
        record = find(run, records) or record_of(run)
        if isinstance(record, int):
            lacking[run.entry.name, run.protocol] += record
        else:
            found.append((run, record))
    found = [(run, record) for run, record in found if not lacking[run.entry.name, run.protocol]]
    missing = [
        f"{name} ({protocol} protocol): {cells} cells have not been run"
        for (name, protocol), cells in lacking.items()
        if cells
    ]
    scores = scores_of(suites, found)
    published = load_published()
    sides: dict[Protocol, dict[str, Sides]] = {}
    fluid: dict[Protocol, dict[Place, FluidBound]] = {}
    for protocol, of in scores.items():
        systems = (plan.paper, plan.replayed, plan.oblivious)
        sides[protocol] = {}
        for run, record in found:
            name = run.entry.name
            if run.protocol == protocol and (run.entry.kind == "agent" or name in systems):
                own = sides[protocol].get(name)
                sides[protocol][name] = record.sides if own is None else own.plus(record.sides)
        say(f"fluid bounds, {protocol} protocol")
        fluid[protocol] = {
            place: mean_bound(
                [
                    fluid_bounds(of.suite, *place, budget_s, cache=results / "bounds")
                    for budget_s in of.suite.budgets_of(place[0])
                ]
            )
            for place in of.places
        }
    checked = targets(plan, scores["default"], scores.get("published"), published)
    notes: dict[str, tuple[Note, ...]] = {}
    for run, record in found:
        if run.protocol == next(p for p in suites if run.entry.runs_under(p)):  # once is enough
            notes[run.entry.name] = notes.get(run.entry.name, ()) + record.notes
    return Evidence(plan, tuple(entries), scores, missing, published, checked, sides, fluid, notes)
