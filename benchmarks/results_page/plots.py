"""Figures of the results page: SVG, the same bytes for the same evidence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.pages.figures import INK, QUIET, RULE, save_all
from benchmarks.results_page.evidence import Evidence
from benchmarks.results_page.formats import title
from benchmarks.results_page.plan import Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_AGENT: Final = "#0072b2"
_PAPER: Final = "#d55e00"
_OBLIVIOUS: Final = "#009e73"
_OTHER: Final = "#b6bdc5"


def draw_all(evidence: Evidence, folder: Path) -> list[Path]:
    """Draw all figures of the page into a folder.

    Raises:
        BenchmarkError: matplotlib is missing.
    """
    figures = {
        f"goodput-{protocol}": partial(goodput_figure, evidence, protocol)
        for protocol in evidence.scores
    }
    return save_all(figures, folder)


def goodput_figure(evidence: Evidence, protocol: Protocol) -> Figure:
    """Goodput against load, a panel for each dataset."""
    from matplotlib.figure import Figure

    workloads = evidence.scores[protocol].suite.names("workloads")
    columns = min(3, len(workloads))
    rows = -(-len(workloads) // columns) if len(workloads) % columns else len(workloads) // columns
    figure = Figure(figsize=(3.3 * columns, 2.7 * rows + 0.6), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
    for i, (panel, workload) in enumerate(zip(panels, workloads, strict=False)):
        lines = _panel(panel, evidence, protocol, workload)
        if i % columns == 0:
            panel.set_ylabel("goodput, %")
        if i + columns >= len(workloads):
            panel.set_xlabel("queries/min")
            panel.tick_params(labelbottom=True)
    for panel in panels[len(workloads) :]:
        panel.set_axis_off()
    free = len(panels) > len(workloads)
    where = panels[-1] if free else figure
    where.legend(
        list(lines.values()),
        list(lines),
        loc="center left" if free else "outside lower center",
        ncols=1 if free else 3,
        frameon=False,
    )
    return figure


def _panel(panel: Axes, evidence: Evidence, protocol: Protocol, workload: str) -> dict[str, Line2D]:
    """Draw one dataset; returns what the legend names."""
    scores, plan = evidence.scores[protocol], evidence.plan
    rates = [float(rate) for rate in scores.suite.rates_per_min]
    ticks = np.arange(len(rates))
    legend: dict[str, Line2D] = {}
    looks = {
        plan.agent: (_AGENT, 2.4, 5),
        plan.paper: (_PAPER, 1.6, 4),
        plan.oblivious: (_OBLIVIOUS, 1.6, 3),
    }
    for entry in evidence.shown(protocol, "agent", "baseline", "bound"):
        if not all(scores.has(entry.name, (workload, rate)) for rate in rates):
            continue
        draws = [scores.draws(entry.name, (workload, rate), "goodput") for rate in rates]
        values = [100 * one.value for one in draws]
        if entry.kind == "bound":
            (line,) = panel.plot(ticks, values, color=INK, lw=1.2, ls="--", zorder=6)
            legend[f"{entry.name} (bound)"] = line
            continue
        colour, width, order = looks.get(entry.name, (_OTHER, 1.0, 2))
        marker = "o" if entry.name in looks else None
        (line,) = panel.plot(
            ticks, values, color=colour, lw=width, marker=marker, ms=3.5, zorder=order
        )
        legend[entry.name if entry.name in looks else "other entries"] = line
        if entry.name == plan.agent:
            ends = np.array([one.interval() for one in draws]) * 100
            panel.fill_between(ticks, ends[:, 0], ends[:, 1], color=colour, alpha=0.18, lw=0)
    fluid = [100 * evidence.fluid[protocol][workload, rate].clairvoyant for rate in rates]
    (line,) = panel.plot(ticks, fluid, color=QUIET, lw=1.2, ls=":", zorder=6)
    legend["fluid bound"] = line
    panel.set_xticks(ticks, [f"{rate:g}" for rate in rates])
    panel.set_ylim(0, 100)
    panel.grid(axis="y", color=RULE, lw=0.6)
    panel.set_axisbelow(True)
    panel.set_title(title(workload))
    return legend
