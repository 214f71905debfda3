"""Compare the simulator with logs and measured runs: ``python -m benchmarks fidelity DATA``.

Refreshes the tables of ``docs/fidelity.md`` (`benchmarks.pages`) and draws the plots beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from benchmarks.fit.measured import FITTED, POOL
from benchmarks.pages import NONE, QUIET, RULE, refresh, save_all, table
from inframind_gym.benchmark.cli import app
from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.calibration.measured_runs import read_runs
from inframind_gym.calibration.replay import DEFAULT_SEEDS, load_constants, predict
from inframind_gym.calibration.report import (
    FIGURES,
    cell_rows,
    latencies,
    log_report,
    median_and_p90,
    summarise,
)
from inframind_gym.calibration.request_log import read_log
from inframind_gym.calibration.server_card import Calibration, Limits, calibrate
from inframind_gym.errors import friendly, require
from inframind_gym.progress import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
PAGE: Final = "fidelity.md"
OBLIVIOUS: Final = "mas"  # the router that does not see load: the constants are fitted to its cells
ADAPTIVE: Final = "inframind"
FIT: Final = FITTED / f"{POOL}.json"  # written by benchmarks.fit.measured
MOST_PARAMETERS: Final = 8  # fitted to one log
# Name, largest median error over the cells of the oblivious method, the same where their rate was
# left out of the fit, unit.
RUNS: Final = {
    "latency_mean_abs_pct": ("median cell: mean latency", 10.0, 15.0, " %"),
    "latency_p95_abs_pct": ("median cell: p95 latency", 20.0, 25.0, " %"),
    "accuracy_abs_points": ("median cell: accuracy", 2.0, 2.5, " points"),
}
METRICS: Final = {  # name, unit, factor
    "e2e_s": ("end-to-end latency", "s", 1.0),
    "ttft_s": ("time to first token", "s", 1.0),
    "tpot_s": ("time per output token", "ms", 1e3),
}
CARD: Final = {  # fitted or chosen for a log: unit, factor, meaning
    "base_s": ("ms", 1e3, "of a step, whatever it serves"),
    "per_kv_token_s": ("ns", 1e9, "for every cached token that is read"),
    "per_new_token_s": ("µs", 1e6, "for every token that is computed"),
    "per_attention_unit_s": ("ns", 1e9, "for every token of a prompt times its context"),
    "roofline_power": ("", 1.0, "1: weights and new tokens add up; above: they overlap"),
    "async_scheduling": ("", 1.0, "a step is planned while the one before runs"),
    "prefix_caching": ("", 1.0, "evicted requests find their blocks again"),
    "shared_prefix_blocks": ("blocks", 1.0, "of a head that all prompts share"),
}
PREDICTED: Final = "#0969da"
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#b58900", "#56b4e9", "#882255")


@dataclass(frozen=True)
class Log:
    """Facts about a request log that are not in it, and the largest errors it may have."""

    title: str
    limits: Limits  # launch options of the server
    e2e_mean: float  # percent, of the requests that were not fitted
    e2e_percentiles: float  # percent; p50, p90, p95 and p99
    ttft_mean: float  # percent


# From LLMServingSim's validation page (https://github.com/casys-kaist/LLMServingSim, docs), which
# publishes the logs with their run's meta.json. The caches of the RTX PRO 6000 never filled up.
LOGS: Final = {
    "RTX4090_Llama-3.1-8B.jsonl": Log(
        "Llama-3.1-8B on one RTX 4090", Limits(256, 2048, 2588), 1, 3, 3
    ),
    "RTXPRO6000_Llama-3.1-8B.jsonl": Log(
        "Llama-3.1-8B on one RTX PRO 6000", Limits(128, 2048), 1, 3, 3
    ),
    "RTXPRO6000_Qwen3-32B.jsonl": Log("Qwen3-32B on two RTX PRO 6000", Limits(128, 2048), 1, 3, 3),
}


@dataclass(frozen=True)
class LogEvidence:
    """A request log, the card fitted to its first part, and how well the rest is predicted."""

    log: Log
    calibration: Calibration
    figures: dict[str, Any]  # log_report


@app.command()
def fidelity(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Folder with vllm_traces/*.jsonl and measured_runs.json."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of fidelity.md and fidelity/*.svg.")] = Path(
        "docs"
    ),
    seeds: Annotated[
        int, typer.Option(min=1, help="Episodes to simulate for every cell.")
    ] = DEFAULT_SEEDS,
) -> None:
    """Compare the simulator with request logs and measured runs; write docs/fidelity.md."""
    with friendly():
        page = out / PAGE
        if not page.exists():
            raise BenchmarkError(f"{page} does not exist: its prose is written by hand.")
        require("matplotlib", "drawing figures", "plot")
        logs = [_log_evidence(data / "vllm_traces" / name, log) for name, log in LOGS.items()]
        cells = read_runs(data / "measured_runs.json", [OBLIVIOUS, ADAPTIVE])
        say(f"replaying {len(cells)} measured cells, {seeds} episodes each ...")
        constants = load_constants(POOL, [cell.dataset for cell in cells])
        rows = cell_rows(cells, predict(cells, constants, seeds))
        found = tables(logs, rows, json.loads(FIT.read_text("utf-8")))
        refresh(page, found)
        figures = {
            "logs": partial(_logs_figure, logs),
            "runs-latency": partial(_runs_figure, rows, "latency"),
            "runs-accuracy": partial(_runs_figure, rows, "accuracy"),
        }
        save_all(figures, out / "fidelity")
        print(f"{found['targets']}\n\n{page} and its plots")


def _log_evidence(path: Path, log: Log) -> LogEvidence:
    say(f"calibrating on {path.name} ...")
    calibration = calibrate(read_log(path), log.limits)
    for warning in (figures := log_report(calibration))["warnings"]:
        say(f"warning: {path.name}: {warning}")
    return LogEvidence(log, calibration, figures)


# Tables


def tables(
    logs: Sequence[LogEvidence], rows: Sequence[Row], fit: Mapping[str, Any]
) -> dict[str, str]:
    """Return the tables of the page by name, as markdown."""
    summary = summarise(rows)
    order = list(dict.fromkeys(row["dataset"] for row in rows))
    oblivious = [row for row in rows if row["method"] == OBLIVIOUS]
    oblivious.sort(key=lambda row: (order.index(row["dataset"]), row["cost_rate"] or 0.0))
    left_out = {f"{rate}/min": of for rate, of in (fit.get("left_out") or {}).items()}
    sets = {"where the fit starts": fit["prior"], "now": summary}
    errors = ["mean latency, %", "p95 latency, %", "accuracy, points"]
    cell_headings = ["mean latency, s", "p95 latency, s", "accuracy, %"]
    return {
        "targets": table(
            ["figure", "of", "target", "reached", "met"],
            [*_log_targets(logs), *_run_targets(summary, left_out, rows)],
            left=2,
        ),
        "logs": table(
            ["log", "requests", "of a request", *FIGURES, "mean abs. error"],
            _log_rows(logs),
            left=3,
        ),
        "cards": table(["log", "constant", "value", "meaning"], _card_rows(logs), left=4),
        "runs": table(["constants", "method", "cells", *errors], _summary_rows(sets), left=2),
        "left_out": table(
            ["left out", "method", "cells", *errors], _summary_rows(left_out), left=2
        ),
        "cells": table(
            ["dataset", "cost rate", "queries/min", *cell_headings],
            [_cell_row(row) for row in oblivious],
        ),
        "bias": _bias_table(rows),
    }


def _log_targets(logs: Sequence[LogEvidence]) -> Iterator[list[str]]:
    for of in logs:
        unseen = of.figures["unseen"]
        e2e = [abs(unseen["e2e_s"][name]["error_pct"]) for name in FIGURES]
        ttft = abs(unseen["ttft_s"]["mean"]["error_pct"])
        for what, reached, limit in (
            ("unseen requests: mean e2e", e2e[0], of.log.e2e_mean),
            ("unseen requests: worst e2e percentile", max(e2e[1:]), of.log.e2e_percentiles),
            ("unseen requests: mean TTFT", ttft, of.log.ttft_mean),
        ):
            yield [what, of.log.title, *_judged(reached, limit, " %", 2)]
        count = of.figures["parameters"]["count"]
        yield ["constants fitted or chosen", of.log.title, *_judged(count, MOST_PARAMETERS, "", 0)]


def _run_targets(
    summary: Mapping[str, Row], left_out: Mapping[str, Mapping[str, Row]], rows: Sequence[Row]
) -> Iterator[list[str]]:
    for method, of in summary.items():
        fitted = ", fitted" if method == OBLIVIOUS else ""
        for key, (what, limit, _, unit) in RUNS.items():
            judged = _judged(of[f"{key}_median"], limit if fitted else None, unit)
            yield [what, f"`{method}`, {of['cells']} cells{fitted}", *judged]
    for rate, sets in left_out.items():
        for key, (what, _, limit, unit) in RUNS.items():
            judged = _judged(sets[OBLIVIOUS][f"{key}_median"], limit, unit)
            yield [what, f"`{OBLIVIOUS}`, {rate} left out", *judged]
    inside = [
        low <= row["accuracy"]["predicted"] <= high
        for row in rows
        for low, high in [wilson_interval(row["accuracy"]["measured"], row["num_queries"] or 0)]
        if row["method"] == OBLIVIOUS
    ]
    what = "accuracy within the measured 95 % interval"
    yield [what, f"`{OBLIVIOUS}`", NONE, f"{sum(inside)} of {len(inside)} cells", NONE]


def _judged(reached: float | None, limit: float | None, unit: str, digits: int = 1) -> list[str]:
    """Return target, reached value and verdict as text."""
    if reached is None:
        return [NONE if limit is None else f"≤ {limit:g}{unit}", NONE, NONE]
    shown = f"{reached:.{digits}f}{unit}"
    if limit is None:
        return [NONE, shown, NONE]
    return [f"≤ {limit:g}{unit}", shown, "yes" if reached <= limit else "**no**"]


def _log_rows(logs: Sequence[LogEvidence]) -> Iterator[list[str]]:
    for log in logs:
        for part, requests in (("unseen", "not fitted"), ("all", "all")):
            for metric, (what, unit, factor) in METRICS.items():
                of = log.figures[part][metric]
                cells = [
                    f"{factor * of[name]['measured']:.2f} → {factor * of[name]['predicted']:.2f} "
                    f"({_error(of[name]['error_pct'])})"
                    for name in FIGURES
                ]
                what = f"{what}, {unit}"
                yield [log.log.title, requests, what, *cells, f"{of['mae_pct']:.2f} %"]


def _card_rows(logs: Sequence[LogEvidence]) -> Iterator[list[str]]:
    for of in logs:
        for name, value in of.calibration.parameters.items():
            unit, factor, meaning = CARD.get(name, ("", 1.0, ""))
            shown = ("no", "yes")[value] if isinstance(value, bool) else f"{factor * value:.4g}"
            yield [of.log.title, f"`{name}`", f"{shown} {unit}".strip(), meaning]


def _summary_rows(sets: Mapping[str, Mapping[str, Row]]) -> Iterator[list[str]]:
    for name, summary in sets.items():
        for method, of in summary.items():
            yield [name, method, str(of["cells"]), *(median_and_p90(of, key) for key in RUNS)]


def _cell_row(row: Row) -> list[str]:
    accuracy = row["accuracy"]
    off = _signed(100 * (accuracy["predicted"] - accuracy["measured"]))
    shown = f"{100 * accuracy['measured']:.1f} → {100 * accuracy['predicted']:.1f} ({off})"
    cost_rate = NONE if row["cost_rate"] is None else f"{row['cost_rate']:g}"
    latency = []
    for of in (row["latency_s"]["mean"], row["latency_s"]["p95"]):
        was = NONE if of["measured"] is None else f"{of['measured']:,.0f}"
        latency.append(f"{was} → {of['predicted']:,.0f} ({_error(of['error_pct'], 0)})")
    return [row["dataset"], cost_rate, f"{row['arrival_rate_per_min']:g}", *latency, shown]


def _bias_table(rows: Sequence[Row]) -> str:
    """Return the median signed error of the mean latency by method, dataset and arrival rate."""
    rates = sorted({row["arrival_rate_per_min"] for row in rows})
    found: dict[tuple[str, str], dict[float, list[float]]] = {}
    for row in rows:
        cells = found.setdefault((row["method"], row["dataset"]), {})
        off = row["latency_s"]["mean"]["error_pct"]
        cells.setdefault(row["arrival_rate_per_min"], []).append(off)
    lines = [
        [*key, *(_error(float(np.median(of[r])), 0) if r in of else NONE for r in rates)]
        for key, of in found.items()
    ]
    return table(["method", "dataset", *(f"{rate:g}/min" for rate in rates)], lines, left=2)


def _error(value: float | None, digits: int = 1) -> str:
    return NONE if value is None else f"{_signed(value, digits)} %"


def _signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign, unless it rounds to zero."""
    shown = f"{value:+.{digits}f}"
    return shown[1:] if float(shown) == 0 else shown.replace("-", "−")


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share that was seen in `count` trials.

    Source: E. B. Wilson, "Probable Inference", JASA 22:158, 1927.
    """
    if count < 1:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.975)
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / 2 / count) ** 2)
    return middle - half, middle + half


# Plots


def _logs_figure(logs: Sequence[LogEvidence]) -> Figure:
    """Draw e2e, predicted over measured, of the requests that were not fitted: a panel a log."""
    figure, panels = _panels(len(logs))
    for panel, of in zip(panels, logs, strict=True):
        measured, predicted, _ = latencies(of.calibration)["e2e_s"]
        unseen = slice(of.calibration.fitted, None)
        ends = (0.0, 1.05 * float(max(measured[unseen].max(), predicted[unseen].max())))
        _diagonal(panel, ends, "end-to-end latency of a request, s")
        panel.scatter(measured[unseen], predicted[unseen], s=16, color=PREDICTED, alpha=0.6, lw=0)
        panel.set_title(of.log.title)
    return figure


def _runs_figure(rows: Sequence[Row], what: str) -> Figure:
    """Draw latency or accuracy of every cell, predicted over measured: a panel a method."""
    figure, panels = _panels(2)
    points = [
        row["latency_s"]["mean"]
        if what == "latency"
        else {side: 100 * row["accuracy"][side] for side in ("measured", "predicted")}
        for row in rows
    ]
    values = [point[side] for point in points for side in ("measured", "predicted")]
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    for panel, method in zip(panels, (OBLIVIOUS, ADAPTIVE), strict=True):
        if what == "latency":
            _diagonal(panel, (0.8 * min(values), 1.25 * max(values)), "mean latency, s")
            panel.set(xscale="log", yscale="log")
        else:
            _diagonal(panel, (min(values) - 6, min(100.0, max(values) + 4)), "accuracy, %")
        panel.set_title("Adaptive router" if method == ADAPTIVE else "Oblivious router: fitted")
        for row, point in zip(rows, points, strict=True):
            if row["method"] != method:
                continue
            colour = COLOURS[datasets.index(row["dataset"]) % len(COLOURS)]
            panel.scatter(point["measured"], point["predicted"], s=20, color=colour, zorder=3)
            if what == "accuracy":  # the sampling error of the measured share
                low, high = wilson_interval(point["measured"] / 100, row["num_queries"] or 0)
                panel.plot([100 * low, 100 * high], [point["predicted"]] * 2, color=RULE, lw=1)
        for index, dataset in enumerate(datasets):
            place = (0.03, 0.94 - 0.06 * index)
            panel.text(*place, dataset, transform=panel.transAxes, color=COLOURS[index % 7])
    return figure


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * count, 4.6), layout="constrained")
    return figure, np.atleast_1d(figure.subplots(1, count)).tolist()


def _diagonal(panel: Axes, ends: tuple[float, float], what: str) -> None:
    panel.plot(ends, ends, color=QUIET, lw=0.8, zorder=1)
    panel.set(xlim=ends, ylim=ends, aspect="equal")
    panel.set(xlabel=f"measured {what}", ylabel=f"predicted {what}")
    panel.grid(color=RULE, lw=0.5)
    panel.set_axisbelow(True)
