"""All that the results page shows, gathered once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bounds import FluidBound, fluid_bounds, mean_bound
from benchmarks.progress import say
from benchmarks.results_page.load_awareness import Sides, sides_of
from benchmarks.results_page.plan import EntryConfig, PlanConfig, Protocol, runs_of
from benchmarks.results_page.published import Published, load_published
from benchmarks.results_page.scores import Place, Scores, kinds, read_scores
from benchmarks.results_page.targets import Target, targets
from benchmarks.suite import SuiteConfig


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
    """

    plan: PlanConfig
    entries: tuple[EntryConfig, ...]
    scores: dict[Protocol, Scores]
    missing: list[str]
    published: Published
    targets: list[Target]
    sides: dict[Protocol, dict[str, Sides]]
    fluid: dict[Protocol, dict[Place, FluidBound]]

    def shown(self, protocol: Protocol, *wanted: str) -> list[EntryConfig]:
        """The entries of some kinds that have been run under a protocol."""
        has = self.scores[protocol].has
        return [entry for entry in kinds(self.entries, *wanted) if has(entry.name)]


def gather(
    plan: PlanConfig,
    entries: Sequence[EntryConfig],
    suites: Mapping[Protocol, SuiteConfig],
    results: Path,
) -> Evidence:
    """Read what has been run and compute what follows from it.

    Args:
        plan: The plan.
        entries: The entries to show.
        suites: The suite of each protocol.
        results: Folder of the results folders.

    Raises:
        BenchmarkError: A results folder is damaged.
    """
    runs = [run for entry in entries for run in runs_of(entry, suites, results)]
    scores, missing = read_scores(suites, runs)
    published = load_published()
    sides: dict[Protocol, dict[str, Sides]] = {}
    fluid: dict[Protocol, dict[Place, FluidBound]] = {}
    for protocol, of in scores.items():
        systems = (plan.paper, plan.replayed, plan.oblivious)
        watched = [e for e in entries if e.kind == "agent" or e.name in systems]
        say(f"reading episodes, {protocol} protocol")
        sides[protocol] = {
            entry.name: sides_of(
                run for run in runs if run.entry is entry and run.protocol == protocol
            )
            for entry in watched
            if of.has(entry.name)
        }
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
    return Evidence(plan, tuple(entries), scores, missing, published, checked, sides, fluid)
