"""The targets of the results, each with what was reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.results_page.plan import EntryConfig, PlanConfig
from benchmarks.results_page.published import Published
from benchmarks.results_page.records import Place
from benchmarks.results_page.rivals import duels
from benchmarks.results_page.scores import Scores, kinds

SLO_AT_LOAD: Final = 0.95
OF_THE_BOUND: Final = 0.90
_WITHIN_FACTOR: Final = 2.0  # what counts as the published effect's rough size …
_IN_AT_LEAST: Final = 0.5  # … in this share of the cells


@dataclass(frozen=True, slots=True)
class Target:
    """One target.

    Attributes:
        name: What is demanded.
        reached: What was reached, in words.
        met: Whether it is met; None if it cannot be told, because something has not been run.
        short: Where it is missed, and by how much; "" if it is met.
        beside: What else there is to know of it, in words.
    """

    name: str
    reached: str
    met: bool | None
    short: str = ""
    beside: str = ""


def targets(
    plan: PlanConfig, default: Scores, replayed: Scores | None, published: Published
) -> list[Target]:
    """Check every target.

    Args:
        plan: Names the default agent, the bound and what stands for the published systems.
        default: Scores under the default protocol.
        replayed: Scores under the published protocol.
        published: The published table.
    """
    rivals = [e for e in kinds(plan.entries, "baseline") if default.has(e.name)]
    rates = [float(rate) for rate in default.suite.rates_per_min]
    return [
        _beats_all(plan, default, rivals),
        _in_time(plan, default, max(rates)),
        _as_accurate(plan, default, rivals, min(rates)),
        _near_the_bound(plan, default),
        *(_effect(plan, replayed, published, metric, name) for metric, name in _EFFECTS),
    ]


_EFFECTS: Final = (
    ("accuracy", "accuracy"),
    ("latency_mean_s", "mean latency"),
    ("slo_100s", "SLO attainment at 100 s"),
)


def _unknown(name: str, entry: str) -> Target:
    return Target(name, f"{entry} has not been run", None)


def _beats_all(plan: PlanConfig, scores: Scores, rivals: list[EntryConfig]) -> Target:
    name = "higher goodput than every baseline at every load of every dataset"
    if not scores.has(plan.agent) or not rivals:
        return _unknown(name, plan.agent)
    misses: list[tuple[float, str]] = []
    pairs = [(r.name, place) for r in rivals for place in scores.at_rate(None, r.name)]
    for rival, place in pairs:
        own = scores.draws(plan.agent, place, "goodput")
        difference = own - scores.draws(rival, place, "goodput")
        low, high = difference.interval()
        if low <= 0.0:
            text = f"{rival} on {at(place)}: {points(difference.value)} "
            misses.append((difference.value, text + f"[{points(low)}, {points(high)}]"))
    reached = f"{len(pairs) - len(misses)} of {len(pairs)} paired differences are above 0"
    return Target(name, reached, not misses, _worst(misses), _against_the_best(plan, scores))


def _against_the_best(plan: PlanConfig, scores: Scores) -> str:
    """How the default agent does against the best rival of every cell."""
    found = duels(plan, scores)
    if not found:
        return ""
    ahead = sum(duel.difference.interval()[0] > 0.0 for duel in found)
    closest = min(found, key=lambda duel: duel.difference.value)
    low, high = closest.difference.interval()
    return (
        f"against the best rival of each cell, any entry but {plan.agent}'s variants, {ahead} of "
        f"{len(found)} intervals are above 0, and the smallest difference is "
        f"{points(closest.difference.value)} [{points(low)}, {points(high)}], "
        f"`{closest.rival}` on {at(closest.place)}"
    )


def _in_time(plan: PlanConfig, scores: Scores, rate: float) -> Target:
    name = f"at least {SLO_AT_LOAD:.0%} answered within 100 s at {rate:g}/min, on every dataset"
    if not scores.has(plan.agent):
        return _unknown(name, plan.agent)
    found = [
        (scores.draws(plan.agent, place, "slo_100s").value, place) for place in scores.at_rate(rate)
    ]
    misses = [(v, f"{at(place)}: {v:.1%}") for v, place in found if v < SLO_AT_LOAD]
    worst = min(found)[0]
    return Target(name, f"{worst:.1%} on the worst dataset", not misses, _worst(misses))


def _as_accurate(
    plan: PlanConfig, scores: Scores, rivals: list[EntryConfig], rate: float
) -> Target:
    name = f"at {rate:g}/min at least the accuracy of the best baseline, within the interval"
    if not scores.has(plan.agent) or not rivals:
        return _unknown(name, plan.agent)
    misses, differences = [], []
    for place in scores.at_rate(rate):
        there = [r.name for r in rivals if scores.has(r.name, place)]
        if not there:
            continue
        best = max((scores.draws(name, place, "accuracy").value, name) for name in there)[1]
        own = scores.draws(plan.agent, place, "accuracy")
        difference = own - scores.draws(best, place, "accuracy")
        low, high = difference.interval()
        differences.append(difference.value)
        if high < 0.0:
            text = f"{best} on {at(place)}: {points(difference.value)} "
            misses.append((difference.value, text + f"[{points(low)}, {points(high)}]"))
    if not differences:
        return _unknown(name, "every baseline at this rate")
    reached = f"{points(min(differences))} points on the worst dataset"
    return Target(name, reached, not misses, _worst(misses))


def _near_the_bound(plan: PlanConfig, scores: Scores) -> Target:
    name = f"at least {OF_THE_BOUND:.0%} of the clairvoyant bound's goodput on average"
    for entry in (plan.agent, plan.bound):
        if not scores.has(entry):
            return _unknown(name, entry)
    ratio = scores.mean(plan.agent, "goodput") / scores.mean(plan.bound, "goodput")
    low, high = ratio.interval()
    met = ratio.value >= OF_THE_BOUND
    short = "" if met else f"{points(ratio.value - OF_THE_BOUND)} points short"
    return Target(name, f"{ratio.value:.1%} [{low:.1%}, {high:.1%}]", met, short)


def _effect(
    plan: PlanConfig, scores: Scores | None, published: Published, metric: str, name: str
) -> Target:
    """Differences between the published agent and MasRouter, there and here, cell by cell."""
    name = (
        f"`{plan.replayed}` − `{plan.oblivious}` as published, {name}: same direction in every "
        f"cell, within a factor of {_WITHIN_FACTOR:g} in {_IN_AT_LEAST:.0%} of them"
    )
    if scores is None:
        return _unknown(name, "the published protocol")
    for entry in (plan.replayed, plan.oblivious):
        if not scores.has(entry):
            return _unknown(name, entry)
    cells, same, alike, misses = 0, 0, 0, []
    for place in scores.places:
        theirs = effect_there(published, place, metric)
        if theirs is None:
            continue
        own = scores.draws(plan.replayed, place, metric)
        ours = own - scores.draws(plan.oblivious, place, metric)
        cells += 1
        same += ours.value * theirs > 0
        alike += 1 / _WITHIN_FACTOR <= ours.value / theirs <= _WITHIN_FACTOR
        if ours.value * theirs <= 0:
            shown = [_effect_text(metric, value) for value in (theirs, ours.value)]
            misses.append((-abs(theirs), f"{at(place)}: {shown[0]} there, {shown[1]} here"))
    if not cells:
        return Target(name, "the suite has none of the published cells", None)
    reached = f"same direction in {same} of {cells} cells, within a factor of 2 in {alike}"
    met = same == cells and alike >= _IN_AT_LEAST * cells
    if not met and not misses:
        return Target(name, reached, met, "the direction is met everywhere, the size is not")
    return Target(name, reached, met, _worst(misses))


def effect_there(published: Published, place: Place, metric: str) -> float | None:
    """The published difference InfraMind − MasRouter, if it was published."""
    one, other = (published.cell(system, *place) for system in ("inframind", "masrouter"))
    if one is None or other is None:
        return None
    a, b = one.value(metric), other.value(metric)
    return None if a is None or b is None else a - b


def at(place: Place) -> str:
    """A place in words."""
    return f"{place[0]} at {place[1]:g}/min"


def points(value: float) -> str:
    """A difference of shares in percentage points; 0 has no sign."""
    words = f"{100 * value:+.1f}"
    return words[1:] if float(words) == 0.0 else words


def _effect_text(metric: str, value: float) -> str:
    return f"{value:+.0f} s" if metric == "latency_mean_s" else points(value)


def _worst(misses: list[tuple[float, str]], most: int = 3) -> str:
    """The worst misses in words."""
    ordered = [text for _, text in sorted(misses)]
    more = f"; and {len(ordered) - most} more" if len(ordered) > most else ""
    return "; ".join(ordered[:most]) + more
