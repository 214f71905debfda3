"""Targets of the results, each with the figures that decide it."""

from __future__ import annotations

from typing import Final

from benchmarks.intervals import Draws
from benchmarks.pages import NONE, table
from benchmarks.published import Published
from benchmarks.record_table import Place
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
_MOST: Final = 3  # misses that are shown
Misses = list[tuple[float, str]]  # amount, worst first when sorted, and words


def targets(board: Board, replay: Board, published: Published) -> str:
    """Every target with the figures reached and the places where it is missed."""
    baselines = [entry.name for entry in board.of_kind("baseline")]
    rows = [
        _ahead(board, baselines),
        _in_time(board, max(board.rates)),
        _as_accurate(board, baselines, min(board.rates)),
        _near_the_bound(board),
        *(_effect(replay, published, metric) for metric in _EFFECTS),
    ]
    return table(("Target", "Reached", "", "Where it is missed"), rows, left=4)


def _row(name: str, reached: str, misses: Misses, met: bool | None = None) -> list[str]:
    worst = [words for _, words in sorted(misses)]
    more = f"; and {len(worst) - _MOST} more" if len(worst) > _MOST else ""
    verdict = "met" if met or (met is None and not misses) else "**missed**"
    return [name, reached, verdict, "; ".join(worst[:_MOST]) + more or NONE]


def _ahead(board: Board, baselines: list[str]) -> list[str]:
    pairs = [(rival, place) for rival in baselines for place in board.places()]
    found = {pair: _paired(board, AGENT, *pair, "goodput") for pair in pairs}
    misses = [
        (own.value, f"{rival} on {_at(place)}: {_interval(own)}")
        for (rival, place), own in found.items()
        if own.interval()[0] <= 0.0
    ]
    rivals = board.rivals(AGENT)
    nearest = [(board.best(rivals, place), place) for place in board.places()]
    duels = {pair: _paired(board, AGENT, *pair, "goodput") for pair in nearest}
    ahead = sum(own.interval()[0] > 0.0 for own in duels.values())
    closest = min(duels, key=lambda pair: duels[pair].value)
    reached = (
        f"{len(pairs) - len(misses)} of {len(pairs)} paired differences are above 0; against the "
        f"best rival of each cell, any entry but {AGENT}'s variants, {ahead} of {len(duels)} "
        f"intervals are above 0, and the smallest difference is {_interval(duels[closest])}, "
        f"`{closest[0]}` on {_at(closest[1])}"
    )
    return _row(
        "higher goodput than every baseline at every load of every dataset", reached, misses
    )


def _in_time(board: Board, rate: float) -> list[str]:
    found = {place: board.draws(AGENT, place, "slo_100s").value for place in board.places(rate)}
    misses = [(v, f"{_at(place)}: {v:.1%}") for place, v in found.items() if v < SLO_AT_LOAD]
    name = f"at least {SLO_AT_LOAD:.0%} answered within 100 s at {rate:g}/min, on every dataset"
    return _row(name, f"{min(found.values()):.1%} on the worst dataset", misses)


def _as_accurate(board: Board, baselines: list[str], rate: float) -> list[str]:
    best = [(board.best(baselines, place, "accuracy"), place) for place in board.places(rate)]
    found = {pair: _paired(board, AGENT, *pair, "accuracy") for pair in best}
    misses = [
        (own.value, f"{rival} on {_at(place)}: {_interval(own)}")
        for (rival, place), own in found.items()
        if own.interval()[1] < 0.0
    ]
    name = f"at {rate:g}/min at least the accuracy of the best baseline, within the interval"
    worst = min(own.value for own in found.values())
    return _row(name, f"{_points(worst)} points on the worst dataset", misses)


def _near_the_bound(board: Board) -> list[str]:
    ratio = board.mean(AGENT, "goodput") / board.mean(BOUND, "goodput")
    low, high = ratio.interval()
    short = ratio.value - OF_THE_BOUND
    misses = [(short, f"{_points(short)} points short")] if short < 0.0 else []
    name = f"at least {OF_THE_BOUND:.0%} of the clairvoyant bound's goodput on average"
    return _row(name, f"{ratio.value:.1%} [{low:.1%}, {high:.1%}]", misses)


def _effect(board: Board, published: Published, metric: str) -> list[str]:
    same, alike, misses = [], [], []
    for place in board.places():
        theirs = published.effect(place, metric)
        if theirs is not None:
            ours = _paired(board, REPLAYED, OBLIVIOUS, place, metric).value
            same.append(ours * theirs > 0)
            alike.append(1 / FACTOR <= ours / theirs <= FACTOR)
            shown = [
                f"{v:+.0f} s" if metric == "latency_mean_s" else _points(v) for v in (theirs, ours)
            ]
            if not same[-1]:
                misses.append((-abs(theirs), f"{_at(place)}: {shown[0]} there, {shown[1]} here"))
    name = (
        f"`{REPLAYED}` − `{OBLIVIOUS}` as published, {_EFFECTS[metric]}: same direction in every "
        f"cell, within a factor of {FACTOR:g} in 50% of them"
    )
    reached = (
        f"same direction in {sum(same)} of {len(same)} cells, within a factor of {FACTOR:g} "
        f"in {sum(alike)}"
    )
    return _row(name, reached, misses, all(same) and 2 * sum(alike) >= len(same))


def _paired(board: Board, one: str, other: str, place: Place, metric: str) -> Draws:
    return board.draws(one, place, metric) - board.draws(other, place, metric)


def _interval(draws: Draws) -> str:
    low, high = draws.interval()
    return f"{_points(draws.value)} [{_points(low)}, {_points(high)}]"


def _at(place: Place) -> str:
    return f"{place[0]} at {place[1]:g}/min"


def _points(value: float) -> str:
    """A difference of shares in percentage points; 0 has no sign."""
    words = f"{100 * value:+.1f}"
    return words[1:] if float(words) == 0.0 else words
