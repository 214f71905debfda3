"""Compare the simulator with logs and measured runs: ``python -m benchmarks fidelity DATA``.

Fills the tables of ``docs/fidelity.md`` between their marks, draws its plots, and writes the tables
that are too long for a page beside it: ``fidelity/logs.csv``, ``constants.csv``, ``cells.csv``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import numpy as np
import typer

from benchmarks.fit.measured_runs import ERRORS, cell_rows, read_runs, summarise
from benchmarks.fit.replay import DEFAULT_SEEDS, load_constants, predict
from benchmarks.pages import NONE, QUIET, RULE, csv_text, refresh, table
from inframind_gym.calibration.report import FIGURES, METRICS, latencies, log_report
from inframind_gym.calibration.request_log import read_log
from inframind_gym.calibration.server_card import Calibration, Limits, calibrate
from inframind_gym.errors import ConfigError, require
from inframind_gym.evaluation.cli import app
from inframind_gym.files import replace_text
from inframind_gym.progress import say
from inframind_gym.simulator.estimate.roofline import Server, find_architecture, find_gpu, hardware
from inframind_gym.simulator.server.open_loop import replay_requests
from inframind_gym.simulator.server.state import card_record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
PAGE: Final = "fidelity.md"
POOL: Final = "b200-2gpu"  # the servers of the measured runs
FIT: Final = Path(__file__).parent / "fit" / "fitted" / f"{POOL}.json"
LOG_LIMITS: Final = (1.0, 3.0, 3.0)  # percent: mean e2e, worst e2e percentile, mean TTFT
MOST_CONSTANTS: Final = 8  # fitted to one log
COLD_LIMIT: Final = 15.0  # percent, mean e2e of an estimated card
# Largest median errors: mean latency %, p95 latency %, accuracy points.
METHODS: Final = {
    "mas": (5.0, 7.0, 1.6),
    "inframind": (10.0, 12.0, 2.0),
    "moa": (12.0, 18.0, 3.0),
    "gptswarm": (12.0, 15.0, 3.0),
}
NAMED: Final = 6  # worst cells, listed on the page
SIDES: Final = ("measured", "predicted")
_MET: Final = {True: "yes", False: "**no**"}
COLOURS: Final = dict(zip(METHODS, ("#0072b2", "#d55e00", "#009e73", "#aa4499"), strict=True))


class Log(NamedTuple):
    """Facts about a request log that are not in it."""

    title: str
    limits: Limits  # launch options of the server
    model: str  # in `inframind_gym/simulator/estimate/models.yaml`
    gpu: str
    tensor_parallel: int


# From LLMServingSim's validation page (https://github.com/casys-kaist/LLMServingSim, docs), which
# publishes the logs with their run's meta.json. The caches of the RTX PRO 6000 never filled up.
LOGS: Final = {
    "RTX4090_Llama-3.1-8B.jsonl": Log(
        *("Llama-3.1-8B, RTX 4090", Limits(256, 2048, 2588), "llama-3.1-8b", "RTX-4090", 1)
    ),
    "RTXPRO6000_Llama-3.1-8B.jsonl": Log(
        *("Llama-3.1-8B, RTX PRO 6000", Limits(128, 2048), "llama-3.1-8b", "RTX-PRO-6000", 1)
    ),
    "RTXPRO6000_Qwen3-32B.jsonl": Log(
        *("Qwen3-32B, 2 x RTX PRO 6000", Limits(128, 2048), "qwen3-32b", "RTX-PRO-6000", 2)
    ),
}


class LogEvidence(NamedTuple):
    """A request log, the card fitted to its first part, and how well the rest is predicted."""

    log: Log
    calibration: Calibration
    figures: dict[str, Any]  # log_report
    cold_pct: float  # error of the mean e2e under a card estimated from the launch options


@app.command()
def fidelity(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="Folder with vllm_traces/*.jsonl and measured_runs.json."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of fidelity.md and fidelity/.")] = Path("docs"),
    seeds: Annotated[
        int, typer.Option(min=1, help="Episodes to simulate for every cell.")
    ] = DEFAULT_SEEDS,
) -> None:
    """Compare the simulator with request logs and measured runs; fill docs/fidelity.md."""
    page, folder = out / PAGE, out / "fidelity"
    if not page.exists():
        raise ConfigError(f"{page} does not exist: its prose is written by hand.")
    require("matplotlib", "drawing figures", "plot")
    logs = [log_evidence(data / "vllm_traces" / name, log) for name, log in LOGS.items()]
    cells = read_runs(data / "measured_runs.json")
    say(f"replaying {len(cells)} measured cells, {seeds} episodes each ...")
    constants = load_constants(POOL, [cell.dataset for cell in cells])
    rows = cell_rows(cells, predict(cells, constants, seeds))
    found = tables(logs, rows, json.loads(FIT.read_text("utf-8")))
    figures = {folder / "logs.svg": partial(_logs_figure, logs)}
    figures[folder / "runs.svg"] = partial(_runs_figure, rows)
    refresh(page, found, figures)
    for name, records in files_of(logs, rows).items():
        short = [
            {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in record.items()}
            for record in records
        ]
        replace_text(folder / f"{name}.csv", csv_text(short))
    print(f"{found['targets']}\n\n{page} and its folder")


def log_evidence(path: Path, log: Log) -> LogEvidence:
    """Calibrate on the first half of a log, and estimate its server without it."""
    say(f"calibrating on {path.name} ...")
    read = read_log(path)
    calibration = calibrate(read, log.limits)
    for warning in (figures := log_report(calibration))["warnings"]:
        say(f"warning: {path.name}: {warning}")
    # The card of `inframind pool new`.
    gpu, limits = find_gpu(log.gpu)[1], log.limits
    options = (limits.max_num_seqs, limits.max_num_batched_tokens, 8192)
    server = Server(find_architecture(log.model), gpu, log.tensor_parallel, *options)
    card = card_record(server.card(1e9 * gpu.memory_gb * hardware().factors.memory_share))
    requests = (read.arrival_s, read.prompt_tokens, read.output_tokens)
    served = replay_requests(card, np.zeros(len(read), np.int64), *requests)
    predicted_s = np.mean(served["finish_s"] - read.arrival_s)
    cold_pct = 100.0 * (predicted_s / np.mean(read.last_token_s - read.arrival_s) - 1.0)
    return LogEvidence(log, calibration, figures, float(cold_pct))


# Tables


def tables(
    logs: Sequence[LogEvidence], rows: Sequence[Row], fit: Mapping[str, Any]
) -> dict[str, str]:
    """Return the tables of the page by name, as markdown."""
    left_out = fit.get("left_out") or {}
    return {
        "targets": table(
            ["of", "", "mean latency", "tail", "TTFT, or accuracy", "all met"],
            [*_log_targets(logs), *_run_targets(rows, left_out)],
            left=2,
        ),
        "failures": table(
            ["cell", "mean latency, s", "error", "in sd", "accuracy, %", "error"], _failures(rows)
        ),
    }


def perfect_model_pct(rows: Sequence[Row], samples: int = 4000) -> float:
    """Return the expected median error of the mean latency, percent, of a perfect model."""
    sd = np.array([row["episode_sd"] for row in rows])
    errors = np.abs(np.random.default_rng(0).standard_normal((samples, len(sd))) * sd)
    return float(100.0 * np.median(errors, axis=1).mean())


def _log_targets(logs: Sequence[LogEvidence]) -> Iterator[list[str]]:
    for of in logs:
        unseen, count = of.figures["unseen"], of.figures["parameters"]["count"]
        e2e = [abs(unseen["e2e_s"][name]["error_pct"]) for name in FIGURES]
        reached = (e2e[0], max(e2e[1:]), abs(unseen["ttft_s"]["mean"]["error_pct"]))
        name = f"unseen half; {count} constants (≤ {MOST_CONSTANTS})"
        row = _judged(of.log.title, name, reached, LOG_LIMITS, ("%", "%", "%"), 2)
        yield row if count <= MOST_CONSTANTS else [*row[:-1], _MET[False]]
    for of in logs:
        name, cold = "cold, launch options alone", [abs(of.cold_pct)]
        row = _judged(of.log.title, name, cold, [COLD_LIMIT], ["%"])
        yield [*row[:-1], NONE, NONE, row[-1]]


def _run_targets(
    rows: Sequence[Row], left_out: Mapping[str, Mapping[str, Row]]
) -> Iterator[list[str]]:
    sets: dict[str, Mapping[str, Row]] = {"rates of the fit": summarise(rows)}
    sets |= {f"{rate}/min left out of the fit": of for rate, of in left_out.items()}
    for method, limits in METHODS.items():
        for name, of in ((name, found[method]) for name, found in sets.items() if method in found):
            reached = [of[f"{error}_median"] for error in ERRORS]
            title = f"`{method}`, median of {of['cells']} cells"
            yield _judged(title, name, reached, limits, ("%", "%", "points"))
        own = [row for row in rows if row["method"] == method]
        if len({row["arrival_rate_per_min"] for row in own}) > 1:  # one rate is all fitted
            name, chance = "a perfect model: chance of one episode", [perfect_model_pct(own)]
            row = _judged(f"`{method}`", name, chance, limits[:1], ["%"])
            yield [*row[:-1], NONE, NONE, NONE]
        if not any(method in of for of in left_out.values()):
            limit_texts = [f"{NONE} (≤ {limit:g})" for limit in limits]
            yield [f"`{method}`", "a rate left out of the fit", *limit_texts, "not tested"]


def _judged(
    title: str,
    name: str,
    reached: Sequence[float | None],
    limits: Sequence[float],
    units: Sequence[str],
    digits: int = 1,
) -> list[str]:
    """Return a row: figures with their targets, bold where missed, and whether all are met."""
    texts, all_met = [], True
    for value, limit, unit in zip(reached, limits, units, strict=True):
        met = value is not None and value <= limit
        shown = NONE if value is None else f"{value:.{digits}f} {unit}"
        texts.append(f"{shown if met or value is None else f'**{shown}**'} (≤ {limit:g})")
        all_met &= met
    return [title, name, *texts, _MET[all_met]]


def _failures(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield the worst cells: by mean latency, or by accuracy beyond its sampling error."""

    def badness(row: Row) -> float:
        low, high = accuracy_interval(row)
        beyond = max(low - row["accuracy_predicted"], row["accuracy_predicted"] - high, 0.0)
        off = abs(math.log1p(row["mean_error_pct"] / 100.0))
        return float(max(off, 5.0 * beyond))  # 6 points weigh as much as a third

    for row in sorted(rows, key=badness, reverse=True)[:NAMED]:
        name = f"`{row['method']}` {row['dataset']}, {row['arrival_rate_per_min']:g}/min"
        if row["cost_rate"] is not None:
            name += f", cost rate {row['cost_rate']:g}"
        elif row["budget_s"] is not None:
            name += f", budget {row['budget_s']:g}"
        off, sd = row["mean_error_pct"], row["episode_sd"]
        yield [
            name,
            f"{row['mean_measured']:,.0f} → {row['mean_predicted']:,.0f}",
            f"{_signed(off, 0)} %",
            _signed(off / 100.0 / sd) if sd else NONE,
            f"{100 * row['accuracy_measured']:.1f} → {100 * row['accuracy_predicted']:.1f}",
            _signed(100.0 * (row["accuracy_predicted"] - row["accuracy_measured"])),
        ]


def _signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign, unless it rounds to zero."""
    shown = f"{value:+.{digits}f}"
    return shown[1:] if float(shown) == 0 else shown.replace("-", "−")


def accuracy_interval(row: Row) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a cell's measured accuracy."""
    from scipy.stats import binomtest

    solved, queries = round(row["accuracy_measured"] * row["num_queries"]), row["num_queries"]
    low, high = binomtest(solved, queries).proportion_ci(method="wilson")
    return low, high


# Files beside the page


def files_of(logs: Sequence[LogEvidence], rows: Sequence[Row]) -> dict[str, Sequence[Row]]:
    """Return the records of the files beside the page, by name."""
    of_logs: list[Row] = []
    for of in logs:
        for part, metric in product(("unseen", "all"), METRICS):
            figures = of.figures[part][metric]
            for name in FIGURES:
                key = {"log": of.log.title, "requests": part, "metric": metric, "figure": name}
                of_logs.append({**key, **figures[name], "mae_pct": figures["mae_pct"]})
    constants: list[Row] = [
        {"log": of.log.title, "constant": name, "value": value}
        for of in logs
        for name, value in of.calibration.parameters.items()
    ]
    return {"logs": of_logs, "constants": constants, "cells": rows}


# Plots


def _logs_figure(logs: Sequence[LogEvidence]) -> Figure:
    """Draw e2e, predicted over measured, of the requests that were not fitted: a panel a log."""
    figure, panels = _panels(len(logs))
    for panel, of in zip(panels, logs, strict=True):
        measured, predicted, _ = latencies(of.calibration)["e2e_s"]
        unseen = slice(of.calibration.fitted, None)
        both = np.concatenate([measured[unseen], predicted[unseen]])
        ends = (0.95 * float(both.min()), 1.03 * float(both.max()))
        _diagonal(panel, ends, "end-to-end latency, s")
        panel.scatter(measured[unseen], predicted[unseen], s=14, color="#0969da", alpha=0.6, lw=0)
        panel.set_title(of.log.title)
    return figure


def _runs_figure(rows: Sequence[Row]) -> Figure:
    """Draw latency and accuracy of every cell, predicted over measured, in its method's colour."""
    figure, (latency, accuracy) = _panels(2)
    values = [row[f"mean_{side}"] for row in rows for side in SIDES]
    _diagonal(latency, (0.8 * min(values), 1.25 * max(values)), "mean latency, s")
    latency.set(xscale="log", yscale="log")
    shares = [100.0 * row[f"accuracy_{side}"] for row in rows for side in SIDES]
    _diagonal(accuracy, (min(shares) - 6.0, 102.0), "accuracy, %")
    for row in rows:
        colour = COLOURS[row["method"]]
        style: dict[str, Any] = {"s": 16, "color": colour, "alpha": 0.75, "lw": 0, "zorder": 3}
        latency.scatter(*(row[f"mean_{side}"] for side in SIDES), **style)
        measured, predicted = (100 * row[f"accuracy_{side}"] for side in SIDES)
        low, high = accuracy_interval(row)
        accuracy.plot([100 * low, 100 * high], [predicted] * 2, color=RULE, lw=0.8)
        accuracy.scatter(measured, predicted, **style)
    for index, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        place = (0.03, 0.94 - 0.06 * index)
        latency.text(*place, method, transform=latency.transAxes, color=COLOURS[method])
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
