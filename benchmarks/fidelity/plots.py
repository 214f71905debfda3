"""Figures of the fidelity page: SVG with text as text, the same bytes for the same evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.fidelity.evidence import (
    Evidence,
    LoadCurve,
    LogEvidence,
    RunEvidence,
    wilson_interval,
)
from benchmarks.pages.figures import INK, QUIET, RULE, save_all
from inframind_gym.calibration.report import latencies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEASURED: Final = INK
PREDICTED: Final = "#0969da"
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b58900", "#56b4e9", "#882255")
_RATES: Final = ("#74a9cf", "#2171b5", "#08306b")  # of cost rates, light to dark
_LEAST_PCT: Final = 0.1  # where the axis of errors starts


def draw_all(evidence: Evidence, folder: Path) -> list[Path]:
    """Draw all figures of the page into a folder.

    Raises:
        BenchmarkError: matplotlib is missing.
    """
    figures: dict[str, Callable[[], Figure]] = {
        **{f"log-{log.slug}": partial(log_figure, log) for log in evidence.logs},
        "runs-latency": lambda: latency_figure(evidence.runs),
        "runs-load": lambda: load_figure(evidence.runs),
        "runs-accuracy": lambda: accuracy_figure(evidence.runs),
        "peers": lambda: peers_figure(evidence),
    }
    return save_all(figures, folder)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def log_figure(log: LogEvidence) -> Figure:
    """Requests of the unseen part: e2e predicted over measured, and distributions of TTFT."""
    from matplotlib.ticker import MaxNLocator

    figure = _figure(9.0, 4.3)
    scatter, distribution = figure.subplots(1, 2)
    unseen = slice(log.calibration.fitted, None)
    of = {
        name: (measured[unseen], predicted[unseen])
        for name, (measured, predicted, _) in latencies(log.calibration).items()
    }
    measured, predicted = of["e2e_s"]
    low = 0.9 * float(min(measured.min(), predicted.min()))
    high = 1.05 * float(max(measured.max(), predicted.max()))
    scatter.plot([low, high], [low, high], color=QUIET, lw=0.8, zorder=1)
    scatter.scatter(measured, predicted, s=16, color=PREDICTED, alpha=0.6, lw=0, zorder=2)
    scatter.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    scatter.set(xlabel="measured, s", ylabel="predicted, s")
    for axis in (scatter.xaxis, scatter.yaxis, distribution.xaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    scatter.set_title("End-to-end latency of each request")
    _note(scatter, 0.97, 0.05, f"{len(measured)} requests, none of them fitted", ha="right")
    _grid(scatter)

    measured, predicted = of["ttft_s"]
    share = np.arange(1, len(measured) + 1) / len(measured)
    for values, colour, width, name in (
        (measured, MEASURED, 2.4, "measured"),
        (predicted, PREDICTED, 1.3, "predicted"),
    ):
        distribution.step(np.sort(values), 100 * share, where="post", color=colour, lw=width)
        y = 0.93 if name == "measured" else 0.86
        _note(distribution, 0.03, y, name, colour=colour, weight="bold")
    distribution.set(
        xlim=(0, None), ylim=(0, 101), xlabel="time to first token, s", ylabel="% of requests"
    )
    distribution.set_title("Time to first token")
    _grid(distribution)
    return figure


def latency_figure(runs: RunEvidence) -> Figure:
    """Mean latency of every cell, predicted over measured, on logarithmic axes."""
    figure = _figure(9.0, 4.8)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    rows = [row for row in runs.rows if row["latency_s"]["mean"]["measured"]]
    values = [row["latency_s"]["mean"][side] for row in rows for side in ("measured", "predicted")]
    low, high = 0.8 * min(values), 1.25 * max(values)
    line = np.geomspace(low, high, 50)
    for panel, adaptive in zip(panels, (False, True), strict=True):
        panel.fill_between(line, 0.9 * line, 1.1 * line, color="#eaeef2", lw=0, zorder=0)
        panel.plot(line, line, color=QUIET, lw=0.8, zorder=1)
        _cells(
            panel,
            [row for row in rows if row["adaptive"] is adaptive],
            lambda row: (
                row["latency_s"]["mean"]["measured"],
                row["latency_s"]["mean"]["predicted"],
            ),
            list(dict.fromkeys(row["dataset"] for row in rows)),
        )
        panel.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
        panel.set_xlabel("measured mean latency, s")
        _plain(panel)
        panel.set_title("Adaptive router" if adaptive else "Oblivious router: fitted")
        _note(panel, 0.97, 0.04, "band: ±10 %", ha="right")
    panels[0].set_ylabel("predicted mean latency, s")
    return figure


def accuracy_figure(runs: RunEvidence) -> Figure:
    """Accuracy of every cell, predicted over measured, with the sampling error of the measured."""
    figure = _figure(9.0, 4.8)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    values = [
        100 * row["accuracy"][side] for row in runs.rows for side in ("measured", "predicted")
    ]
    low, high = max(0.0, min(values) - 6), min(100.0, max(values) + 4)
    for panel, adaptive in zip(panels, (False, True), strict=True):
        rows = [row for row in runs.rows if row["adaptive"] is adaptive]
        panel.plot([low, high], [low, high], color=QUIET, lw=0.8, zorder=1)
        for row in rows:
            ends = wilson_interval(row["accuracy"]["measured"], row["num_queries"] or 0)
            panel.plot(
                [100 * end for end in ends],
                [100 * row["accuracy"]["predicted"]] * 2,
                color=RULE,
                lw=1.0,
                zorder=1,
            )
        _cells(
            panel,
            rows,
            lambda row: (100 * row["accuracy"]["measured"], 100 * row["accuracy"]["predicted"]),
            list(dict.fromkeys(row["dataset"] for row in runs.rows)),
        )
        panel.set(xlim=(low, high), ylim=(low, high), aspect="equal", xlabel="measured accuracy, %")
        _grid(panel)
        panel.set_title(
            "Adaptive router: fitted with less weight" if adaptive else "Oblivious router: fitted"
        )
        _note(panel, 0.97, 0.04, "bars: binomial 95 % of the measured", ha="right")
    panels[0].set_ylabel("predicted accuracy, %")
    return figure


def _cells(
    panel: Axes,
    rows: list[dict[str, Any]],
    place: Callable[[dict[str, Any]], tuple[float, float]],
    datasets: list[str],
) -> None:
    """Points of cells in the colours of their datasets, hollow for adaptive methods."""
    for index, dataset in enumerate(datasets):
        colour = _COLOURS[index % len(_COLOURS)]
        points = [(place(row), row["adaptive"]) for row in rows if row["dataset"] == dataset]
        if points:
            panel.scatter(
                [x for (x, _), _ in points],
                [y for (_, y), _ in points],
                s=26,
                facecolors=["none" if hollow else colour for _, hollow in points],
                edgecolors=colour,
                linewidths=1.1,
                zorder=3,
            )
        _note(panel, 0.03, 0.96 - 0.058 * index, dataset, colour=colour, weight="bold")


def load_figure(runs: RunEvidence) -> Figure:
    """Mean latency over the arrival rate: a panel a dataset, a line a cost rate."""
    datasets = list(dict.fromkeys(curve.dataset for curve in runs.curves))
    columns = min(3, max(1, len(datasets)))
    lines = max(1, -(-len(datasets) // columns))
    figure = _figure(3.1 * columns + 0.3, 3.0 * lines)
    grid = figure.add_gridspec(lines, columns)
    first: Axes | None = None
    for index, dataset in enumerate(datasets):
        panel = figure.add_subplot(grid[divmod(index, columns)], sharex=first, sharey=first)
        first = first or panel
        _load_panel(panel, [curve for curve in runs.curves if curve.dataset == dataset])
        panel.set_title(dataset)
        if index % columns == 0:
            panel.set_ylabel("mean latency, s")
        if index + columns >= len(datasets):
            panel.set_xlabel("queries a minute")
    if len(datasets) < lines * columns:
        _key(figure.add_subplot(grid[-1, -1]))
    return figure


def _load_panel(panel: Axes, curves: list[LoadCurve]) -> None:
    ordered = sorted(curves, key=lambda curve: curve.cost_rate or 0.0)
    ends = _spread([float(np.log(curve.latency_s[-1])) for curve in ordered], 0.33)
    panel.set(xscale="log", yscale="log")
    for index, curve in enumerate(ordered):
        colour = _RATES[min(index, len(_RATES) - 1)]
        panel.plot(curve.rate_per_min, curve.latency_s, color=colour, lw=1.5, zorder=2)
        panel.scatter(
            [cell.arrival_rate_per_min for cell in curve.measured],
            [cell.latency_s["mean"] for cell in curve.measured],
            s=24,
            color=colour,
            edgecolors="white",
            linewidths=0.6,
            zorder=3,
        )
        if curve.cost_rate is not None:
            panel.annotate(
                f"{curve.cost_rate:g}",
                (curve.rate_per_min[-1], float(np.exp(ends[index]))),
                xytext=(4, 0),
                textcoords="offset points",
                color=colour,
                fontsize=9,
                va="center",
                annotation_clip=False,
            )
    _plain(panel)


def _spread(places: list[float], gap: float) -> list[float]:
    """The places, moved apart until neighbours are `gap` from each other."""
    order = np.argsort(places)
    moved = np.array(places)[order]
    for _ in range(100):
        for i in range(1, len(moved)):
            short = gap - (moved[i] - moved[i - 1])
            if short > 0:
                moved[i - 1] -= short / 2
                moved[i] += short / 2
    out = np.empty(len(moved))
    out[order] = moved
    return [float(place) for place in out]


def _key(panel: Axes) -> None:
    """How to read the panels, where one is left over."""
    panel.set(xlim=(0, 1), ylim=(0, 1))
    panel.set_axis_off()
    panel.plot([0.05, 0.25], [0.8, 0.8], color=_RATES[1], lw=1.5)
    panel.scatter([0.15], [0.66], s=24, color=_RATES[1])
    _note(panel, 0.32, 0.8, "predicted", va="center", colour=INK)
    _note(panel, 0.32, 0.66, "measured", va="center", colour=INK)
    _note(panel, 0.05, 0.42, "Number at a line's end:\nthe router's cost rate", colour=INK)


def peers_figure(evidence: Evidence) -> Figure:
    """Errors of e2e latency: ours, measured, above what others claim of themselves."""
    lines = [
        (
            "inframind_gym",
            (abs(log.figures["unseen"]["e2e_s"]["mean"]["error_pct"]),) * 2,
            f"mean e2e latency of the requests not fitted, {log.entry.title}",
        )
        for log in evidence.logs
    ]
    own = len(lines)
    lines += [(peer.name, peer.error_pct, peer.measure) for peer in evidence.peers]
    figure = _figure(9.0, 0.62 * len(lines) + 1.0)
    panel = figure.subplots()
    panel.set_xscale("log")
    for y, (_, error_pct, _) in enumerate(lines):
        _range(panel, y, *error_pct, colour=PREDICTED if y < own else QUIET, filled=y < own)
    labels = [f"{name}\n" + "\n".join(wrap(measure, 46)) for name, _, measure in lines]
    panel.set_yticks(range(len(lines)), labels, size=8.5)
    panel.set(ylim=(len(lines) - 0.4, -0.6), xlim=(_LEAST_PCT, 130))
    panel.set_xlabel("absolute error, %")
    panel.axhline(own - 0.5, color=RULE, lw=0.8)
    panel.spines["left"].set_visible(False)
    panel.tick_params(axis="y", length=0)
    panel.set_title("Filled: measured here. Hollow: own claims, not run by us")
    _plain(panel, axes="x")
    return figure


def _range(panel: Axes, y: float, least: float, most: float, *, colour: str, filled: bool) -> None:
    """A range of errors, or one error, as a line with ends and the numbers beside it."""
    if most > least:
        panel.plot(
            [max(least, _LEAST_PCT), most], [y, y], color=colour, lw=2, solid_capstyle="butt"
        )
    ends = sorted({most} if least == 0 else {least, most})
    face = colour if filled else "white"
    panel.scatter(ends, [y] * len(ends), s=44, color=face, edgecolors=colour, lw=1.6, zorder=3)
    text = f"{least:.2g} to {most:.2g}" if 0 < least < most else f"{most:.2g}"
    panel.annotate(
        f"below {text}" if least < most and least == 0 else text,
        (most, y),
        xytext=(9, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        annotation_clip=False,
    )


def _note(
    panel: Axes,
    x: float,
    y: float,
    text: str,
    *,
    colour: str = QUIET,
    ha: str = "left",
    va: str = "baseline",
    weight: str = "normal",
) -> None:
    """Text at a place in a panel, in shares of its sides."""
    panel.text(
        x, y, text, transform=panel.transAxes, color=colour, ha=ha, va=va, weight=weight, size=9
    )


def _grid(panel: Axes) -> None:
    panel.grid(color=RULE, lw=0.5, zorder=0)
    panel.set_axisbelow(True)


def _plain(panel: Axes, axes: Iterable[str] = "xy") -> None:
    """Numbers instead of powers of ten on logarithmic axes, few of them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name in axes:
        axis = panel.xaxis if name == "x" else panel.yaxis
        axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
        axis.grid(True, which="major", color=RULE, lw=0.5)
    panel.set_axisbelow(True)
