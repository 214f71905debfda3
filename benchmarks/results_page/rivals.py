"""The default agent against the best of all others, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.results_page.bootstrap import Draws
from benchmarks.results_page.plan import EntryConfig, PlanConfig
from benchmarks.results_page.records import Place
from benchmarks.results_page.scores import Scores


@dataclass(frozen=True, slots=True)
class Duel:
    """The default agent and its best rival in one cell.

    Attributes:
        place: The cell's workload and rate.
        rival: Name of the entry with the highest mean goodput there.
        difference: Goodput of the agent minus that of the rival, paired.
    """

    place: Place
    rival: str
    difference: Draws


def rivals_of(plan: PlanConfig, scores: Scores) -> list[EntryConfig]:
    """All agents and baselines that have been run, but for the default agent and its variants.

    Variants are the entries that play with the default agent's policy, however trained.
    """
    own = _algorithm(plan.entry(plan.agent))
    return [
        entry
        for entry in plan.entries
        if entry.kind in ("agent", "baseline")
        and entry.name != plan.agent
        and _algorithm(entry) != own
        and scores.has(entry.name)
    ]


def duels(plan: PlanConfig, scores: Scores) -> list[Duel]:
    """The default agent against the best rival of every cell, in the order of the suite."""
    if not scores.has(plan.agent):
        return []
    rivals = rivals_of(plan, scores)
    found = []
    for place in scores.places:
        goodput = {
            rival.name: scores.draws(rival.name, place, "goodput")
            for rival in rivals
            if scores.has(rival.name, place)
        }
        if goodput:
            best = max(goodput, key=lambda name: goodput[name].value)
            own = scores.draws(plan.agent, place, "goodput")
            found.append(Duel(place, best, own - goodput[best]))
    return found


def _algorithm(entry: EntryConfig) -> str:
    return entry.policy.partition(":")[0]
