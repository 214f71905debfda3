"""Tracking of trainings and boards: JSON lines, Weights & Biases and TensorBoard."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from inframind_gym.errors import ConfigError, require, unknown
from inframind_gym.evaluation.tables import Table
from inframind_gym.files import parse_json, replace_text
from inframind_gym.progress import say

if TYPE_CHECKING:
    from inframind_gym.evaluation.board import Results

TRACKERS: Final = ("wandb", "tensorboard")
PROJECT: Final = "inframind"
METRICS: Final = "metrics.jsonl"
STEP: Final = "step"
EVENTS: Final = "tensorboard"  # of a board, in the results folder
REPORT: Final = "report.html"  # in the results folder
_RUN: Final = "wandb_run"  # file with the id of the W&B run that a later start continues


def trackers_of(option: str) -> list[str]:
    """Return the trackers of an option `--track`: one of TRACKERS, or several with commas.

    Raises:
        ConfigError: One is unknown, or not installed.
    """
    names = [name.strip() for name in option.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(unknown("tracker", name, TRACKERS))
        require(name, f"--track {name}", "track")
    return names


class Tracker:
    """A writer of metrics; a context manager.

    Args:
        out: Folder of the JSON lines (``metrics.jsonl``) and of the other writers' files.
        config: JSON values that W&B records.
        to: "wandb", offline unless WANDB_MODE says otherwise; "tensorboard", its event files in
            `out`; or both.
        name: Of the run on W&B; None: that of the folder.

    Raises:
        ConfigError: A package that is asked for is not installed, or `out` cannot be made.
    """

    def __init__(
        self, out: Path, config: Mapping[str, Any], to: Sequence[str] = (), name: str | None = None
    ) -> None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{out}: cannot be written: {error.strerror}.") from None
        self.path = out / METRICS
        self._waiting: list[dict[str, float]] = []
        self._wandb: Any = None
        self._events: Any = None
        if "wandb" in to:
            run_id = out / _RUN
            if not run_id.is_file():
                run_id.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
            self._api = require("wandb", "W&B", "track")
            self._wandb = self._api.init(
                project=PROJECT,
                name=name or out.name,
                id=run_id.read_text(encoding="utf-8"),
                resume="allow",
                dir=str(out),
                mode=os.environ.get("WANDB_MODE", "offline"),
                config=dict(config),
            )
        if "tensorboard" in to:
            self._open_events()

    def _open_events(self) -> None:
        """Begin a file of events; TensorBoard itself writes them, without torch."""
        writer = require("tensorboard.summary", "TensorBoard", "track").Writer
        self._events = writer(str(self.path.parent))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics at a step; `flush` writes them."""
        self._waiting.append({STEP: step, **metrics})

    def flush(self) -> None:
        """Write the recorded metrics."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in self._waiting)
        for line in self._waiting:
            if self._wandb is not None:
                metrics = {name: value for name, value in line.items() if name != STEP}
                self._wandb.log(metrics, step=int(line[STEP]))
            self._add_events(line)
        self._waiting.clear()
        if self._events is not None:
            self._events.flush()

    def _add_events(self, line: Mapping[str, float]) -> None:
        for name, value in line.items():
            if self._events is not None and name != STEP:
                self._events.add_scalar(name, value, int(line[STEP]))

    def show(
        self, tables: Sequence[Table], means: Mapping[str, float], page: Path | None = None
    ) -> None:
        """Add tables, the results of the whole and a page of HTML to the run on W&B."""
        if self._wandb is None:
            return
        self._wandb.summary.update(dict(means))
        shown: dict[str, Any] = {
            table.title: self._api.Table(
                columns=[heading.replace("\n", " ") or "#" for heading in table.headings],
                data=[list(row) for row in table.rows],
            )
            for table in tables
        }
        if page is not None:
            text = page.read_text(encoding="utf-8")
            shown["report"] = self._api.Html(text, inject=False)
            self._wandb.save(str(page), base_path=str(page.parent), policy="now")
        self._wandb.log(shown)

    def rewind(self, step: int) -> None:
        """Drop what was written after a step: a resumed training writes it again."""
        kept = []
        if self.path.is_file():
            kept = [line for line in read_metrics(self.path) if line[STEP] <= step]
            replace_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        if self._events is not None:
            self._events.close()
            remove_events(self.path.parent)
            self._open_events()
            for line in kept:
                self._add_events(line)

    def close(self) -> None:
        """Write what is left and end."""
        self.flush()
        if self._events is not None:
            self._events.close()
        if self._wandb is not None:
            self._wandb.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_events(folder: Path) -> None:
    """Remove TensorBoard's files of events."""
    for path in folder.glob("events.out.tfevents.*"):
        path.unlink()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the JSON lines of a tracker, without an incomplete last line."""
    lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    return [dict(parse_json(line, f"{path}:{i}")) for i, line in enumerate(lines, start=1)]


def track_board(results: Results, board: dict[str, Any], trackers: Sequence[str]) -> None:
    """Log a leaderboard: means over the load, and for W&B tables and a report.

    Metrics are POLICY/METRIC/SERIES: the series "mean" over all cells, at step 0, and of families
    with a load the averages along it ("by_rate", "by_load"), whose steps are the load. Steps are
    whole numbers: shares of the capacity, and rates that are not whole, are in hundredths.
    TensorBoard's events go into the results folder's own folder `tensorboard`, in place of earlier
    ones.
    """
    from inframind_gym.evaluation.board import leaderboard_tables
    from inframind_gym.evaluation.report.page import write_report

    folder, header, names = results.folder / EVENTS, results.header, results.measured
    remove_events(folder)
    (folder / METRICS).unlink(missing_ok=True)
    means = {
        f"{row['policy']}/{name}/mean": row[name] for row in board["ranking"] for name in names
    }
    by_step: dict[int, dict[str, float]] = {0: dict(means)}
    for axis in results.family.axes:
        if axis.read is float:  # the load
            rows = board[axis.table]
            rates = axis.name.endswith("_per_min")
            whole = rates and all(float(row[axis.name]).is_integer() for row in rows)
            for row in rows:
                at = by_step.setdefault(round(row[axis.name] * (1 if whole else 100)), {})
                at |= {f"{row['policy']}/{name}/{axis.table}": row[name] for name in names}
    page = results.folder / REPORT if "wandb" in trackers else None
    if page is not None:
        write_report([results.folder], page)
    config = {"suite": header["suite"], "settings": header["settings"]}
    with Tracker(folder, config, trackers, header["suite"]["name"]) as tracker:
        for step, metrics in sorted(by_step.items()):
            tracker.log(step, metrics)
        tracker.flush()
        tracker.show(leaderboard_tables(board), means, page)
    where = {"tensorboard": f"tensorboard --logdir {folder}"}
    where["wandb"] = f"W&B: project {PROJECT}; report: {page}"
    say(f"tracked: {'; '.join(where[name] for name in trackers)}")
