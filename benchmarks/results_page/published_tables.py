"""Tables of the results page that stand beside the published figures, in GitHub's markdown."""

from __future__ import annotations

import numpy as np

from benchmarks.pages.markdown import NONE, table
from benchmarks.results_page.evidence import Evidence
from benchmarks.results_page.formats import (
    ELSEWHERE,
    GOODPUT,
    difference,
    margin,
    signed,
    text,
    title,
)
from benchmarks.results_page.scores import COLUMNS
from benchmarks.results_page.targets import effect_there


def beside_table(evidence: Evidence) -> str:
    """The published table with ours beside it: solved % / mean s / SLO at 100 s %."""
    scores = evidence.scores["published"]
    ours = [evidence.plan.replayed, evidence.plan.oblivious, evidence.plan.agent]
    ours = [name for name in dict.fromkeys(ours) if scores.has(name)]
    columns = COLUMNS[:3]
    headings = ["", *(f"`{system}`, {ELSEWHERE}" for system in evidence.published.systems)]
    body = []
    for place in scores.places:
        cells = [evidence.published.cell(s, *place) for s in evidence.published.systems]
        if None in cells:
            continue
        row = [f"{title(place[0])}, {place[1]:g}/min"]
        row += [
            f"{cell.accuracy:.1f} / {cell.latency_mean_s:.0f} / "
            + (NONE if cell.slo_100s is None else f"{cell.slo_100s:.1f}")
            for cell in cells
            if cell is not None
        ]
        for name in ours:
            values = [scores.draws(name, place, column.name).value for column in columns]
            row.append(" / ".join(text(v, c) for v, c in zip(values, columns, strict=True)))
        body.append(row)
    return table([*headings, *(f"`{name}`, here" for name in ours)], body)


def effects_table(evidence: Evidence) -> str:
    """Published agent − MasRouter: there and here, with intervals of ours."""
    return _effects_of(evidence, evidence.plan.replayed)


def changed_effects_tables(evidence: Evidence) -> str:
    """The same with each ablation of the replayed agent in its place, a section for each."""
    plan = evidence.plan
    ablations = [e for e in evidence.shown("published", "ablation") if e.of == plan.replayed]
    parts = [
        f"`{entry.name}`: {entry.what}.\n\n{_effects_of(evidence, entry.name)}"
        for entry in ablations
    ]
    return "\n\n".join(parts) or f"No ablation of `{plan.replayed}` has been run."


def _effects_of(evidence: Evidence, entry: str) -> str:
    scores, plan = evidence.scores["published"], evidence.plan
    columns = COLUMNS[:3]
    if not (scores.has(entry) and scores.has(plan.oblivious)):
        return f"`{entry}` or `{plan.oblivious}` has not been run."
    headings = [""]
    for column in columns:
        headings += [f"{column.heading}, {ELSEWHERE}", f"{column.heading}, here"]
    body = []
    for place in scores.places:
        row = [f"{title(place[0])}, {place[1]:g}/min"]
        for column in columns:
            there = effect_there(evidence.published, place, column.name)
            own = scores.draws(entry, place, column.name)
            here = own - scores.draws(plan.oblivious, place, column.name)
            row += [NONE if there is None else signed(there, column), difference(here, column)]
        if row[1] != NONE:
            body.append(row)
    return table(headings, body)


def causes_table(evidence: Evidence) -> str:
    """The ablations of the replayed agent beside it, MasRouter and what was measured elsewhere.

    Means over the datasets, at the rates with published figures.
    """
    scores, plan, published = evidence.scores["published"], evidence.plan, evidence.published
    columns = (*COLUMNS[:3], GOODPUT)
    systems = {
        system: {place: published.cell(system, *place) for place in scores.places}
        for system in published.systems
    }
    rates = [
        float(rate)
        for rate in scores.suite.rates_per_min
        if all(cells[place] for cells in systems.values() for place in scores.at_rate(rate))
    ]
    body = []
    for system, cells in systems.items():
        row = [f"`{system}`, {ELSEWHERE}"]
        for rate in rates:
            at = [cell for place in scores.at_rate(rate) if (cell := cells[place])]
            for column in columns:
                values = [value for cell in at if (value := cell.value(column.name)) is not None]
                row.append(text(float(np.mean(values)), column) if values else NONE)
        body.append(row)
    ablations = [e for e in evidence.shown("published", "ablation") if e.of == plan.replayed]
    names = {plan.oblivious: f"`{plan.oblivious}`", plan.replayed: f"`{plan.replayed}`"}
    names |= {entry.name: f"the same, {entry.what}" for entry in ablations}
    for name, words in names.items():
        if scores.has(name):
            means = [(scores.mean(name, c.name, rate), c) for rate in rates for c in columns]
            body.append([words, *(margin(draws, column) for draws, column in means)])
    return table(["", *(f"{c.heading}, {rate:g}/min" for rate in rates for c in columns)], body)
