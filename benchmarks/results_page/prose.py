"""Single numbers for the prose of the results page: from the scores, and from the trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.pages.markdown import NONE
from benchmarks.results_page import trained
from benchmarks.results_page.evidence import Evidence
from benchmarks.results_page.formats import title
from benchmarks.results_page.records import Place
from benchmarks.results_page.scores import Scores

TRAINED: Final = ("headway", "inframind", "masrouter", "sb3_ppo")  # one of each family of learners


def prose(evidence: Evidence) -> dict[str, str]:
    """What templates may ask for, by name; a dash where it has not been run or is not here."""
    plan = evidence.plan
    replayed = evidence.notes.get(plan.replayed, ())
    late = trained.last_values(replayed, "validation/violation_rate")
    multiplier = trained.last_values(replayed, "lagrange/lambda")
    names = {
        "furthest": furthest(evidence),
        "replayed_calls": _calls(evidence, plan.replayed),
        "oblivious_calls": _calls(evidence, plan.oblivious),
        "most_used": most_used(evidence),
        "late": _span([100 * value for value in late], "{:.0f}"),
        "multiplier": _span(multiplier, "{:.2f}"),
    }
    for name in TRAINED:
        names |= _training(name, evidence.notes.get(name, ()))
    return names


def furthest(evidence: Evidence) -> str:
    """The cell where the default agent is furthest below the informed bound, in words."""
    scores, agent = evidence.scores["default"], evidence.plan.agent
    if not scores.has(agent):
        return NONE

    def reached(place: Place) -> float:
        own = scores.draws(agent, place, "goodput").value
        return own / evidence.fluid["default"][place].informed

    workload, rate = min(scores.places, key=reached)
    return f"{title(workload)} at {rate:g}/min"


def most_used(evidence: Evidence) -> str:
    """The model with the largest share of the replayed agent's decisions on each dataset."""
    scores, entry = evidence.scores.get("published"), evidence.plan.replayed
    if scores is None or not scores.has(entry):
        return NONE
    words = []
    for workload in scores.suite.names("workloads"):
        places = [place for place in scores.places if place[0] == workload]
        shares = _shares(scores, entry, places)
        model = max(shares, key=lambda name: shares[name])
        words.append(f"{title(workload)} {model}, {100 * shares[model]:.0f} %")
    return "; ".join(words)


def _calls(evidence: Evidence, entry: str) -> str:
    """Calls a query under the published protocol: least and most of the cells' means."""
    scores = evidence.scores.get("published")
    if scores is None or not scores.has(entry):
        return NONE
    means = [scores.draws(entry, place, "calls_per_query").value for place in scores.places]
    return _span(means, "{:.1f}")


def _shares(scores: Scores, entry: str, places: Sequence[Place]) -> dict[str, float]:
    """Shares of the models, averaged over training seeds and sweeps of some places."""
    lines = [line for place in places for row in scores.cells[entry][place] for line in row]
    models = lines[0]["model_share"]
    return {m: float(np.mean([line["model_share"][m] for line in lines])) for m in models}


def _training(name: str, notes: Sequence[trained.Note]) -> dict[str, str]:
    """What the trainings of an entry tell: ``queries.<name>`` and the like."""
    found = trained.contents(notes)
    counts = [count for count in map(trained.queries, found) if count]
    total, idle = np.mean(counts, axis=0) if counts else (0.0, 0.0)
    return {
        f"queries.{name}": trained.about(float(total)) if counts else NONE,
        f"idle.{name}": f"{100 * idle:.0f}" if counts else NONE,
        f"loads.{name}": _first(found, trained.loads),
        f"objective.{name}": _first(found, trained.objective),
    }


def _first(
    found: Sequence[Mapping[str, Any]], tell: Callable[[Mapping[str, Any]], str | None]
) -> str:
    """What the first of some checkpoints tells."""
    return (tell(found[0]) if found else None) or NONE


def _span(values: Sequence[float], form: str) -> str:
    """The least and the most of some values, in words."""
    if not values:
        return NONE
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"
