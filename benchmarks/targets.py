"""Targets of the results, each with the figures that decide it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from benchmarks.intervals import Draws
from benchmarks.pages.markdown import NONE, table
from benchmarks.published import Published
from benchmarks.recording import Place
from benchmarks.scores import Board
from benchmarks.text import AGENT, BOUND, OBLIVIOUS, REPLAYED

SLO_AT_LOAD: Final = 0.95
OF_THE_BOUND: Final = 0.90
FACTOR: Final = 2.0  # between effects of about the same size
_EFFECTS: Final = {
    "accuracy": "accuracy",
    "latency_mean_s": "mean latency",
    "slo_100s": "SLO attainment at 100 s",
}
Misses = list[tuple[float, str]]  # amount and words; the smallest amount is the worst


def targets(board: Board, replay: Board, published: Published) -> str:
    """Every target with the figures reached and the places where it is missed."""
    rows = [
        _beats_all(board),
        _in_time(board),
        _as_accurate(board),
        _near_the_bound(board),
        *(_effect(replay, published, metric) for metric in _EFFECTS),
    ]
    shown = [(name, said, "met" if met else "**missed**", _worst(m)) for name, said, met, m in rows]
    return table(("Target", "Reached", "", "Where it is missed"), shown, left=4)


def _beats_all(board: Board) -> tuple[str, str, bool, Misses]:
    misses, pairs = [], 0
    for rival in board.of_kind("baseline"):
        for place in board.places():
            pairs += 1
            paired = _paired(board, AGENT, rival.name, place, "goodput")
            if paired.interval()[0] <= 0.0:
                misses.append((paired.value, f"{rival.name} on {at(place)}: {_interval(paired)}"))
    rivals = board.rivals(AGENT)
    best = {place: board.best(rivals, place) for place in board.places()}
    duels = {p: _paired(board, AGENT, name, p, "goodput") for p, name in best.items()}
    ahead = sum(paired.interval()[0] > 0.0 for paired in duels.values())
    closest = min(duels, key=lambda place: duels[place].value)
    reached = (
        f"{pairs - len(misses)} of {pairs} paired differences are above 0; against the best rival "
        f"of each cell, any entry but {AGENT}'s variants, {ahead} of {len(duels)} intervals are "
        f"above 0, and the smallest difference is {_interval(duels[closest])}, "
        f"`{best[closest]}` on {at(closest)}"
    )
    name = "higher goodput than every baseline at every load of every dataset"
    return name, reached, not misses, misses


def _in_time(board: Board) -> tuple[str, str, bool, Misses]:
    rate = max(board.rates)
    found = {p: board.draws(AGENT, p, "slo_100s").value for p in board.places(rate)}
    misses = [(v, f"{at(p)}: {v:.1%}") for p, v in found.items() if v < SLO_AT_LOAD]
    name = f"at least {SLO_AT_LOAD:.0%} answered within 100 s at {rate:g}/min, on every dataset"
    return name, f"{min(found.values()):.1%} on the worst dataset", not misses, misses


def _as_accurate(board: Board) -> tuple[str, str, bool, Misses]:
    rate = min(board.rates)
    baselines = [entry.name for entry in board.of_kind("baseline")]
    found, misses = [], []
    for place in board.places(rate):
        best = board.best(baselines, place, "accuracy")
        paired = _paired(board, AGENT, best, place, "accuracy")
        found.append(paired.value)
        if paired.interval()[1] < 0.0:
            misses.append((paired.value, f"{best} on {at(place)}: {_interval(paired)}"))
    name = f"at {rate:g}/min at least the accuracy of the best baseline, within the interval"
    return name, f"{points(min(found))} points on the worst dataset", not misses, misses


def _near_the_bound(board: Board) -> tuple[str, str, bool, Misses]:
    ratio = board.mean(AGENT, "goodput") / board.mean(BOUND, "goodput")
    low, high = ratio.interval()
    short = ratio.value - OF_THE_BOUND
    misses = [(short, f"{points(short)} points short")] if short < 0.0 else []
    name = f"at least {OF_THE_BOUND:.0%} of the clairvoyant bound's goodput on average"
    return name, f"{ratio.value:.1%} [{low:.1%}, {high:.1%}]", not misses, misses


def _effect(board: Board, published: Published, metric: str) -> tuple[str, str, bool, Misses]:
    there = {place: published.effect(place, metric) for place in board.places()}
    cells, same, alike, misses = 0, 0, 0, []
    for place, theirs in there.items():
        if theirs is None:
            continue
        ours = _paired(board, REPLAYED, OBLIVIOUS, place, metric).value
        cells += 1
        same += ours * theirs > 0
        alike += 1 / FACTOR <= ours / theirs <= FACTOR
        if ours * theirs <= 0:
            shown = [f"{v:+.0f} s" if metric.endswith("_s") and metric != "slo_100s" else points(v)
                     for v in (theirs, ours)]  # fmt: skip
            misses.append((-abs(theirs), f"{at(place)}: {shown[0]} there, {shown[1]} here"))
    name = (
        f"`{REPLAYED}` − `{OBLIVIOUS}` as published, {_EFFECTS[metric]}: same direction in every "
        f"cell, within a factor of {FACTOR:g} in 50% of them"
    )
    reached = f"same direction in {same} of {cells} cells, within a factor of 2 in {alike}"
    return name, reached, same == cells and alike >= cells / 2, misses


def _paired(board: Board, one: str, other: str, place: Place, metric: str) -> Draws:
    return board.draws(one, place, metric) - board.draws(other, place, metric)


def _interval(draws: Draws) -> str:
    low, high = draws.interval()
    return f"{points(draws.value)} [{points(low)}, {points(high)}]"


def at(place: Place) -> str:
    """A place in words."""
    return f"{place[0]} at {place[1]:g}/min"


def points(value: float) -> str:
    """A difference of shares in percentage points; 0 has no sign."""
    words = f"{100 * value:+.1f}"
    return words[1:] if float(words) == 0.0 else words


def _worst(misses: Iterable[tuple[float, str]], most: int = 3) -> str:
    """The worst misses in words."""
    ordered = [words for _, words in sorted(misses)]
    more = f"; and {len(ordered) - most} more" if len(ordered) > most else ""
    return "; ".join(ordered[:most]) + more or NONE
