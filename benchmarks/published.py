"""Measurements of the published systems, and the tables that set ours beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import yaml

from benchmarks.pages import NONE, table
from benchmarks.record_table import Place
from benchmarks.scores import (
    AGENT,
    COLUMNS,
    ELSEWHERE,
    GOODPUT,
    OBLIVIOUS,
    REPLAYED,
    Board,
    difference,
    margin,
    per_minute,
    signed,
    text,
    title,
)

PUBLISHED: Final = Path(__file__).with_name("published.yaml")
SYSTEMS: Final = ("inframind", "masrouter")


class Published:
    """Measurements of the published systems on their own testbed."""

    def __init__(self) -> None:
        content = yaml.safe_load(PUBLISHED.read_text(encoding="utf-8"))
        self._systems: dict[str, dict[str, dict[float, dict[str, float]]]] = content["systems"]
        self.shares: dict[str, dict[str, float]] = content["shares"]

    def value(self, system: str, place: Place, metric: str) -> float | None:
        """A measured mean as a share or in seconds; None if it was not published."""
        found = self._systems[system].get(place[0], {}).get(place[1], {}).get(metric)
        return found if found is None or metric.endswith("_mean_s") else found / 100.0

    def effect(self, place: Place, metric: str) -> float | None:
        """The published difference InfraMind - MasRouter; None if it was not published."""
        one, other = (self.value(system, place, metric) for system in SYSTEMS)
        return None if one is None or other is None else one - other


def beside_table(board: Board, published: Published) -> str:
    """Published measurements and ours: solved % / mean s / answered within 100 s %."""
    columns = COLUMNS[:3]
    body = []
    for place in board.places():
        if published.effect(place, "accuracy") is None:
            continue
        row = [f"{title(place[0])}, {place[1]:g}/min"]
        for system in SYSTEMS:
            there = [published.value(system, place, column.name) for column in columns]
            solved, _, within = map(text, there, columns)
            row.append(f"{solved} / {there[1]:.0f} / {within}")
        for name in (REPLAYED, OBLIVIOUS, AGENT):
            here = [board.draws(name, place, column.name).value for column in columns]
            row.append(" / ".join(map(text, here, columns)))
        body.append(row)
    headings = ["", *(f"`{system}`, {ELSEWHERE}" for system in SYSTEMS)]
    return table([*headings, *(f"`{n}`, here" for n in (REPLAYED, OBLIVIOUS, AGENT))], body)


def effects_table(board: Board, published: Published, entry: str) -> str:
    """Published agent - MasRouter, there and here."""
    headings, body = [""], []
    for column in COLUMNS[:3]:
        headings += [f"{column.label}, {ELSEWHERE}", f"{column.label}, here"]
    for place in board.places():
        row = [f"{title(place[0])}, {place[1]:g}/min"]
        for column in COLUMNS[:3]:
            there = published.effect(place, column.name)
            draws = [board.draws(name, place, column.name) for name in (entry, OBLIVIOUS)]
            row.append(NONE if there is None else signed(there, column))
            row.append(difference(draws[0] - draws[1], column))
        if row[1] != NONE:
            body.append(row)
    return table(headings, body)


def causes_table(board: Board, published: Published) -> str:
    """Means over the datasets of the replayed systems and of the changed training."""
    columns = (*COLUMNS[:3], GOODPUT)
    rates = [r for r in board.rates if published.effect((board.workloads[0], r), "accuracy")]
    shown = [(rate, column) for rate in rates for column in columns]
    body = []
    for system in SYSTEMS:
        row = [f"`{system}`, {ELSEWHERE}"]
        for rate, column in shown:
            there = [published.value(system, place, column.name) for place in board.places(rate)]
            known = [value for value in there if value is not None]
            row.append(text(float(np.mean(known)) if known else None, column))
        body.append(row)
    for entry in (e for n in (OBLIVIOUS, REPLAYED) for e in board.entries if n in (e.name, e.of)):
        means = [margin(board.mean(entry.name, c.name, rate), c) for rate, c in shown]
        what = f"the same, {entry.what}" if entry.of else f"`{entry.name}`"
        body.append([what, *means])
    return table(["", *(f"{column.label}, {per_minute(rate)}" for rate, column in shown)], body)
