"""Tables of the results page, in GitHub's markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from benchmarks.pages.markdown import NONE, number, table
from benchmarks.results_page.bootstrap import mean
from benchmarks.results_page.evidence import Evidence
from benchmarks.results_page.formats import (
    ELSEWHERE,
    GOODPUT,
    difference,
    margin,
    named,
    text,
    title,
    titles,
)
from benchmarks.results_page.plan import EntryConfig, Protocol
from benchmarks.results_page.records import Place
from benchmarks.results_page.rivals import duels
from benchmarks.results_page.scores import COLUMNS, Scores

_RANKED: Final = ("agent", "baseline")


def targets_table(evidence: Evidence) -> str:
    """Every target with what was reached."""
    verdicts = {True: "met", False: "**missed**", None: "not known"}
    return table(
        ("Target", "Reached", "", "Where it is missed"),
        [
            (
                t.name,
                "; ".join(filter(None, (t.reached, t.beside))),
                verdicts[t.met],
                t.short or NONE,
            )
            for t in evidence.targets
        ],
        left=4,
    )


def entries_table(evidence: Evidence) -> str:
    """What the rows are."""
    rows = []
    for entry in evidence.entries:
        seeds = str(len(entry.training_seeds)) if entry.training else NONE
        rows.append((f"`{entry.name}`", entry.kind, entry.what or NONE, seeds))
    return table(("Name", "", "What it is", "training seeds"), rows, left=3)


def summary_table(evidence: Evidence, protocol: Protocol) -> str:
    """Goodput by rate, averaged over the datasets, and how much of the possible that is."""
    scores = evidence.scores[protocol]
    rates = [float(rate) for rate in scores.suite.rates_per_min]
    bound = evidence.plan.bound if scores.has(evidence.plan.bound) else None
    body, values = [], []
    for entry in evidence.shown(protocol, *_RANKED, "bound"):
        draws = [scores.mean(entry.name, "goodput", rate) for rate in (*rates, None)]
        of = NONE
        if bound is not None:
            possible = scores.mean(bound, "goodput", beside=entry.name)
            of = margin(draws[-1] / possible, GOODPUT)
        body.append([_row(scores, entry), *(margin(one, GOODPUT) for one in draws), of])
        ranked = entry.kind in _RANKED and not scores.lacks(entry.name)
        values.append([one.value if ranked else -np.inf for one in draws])
    _embolden(body, values)
    fluid = evidence.fluid[protocol]
    for name, get in _FLUID.items():
        means = [
            np.mean([get(fluid[place]) for place in scores.at_rate(rate)])
            for rate in (*rates, None)
        ]
        body.append([f"*{name}*", *(f"*{100 * value:.1f}*" for value in means), NONE])
    headings = ["Goodput %", *(f"{rate:g}/min" for rate in rates), "all", "of the bound %"]
    return table(headings, body)


_FLUID: Final[dict[str, Callable[..., float]]] = {
    "fluid bound, knows the sweeps": lambda bound: bound.clairvoyant,
    "fluid bound, knows distributions": lambda bound: bound.informed,
}


def informed_table(evidence: Evidence) -> str:
    """What the default agent and its best rival reach of the informed bound's goodput."""
    scores, agent = evidence.scores["default"], evidence.plan.agent
    if not scores.has(agent):
        return f"`{agent}` has not been run."
    rivals = [entry.name for entry in evidence.shown("default", "baseline")]
    rates = [float(rate) for rate in scores.suite.rates_per_min]
    body = []
    for workload in scores.suite.names("workloads"):
        row = [title(workload)]
        for rate in rates:
            place = (workload, rate)
            informed = evidence.fluid["default"][place].informed
            low, high = scores.draws(agent, place, "goodput").interval()
            own = scores.draws(agent, place, "goodput").value
            there = [r for r in rivals if scores.has(r, place)]
            best = max((scores.draws(r, place, "goodput").value for r in there), default=None)
            rival = "" if best is None else f"; {100 * best / informed:.0f}"
            half = (high - low) / 2 / informed
            row.append(f"{100 * own / informed:.1f}±{100 * half:.1f}{rival}")
        body.append(row)
    return table([f"`{agent}`; best baseline", *(f"{rate:g}/min" for rate in rates)], body)


def informed_shares(evidence: Evidence) -> str:
    """How far the default agent, the informed bound and the clairvoyant one are apart, in words."""
    scores, plan = evidence.scores["default"], evidence.plan
    if not (scores.has(plan.agent) and scores.has(plan.bound)):
        return f"`{plan.agent}` or `{plan.bound}` has not been run."
    informed = float(
        np.mean([evidence.fluid["default"][place].informed for place in scores.places])
    )
    own, bound = (scores.mean(name, "goodput").value for name in (plan.agent, plan.bound))
    return (
        f"over all cells the informed bound is {100 * informed / bound:.1f} % of `{plan.bound}`, "
        f"and `{plan.agent}` reaches {100 * own / informed:.1f} % of the informed bound"
    )


def dataset_tables(evidence: Evidence, protocol: Protocol, workload: str) -> str:
    """Every metric of every entry on a dataset, a section for each rate."""
    parts = []
    for rate in evidence.scores[protocol].suite.rates_per_min:
        parts += [f"### {rate:g} queries/min, {protocol} protocol"]
        parts += [_place_table(evidence, protocol, (workload, float(rate)))]
    return "\n\n".join(parts)


def _place_table(evidence: Evidence, protocol: Protocol, place: Place) -> str:
    scores = evidence.scores[protocol]
    body, values = [], []
    for entry in evidence.shown(protocol, *_RANKED, "bound"):
        if not scores.has(entry.name, place):
            continue
        draws = [scores.draws(entry.name, place, column.name) for column in COLUMNS]
        body.append([named(entry), *map(margin, draws, COLUMNS)])
        signs = [1.0 if column.better == "higher" else -1.0 for column in COLUMNS]
        ranked = entry.kind in _RANKED
        values.append(
            [s * d.value if ranked else -np.inf for s, d in zip(signs, draws, strict=True)]
        )
    _embolden(body, values)
    for name, get in _FLUID.items():
        blank = [NONE] * (len(COLUMNS) - 1)
        body.append([f"*{name}*", *blank, f"*{100 * get(evidence.fluid[protocol][place]):.1f}*"])
    if protocol == "published":
        for system in evidence.published.systems:
            cell = evidence.published.cell(system, *place)
            if cell is None:
                continue
            shown = [cell.value(column.name) for column in COLUMNS]
            texts = [
                NONE if value is None else text(value, column)
                for value, column in zip(shown, COLUMNS, strict=True)
            ]
            body.append([f"`{system}`, {ELSEWHERE}", *texts])
    return table(["", *(column.heading for column in COLUMNS)], body)


def mean_differences_table(evidence: Evidence, protocol: Protocol) -> str:
    """Paired differences in goodput, default agent − every other entry, over all datasets."""
    return _differences_table(evidence, protocol, None)


def dataset_differences_table(evidence: Evidence, protocol: Protocol, workload: str) -> str:
    """The same on one dataset."""
    return _differences_table(evidence, protocol, workload)


def best_rivals_table(evidence: Evidence, protocol: Protocol) -> str:
    """The best rival of every cell, and the default agent's goodput minus its."""
    scores = evidence.scores[protocol]
    found = {duel.place: duel for duel in duels(evidence.plan, scores)}
    if not found:
        return f"`{evidence.plan.agent}` has not been run, or nothing beside it."
    rates = [float(rate) for rate in scores.suite.rates_per_min]
    body = []
    for workload in scores.suite.names("workloads"):
        at = [found.get((workload, rate)) for rate in rates]
        cells = [f"`{d.rival}` {difference(d.difference, GOODPUT)}" if d else NONE for d in at]
        body.append([title(workload), *cells])
    return table(["", *(f"{rate:g}/min" for rate in rates)], body)


def _differences_table(evidence: Evidence, protocol: Protocol, workload: str | None) -> str:
    scores, agent = evidence.scores[protocol], evidence.plan.agent
    if not scores.has(agent):
        return f"`{agent}` has not been run."
    rates = [float(rate) for rate in scores.suite.rates_per_min]
    body = []
    for other in evidence.shown(protocol, *_RANKED, "bound"):
        at = [
            [
                place
                for place in scores.at_rate(rate, agent, other.name)
                if workload in (None, place[0])
            ]
            for rate in rates
        ]
        if other.name != agent and all(at):
            name = named(other) if workload else _row(scores, other)
            body.append([name, *(_difference(scores, agent, other.name, places) for places in at)])
    return table(["", *(f"{rate:g}/min" for rate in rates)], body)


def _difference(scores: Scores, one: str, other: str, places: Sequence[Place]) -> str:
    """The mean of the paired differences in goodput."""
    parts = [scores.draws(one, at, "goodput") - scores.draws(other, at, "goodput") for at in places]
    return difference(mean(parts), GOODPUT)


def ablations_tables(evidence: Evidence) -> str:
    """What each part of an agent is worth: a table for each agent that was ablated."""
    tables = [
        _ablations_of(evidence, protocol, agent)
        for protocol in evidence.scores
        for agent in dict.fromkeys(
            e.of or evidence.plan.agent for e in evidence.shown(protocol, "ablation")
        )
    ]
    return "\n\n".join(filter(None, tables)) or "No ablation has been run."


def _ablations_of(evidence: Evidence, protocol: Protocol, agent: str) -> str:
    """Ablation − agent, mean over the ablation's datasets; "" if the agent has not been run."""
    scores = evidence.scores[protocol]
    if not scores.has(agent):
        return ""
    rates: list[float | None] = [*(float(rate) for rate in scores.suite.rates_per_min), None]
    body = []
    for entry in evidence.shown(protocol, "ablation"):
        places = scores.at_rate(None, agent, entry.name)
        if (entry.of or evidence.plan.agent) != agent or not places:
            continue
        what = entry.what or f"`{entry.name}`"
        if scores.lacks(entry.name):
            what += f" ({titles(places)})"
        shown = [("goodput", rate, GOODPUT) for rate in rates]
        extra = [("accuracy", None, COLUMNS[0]), ("slo_own", None, COLUMNS[3])]
        body.append(
            [
                what,
                *(
                    difference(
                        scores.mean(entry.name, metric, rate, beside=agent)
                        - scores.mean(agent, metric, rate, beside=entry.name),
                        column,
                    )
                    for metric, rate, column in (*shown, *extra)
                ),
            ]
        )
    under = "" if protocol == "default" else f", {protocol} protocol"
    headings = [f"`{agent}`{under}", *(f"{rate:g}/min" for rate in rates if rate is not None)]
    return table([*headings, "all loads", "solved, all", "in budget, all"], body)


def load_table(evidence: Evidence, protocol: Protocol) -> str:
    """Shares of decisions for queries that kept and that missed their budget."""
    shares = evidence.published.shares
    headings = [""]
    for model in shares:
        headings += [f"{model}, ratio ≤ 1", f"{model}, ratio > 1"]
    body = [
        [
            f"published agent, {ELSEWHERE}",
            *(f"{100 * shares[m][side]:.1f}" for m in shares for side in ("below", "above")),
            NONE,
        ]
    ]
    for name, sides in evidence.sides[protocol].items():
        cells = []
        for model in shares:
            for side in (sides.shares(above=False), sides.shares(above=True)):
                cells.append(f"{100 * side.get(model, 0.0):.1f}" if side else NONE)
        body.append([f"`{name}`", *cells, f"{100 * sides.late:.1f}"])
    return table([*headings, "queries with ratio > 1, %"], body)


def shares_table(evidence: Evidence, protocol: Protocol, share: str) -> str:
    """Shares of decisions against load, %, averaged over the datasets."""
    scores = evidence.scores[protocol]
    rates = [float(rate) for rate in scores.suite.rates_per_min]
    body = []
    for entry in evidence.sides[protocol]:
        names = list(next(iter(scores.cells[entry].values()))[0][0][share])
        for name in names:
            values = [100 * scores.share(entry, share, name, rate) for rate in rates]
            body.append([f"`{entry}`", name, *(number(value) for value in values)])
    return table(["", "share, %", *(f"{rate:g}/min" for rate in rates)], body, left=2)


def _row(scores: Scores, entry: EntryConfig) -> str:
    """The name of a row of means over the datasets, with them where it was not run on all."""
    if not scores.lacks(entry.name):
        return named(entry)
    return f"{named(entry)} ({titles(scores.at_rate(None, entry.name))})"


def _embolden(body: list[list[str]], values: list[list[float]]) -> None:
    """Make the best of every column bold."""
    for c, column in enumerate(zip(*values, strict=True), start=1):
        best = int(np.argmax(column))
        if np.isfinite(column[best]):
            body[best][c] = f"**{body[best][c]}**"
