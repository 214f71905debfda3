"""Measure figures of the simulator's speed, of this revision or of two in turn."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.machine import keep_to_one_core
from inframind_gym.benchmark.provenance import PACKAGE, provenance
from inframind_gym.benchmark.speed.figures import (
    FIGURES,
    RATE_PER_MIN,
    TRACES,
    Figure,
    trace_figures,
)
from inframind_gym.benchmark.speed.sides import Side, SideError, checkout, costs_s
from inframind_gym.benchmark.tables import Sheet
from inframind_gym.errors import unknown
from inframind_gym.progress import say

REPEATS = 5


@contextmanager
def open_sides(against: str | None) -> Iterator[tuple[list[Side], dict[str, str]]]:
    """Start the measuring processes on one core: of this revision, and of `against` if given.

    Yields:
        The sides, and "ref" and "commit" of the other one.

    Raises:
        BenchmarkError: There is no such revision, or this is no checkout.
    """
    with ExitStack() as stack:
        other: dict[str, str] = {}
        kept = stack.enter_context
        kept(keep_to_one_core())
        sides = [kept(Side(PACKAGE.parent))]
        if against is not None:
            commit, folder = checkout(against)
            other = {"ref": against, "commit": commit}
            sides.append(kept(Side(folder, folder / ".kernels")))
        yield sides, other


def chosen_figures(only: Sequence[str] | None, trace: Path | None) -> dict[str, Figure]:
    """Return the figures to measure: those that are named, or all but the slowest.

    Raises:
        BenchmarkError: A name is unknown, or stands for a figure of a trace and none is given.
    """
    of_trace = trace_figures(str(trace.resolve()) if trace else "")
    if trace is not None and not trace.is_file():
        raise BenchmarkError(f"--trace: there is no file {trace}. Give {TRACES}.")
    known = FIGURES | of_trace
    for key in only or ():
        if key not in known:
            raise BenchmarkError(unknown("figure", key, known))
        if key in of_trace and trace is None:
            raise BenchmarkError(f"{key} needs --trace FILE: {TRACES}.")
    left_out = {key for key, figure in FIGURES.items() if figure.asked_for}
    if trace is None:
        left_out |= of_trace.keys()
    return {key: known[key] for key in only or [key for key in known if key not in left_out]}


def measure(
    only: Sequence[str] | None = None,
    *,
    repeats: int = REPEATS,
    against: str | None = None,
    trace: Path | None = None,
) -> dict[str, Any]:
    """Measure speed figures on one core.

    Args:
        only: Names of figures; None takes all but the compilation, which takes minutes.
        repeats: Measurements of each figure; the median is kept. The compilation is measured once.
        against: Git revision that is measured in turn with this one.
        trace: CSV file of production traffic for the figures of a replayed trace.

    Returns:
        Medians by name, their ``spread`` (least and most), ``targets``, ``repeats``, and where they
        were measured. With `against` also ``against``: "ref", "commit", "there" (its medians) and
        "ratios": how many times as fast this revision is, "median", "least" and "most" of the
        pairs, by name.

    Raises:
        BenchmarkError: A name is unknown, or the revision or the trace cannot be had.
    """
    figures = chosen_figures(only, trace)
    medians: dict[str, float] = {}
    spread: dict[str, list[float]] = {}
    there: dict[str, float] = {}
    ratios: dict[str, dict[str, float]] = {}
    with open_sides(against) as (sides, other):
        for key, figure in figures.items():
            say(f"measuring {figure.what} ...")
            try:
                costs = costs_s(sides, figure.job, repeats)
            except SideError as error:
                if not other:
                    raise
                say(f"left out: {error}")
                continue
            values = [figure.value(cost) for cost in costs[0]]
            medians[key] = statistics.median(values)
            spread[key] = [min(values), max(values)]
            if other:
                there[key] = figure.value(statistics.median(costs[1]))
                ratios[key] = ratios_of(*costs)
    found: dict[str, Any] = {**medians, "spread": spread}
    found["targets"] = {key: figures[key].target for key in medians}
    if other:
        found["against"] = {**other, "there": there, "ratios": ratios}
    return {**found, "repeats": repeats, **provenance()}


def ratios_of(here_s: Sequence[float], there_s: Sequence[float]) -> dict[str, float]:
    """Summarise how many times as fast this side is, over pairs measured one after the other."""
    ratios = [there / here for here, there in zip(here_s, there_s, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def speed_sheet(found: Mapping[str, Any]) -> Sheet:
    """Make the table of the figures: with their targets, or with the ratios to another revision."""
    known = FIGURES | trace_figures("")
    figures = {key: known[key] for key in found["targets"]}
    caption = f"Medians of {found['repeats']}, CPU time, one thread. {origin(found)}"
    if "against" not in found:
        rows = [
            [figure.what, figure.text(found[key]), *figure.verdict(found[key])]
            for key, figure in figures.items()
        ]
        headings = ["", "median", "target", "reached"]
        return Sheet(title(found), headings, rows, f"{caption} {_STREAMS}")
    other = found["against"]
    rows = [
        [
            figure.what,
            figure.text(found[key]),
            figure.text(other["there"][key]),
            f"{ratio['median']:.2f}",
            f"{ratio['least']:.2f} to {ratio['most']:.2f}",
        ]
        for key, figure in figures.items()
        if (ratio := other["ratios"].get(key))
    ]
    headings = ["", "here", other["ref"], "times as fast", "pairs"]
    caption += f" Measured in turn with {other['commit'][:12]}; ratios are of neighbouring pairs."
    return Sheet(title(found), headings, rows, caption)


_STREAMS = f"Streams: random actions, {RATE_PER_MIN:g} queries/min, five models."


def title(found: Mapping[str, Any]) -> str:
    """Name what was measured, and the processor."""
    return f"Speed, one core of {found['machine']['processor']}"


def origin(found: Mapping[str, Any]) -> str:
    """Name the versions that were measured."""
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    git = found["git"]
    commit = f" ({git['commit'][:12]}{', changed' if git['dirty'] else ''})" if git else ""
    return f"Python {found['python']}, {packages}{commit}."
