"""Tracking of trainings and boards: JSON lines, Weights & Biases and TensorBoard."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from inframind_gym.errors import ConfigError, require, unknown
from inframind_gym.evaluation.tables import Table, to_markdown
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
        config: JSON values that W&B notes.
        name: Of the run on W&B; None: that of the folder.
        wandb: Also to Weights & Biases; offline unless WANDB_MODE says otherwise.
        tensorboard: Also as TensorBoard's event files, in `out`.

    Raises:
        ConfigError: A package that is asked for is not installed.
    """

    def __init__(
        self,
        out: Path,
        config: Mapping[str, Any],
        *,
        name: str | None = None,
        wandb: bool = False,
        tensorboard: bool = False,
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.path = out / METRICS
        self._waiting: list[dict[str, float]] = []
        self._wandb: Any = None
        self._events: Any = None
        if wandb:
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
        if tensorboard:
            self._open_events(None if any(out.glob("events.out.tfevents.*")) else 0)

    def _open_events(self, start: int | None) -> None:
        """Begin a file of events; TensorBoard itself writes them, without torch.

        Readers take the first start of a session as the start of the run, and every later one as a
        restart, which makes them drop what they have read from that step on.
        """
        writer = _tensorboard("summary.writer.event_file_writer").EventFileWriter
        self._events = writer(str(self.path.parent))
        if start is not None:
            log = _tensorboard("compat.proto.event_pb2").SessionLog
            self._add(start, session_log=log(status=log.START))

    def _add(self, step: int, **content: Any) -> None:
        event = _tensorboard("compat.proto.event_pb2").Event
        self._events.add_event(event(wall_time=time.time(), step=step, **content))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Note metrics at a step; `flush` writes them."""
        self._waiting.append({STEP: step, **metrics})

    def flush(self) -> None:
        """Write what was noted."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in self._waiting)
        for line in self._waiting:
            step, metrics = int(line[STEP]), {k: v for k, v in line.items() if k != STEP}
            if self._wandb is not None:
                self._wandb.log(metrics, step=step)
            if self._events is not None:
                scalar_pb = _tensorboard("plugins.scalar.summary_v2").scalar_pb
                for name, value in metrics.items():
                    self._add(step, summary=scalar_pb(name, value))
        self._waiting.clear()
        if self._events is not None:
            self._events.flush()

    def show(
        self, tables: Sequence[Table], means: Mapping[str, float], page: Path | None = None
    ) -> None:
        """Write tables; for W&B also the results of the whole and a page of HTML."""
        if self._wandb is not None:
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
        if self._events is not None:
            text_pb = _tensorboard("plugins.text.summary_v2").text_pb
            for i, table in enumerate(tables, start=1):
                text = text_pb(f"board/{i:02} {table.title}", to_markdown(table))
                self._add(0, summary=text)

    def rewind(self, step: int) -> None:
        """Drop the lines after a step, which a training that is resumed writes again."""
        if self._events is not None:
            self._events.close()
            self._open_events(step + 1)
        if self.path.is_file():
            kept = [line for line in read_metrics(self.path) if line[STEP] <= step]
            replace_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))

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


def _tensorboard(module: str) -> Any:
    return require(f"tensorboard.{module}", "TensorBoard", "track")


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read the JSON lines of a tracker, without one that was cut off while it was written."""
    lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    return [dict(parse_json(line, f"{path}:{i}")) for i, line in enumerate(lines, start=1)]


def track_board(results: Results, board: dict[str, Any], trackers: Sequence[str]) -> None:
    """Log a leaderboard: means over the load, tables, and for W&B a report.

    Metrics are POLICY/METRIC/SERIES: the series "mean" over all cells, at step 0, and of families
    with a load the averages along it ("by_rate", "by_load"), whose steps are the load. Steps are
    whole numbers: shares of the capacity, and rates that are not whole, are in hundredths.
    TensorBoard's events go into the results folder's own folder `tensorboard`, in place of earlier
    ones.
    """
    from inframind_gym.evaluation.board import leaderboard_tables
    from inframind_gym.evaluation.report.page import write_report

    folder, header, names = results.folder / EVENTS, results.header, results.measured
    for old in (*folder.glob("events.out.tfevents.*"), folder / METRICS):
        old.unlink(missing_ok=True)
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
    chosen = dict.fromkeys(trackers, True)
    with Tracker(folder, config, name=header["suite"]["name"], **chosen) as tracker:
        for step, metrics in sorted(by_step.items()):
            tracker.log(step, metrics)
        tracker.flush()
        tracker.show(leaderboard_tables(board), means, page)
    where = {"tensorboard": f"tensorboard --logdir {folder}"}
    where["wandb"] = f"W&B: project {PROJECT}; report: {page}"
    say(f"tracked: {'; '.join(where[name] for name in trackers)}")
