"""A run on Weights & Biases or TensorBoard: its board as numbers and tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from inframind_gym.benchmark.cells import Axis
from inframind_gym.benchmark.report.page import write_report
from inframind_gym.benchmark.report.replay import path_of
from inframind_gym.benchmark.results import Results
from inframind_gym.benchmark.tables import leaderboard_sheets, to_markdown
from inframind_gym.errors import require
from inframind_gym.progress import say

PROJECT: Final = "inframind"
REPORT: Final = "report.html"  # in the results folder
EVENTS: Final = "tensorboard"  # in the results folder
MEAN: Final = "mean"


class Score(NamedTuple):
    """A point of a series: a metric of a policy.

    Attributes:
        policy: Name of the policy.
        metric: Name of the metric.
        series: "mean" over all cells; an average over a load, e.g. "by_rate"; or the coordinates
            of cells without their load, e.g. "mixed/100".
        load: Load of the cells in the unit of its axis; 0 where there is none.
        value: As a leaderboard has it: shares between 0 and 1.
        low: Lower end of the 95 % interval.
        high: Upper end of the 95 % interval.
    """

    policy: str
    metric: str
    series: str
    load: float
    value: float
    low: float
    high: float


def load_axis(results: Results) -> Axis | None:
    """Return the coordinate of a run's cells that is a load: a number, but for a budget."""
    return next((axis for axis in results.family.suite.cell.axes if axis.read is float), None)


def scores(results: Results, board: Mapping[str, Any]) -> Iterator[Score]:
    """Yield the means of a leaderboard, its averages over the load, and its cells.

    Points of a series come in the order of their loads.

    Args:
        results: The run.
        board: Its leaderboard.
    """
    axes, load = results.family.suite.cell.axes, load_axis(results)
    metrics = results.layout.measured(results.family.metrics)
    others = [axis.name for axis in axes if axis is not load]
    found = [(MEAN, 0.0, row) for row in board["ranking"]]
    if load:
        found += [(load.table, row[load.name], row) for row in board[load.table]]
    cells = [
        (path_of(row[name] for name in others), row[load.name] if load else 0.0, row)
        for row in board["rows"]
    ]
    found += sorted(cells, key=lambda one: one[1])
    for series, at, row in found:
        for name in metrics:
            yield Score(row["policy"], name, series, at, row[name], *row[f"{name}_ci95"])


def log_to_wandb(results: Results, board: Mapping[str, Any]) -> None:
    """Log a leaderboard and a report; offline, unless the variable WANDB_MODE says otherwise.

    The run's summary has POLICY/METRIC, means over cells. Tables are those of the leaderboard and
    "scores", all of `scores`. Plots show the main metrics over the load; the report is a page and a
    file of the run.

    Args:
        results: The run.
        board: Its leaderboard.

    Raises:
        ConfigError: The package wandb is not installed.
    """
    wandb = require("wandb", "--wandb", "track")
    page = results.folder / REPORT
    write_report([results.folder], page)
    header, points = results.header, list(scores(results, board))
    run = wandb.init(
        project=PROJECT,
        name=header["suite"]["name"],
        dir=str(results.folder),
        config={"suite": header["suite"], "settings": header["settings"]},
        mode=os.environ.get("WANDB_MODE", "offline"),
    )
    for one in points:
        if one.series == MEAN:
            run.summary[f"{one.policy}/{one.metric}"] = one.value
    tables = {
        sheet.title: wandb.Table(
            columns=[heading.replace("\n", " ") or "#" for heading in sheet.headings],
            data=[list(row) for row in sheet.rows],
        )
        for sheet in leaderboard_sheets(dict(board))
    }
    tables["scores"] = wandb.Table(columns=list(Score._fields), data=[list(one) for one in points])
    shown = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
    run.log({**tables, **_wandb_plots(wandb, results, points), "report": shown})
    run.save(str(page), base_path=str(results.folder), policy="now")
    run.finish()
    say(f"W&B: {run.name} of the project {PROJECT}; report: {page}")


def _wandb_plots(wandb: Any, results: Results, points: Sequence[Score]) -> dict[str, Any]:
    """Return plots of the main metrics over the load, METRIC/SERIES; none over a single load."""
    load, plots = load_axis(results), {}
    if load is None or len({one.load for one in points if one.series == load.table}) < 2:
        return {}
    for name in _main(results):
        key = f"{name}/{load.table}"
        table = wandb.Table(
            columns=[load.name, name, "policy"],
            data=[
                [one.load, one.value, one.policy]
                for one in points
                if (one.metric, one.series) == (name, load.table)
            ],
        )
        plots[key] = wandb.plot.line(table, load.name, name, stroke="policy", title=key)
    return plots


def log_to_tensorboard(results: Results, board: Mapping[str, Any]) -> None:
    """Write a leaderboard into the results folder as event files, in place of earlier ones.

    A policy is a run, a series of `scores` its tag METRIC/SERIES. Steps are loads; they are whole
    numbers, so those of shares of the capacity, and of rates that are not whole, are in hundredths.
    HParams lists means of the main metrics, and Text the tables of the leaderboard.

    Args:
        results: The run.
        board: Its leaderboard.

    Raises:
        ConfigError: The package tensorboard is not installed.
    """
    hparams, scalar, text = (  # of the package itself: this needs no torch
        require(f"tensorboard.plugins.{name}.summary_v2", "--tensorboard", "track")
        for name in ("hparams", "scalar", "text")
    )
    folder = results.folder / EVENTS
    for old in folder.rglob("events.out.tfevents.*"):
        old.unlink()
    suite, points = results.header["suite"]["name"], list(scores(results, board))
    metrics = [hparams.Metric(f"{name}/{MEAN}", display_name=name) for name in _main(results)]
    columns = [hparams.HParam(name) for name in ("suite", "policy")]
    tables = [
        text.text_pb(f"board/{i:02} {sheet.title}", to_markdown(sheet))
        for i, sheet in enumerate(leaderboard_sheets(dict(board)), start=1)
    ]
    _write(folder, [(0, one) for one in (hparams.hparams_config_pb(columns, metrics), *tables)])
    scale = _steps_per_unit(results, points)
    for policy in results.policies:
        about = hparams.hparams_pb({"suite": suite, "policy": policy}, f"{suite}: {policy}")
        own = [
            (round(scale * one.load), scalar.scalar_pb(f"{one.metric}/{one.series}", one.value))
            for one in points
            if one.policy == policy
        ]
        _write(folder / quote(policy, safe=":"), [(0, about), *own])
    say(f"TensorBoard: tensorboard --logdir {folder}")


def _main(results: Results) -> list[str]:
    """Return the names of the metrics that come first."""
    measured = results.layout.measured(results.family.metrics)
    return [name for name in results.family.compared if name in measured]


def _steps_per_unit(results: Results, points: Iterable[Score]) -> int:
    """Return the steps of TensorBoard in a unit of load."""
    axis = load_axis(results)
    rate = axis is not None and axis.name.endswith("_per_min")
    return 1 if rate and all(one.load.is_integer() for one in points) else 100


def _write(folder: Path, summaries: Iterable[tuple[int, Any]]) -> None:
    """Write summaries with their steps as a run of TensorBoard."""
    module = "tensorboard.summary.writer.event_file_writer"
    writer = require(module, "--tensorboard", "track").EventFileWriter(str(folder))
    event = require("tensorboard.compat.proto.event_pb2", "--tensorboard", "track").Event
    for step, summary in summaries:
        writer.add_event(event(wall_time=time.time(), step=step, summary=summary))
    writer.close()
