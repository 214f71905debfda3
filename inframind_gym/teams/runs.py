"""Runs and their events in one SQLite file, written at once and readable while they run.

Two runs of a team can be compared. Options and tables of the teams' commands are at the end.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import typer

from inframind_gym.errors import ConfigError, InfraMindError, unknown

DEFAULT_FILE: Final = Path("results/teams.sqlite")
Status = Literal["running", "complete", "failed", "interrupted"]
_BUSY_S: Final = 30.0  # to wait for another process that writes
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, team TEXT NOT NULL, status TEXT NOT NULL, settings TEXT NOT NULL,
    summary TEXT, started_s REAL NOT NULL, finished_s REAL, process TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    run_id TEXT NOT NULL REFERENCES runs, seq INTEGER NOT NULL, time_s REAL NOT NULL,
    kind TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    run_id: str  # eight hexadecimal digits
    team: str  # "assignment", "token-budget", …
    status: Status  # "interrupted" where its process has ended early
    settings: dict[str, Any]
    summary: dict[str, Any] | None  # None until it has finished
    started_s: float  # seconds since 1970
    finished_s: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run."""

    seq: int  # its number in the run, from 1
    time_s: float  # seconds since 1970
    kind: str  # e.g. "llm_attempt"
    data: dict[str, Any]


class RunStore:
    """A file of runs, made where it is missing. Several threads and processes may use it at once.

    What cannot be opened, or is missing and `must_exist`, is a `ConfigError`.
    """

    def __init__(self, path: str | Path = DEFAULT_FILE, *, must_exist: bool = False) -> None:
        self.path = Path(path)
        if must_exist and not self.path.is_file():
            raise ConfigError(
                f"{self.path}: no such file. `inframind team run …` writes one; name another with "
                "--runs FILE."
            )
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{self.path}: cannot be used as a file of runs ({error}). Name another with "
                "--runs FILE."
            ) from None

    def create_run(self, team: str, settings: Mapping[str, Any]) -> str:
        """Start a run and return its name."""
        run_id = secrets.token_hex(4)
        process = json.dumps([platform.node(), os.getpid(), _start(os.getpid())])
        self._execute(
            "INSERT INTO runs (run_id, team, status, settings, started_s, process) "
            "VALUES (?, ?, 'running', ?, ?, ?)",
            *(run_id, team, _text(settings), time.time(), process),
        )
        return run_id

    def append(self, run_id: str, kind: str, data: Mapping[str, Any]) -> int:
        """Write an event at once and return its number in the run."""
        rows = self._execute(
            "INSERT INTO events SELECT ?1, COALESCE(MAX(seq), 0) + 1, ?2, ?3, ?4 FROM events "
            "WHERE run_id = ?1 RETURNING seq",
            *(run_id, time.time(), kind, _text(data)),
        )
        return int(rows[0][0])

    def finish(self, run_id: str, status: Status, summary: Mapping[str, Any]) -> None:
        """End a run."""
        self._execute(
            "UPDATE runs SET status = ?, summary = ?, finished_s = ? WHERE run_id = ?",
            *(status, _text(summary), time.time(), run_id),
        )

    def get_run(self, run_id: str) -> Run:
        """Return a run by its name or its beginning; a `ConfigError` unless there is one."""
        query = "SELECT * FROM runs WHERE substr(run_id, 1, ?) = ?"
        rows = self._execute(query, len(run_id), run_id) if run_id else []
        if len(rows) != 1:
            known = [run.run_id for run in self.list_runs(most=20)]
            more = f"{len(rows)} runs begin with {run_id!r}. Give more of its name."
            raise ConfigError(f"{self.path}: {more if rows else unknown('run', run_id, known)}")
        return _run(rows[0])

    def list_runs(self, team: str | None = None, most: int = 1000) -> list[Run]:
        """Return the runs of a team or of all, the newest first."""
        rows = self._execute(
            "SELECT * FROM runs WHERE ?1 IS NULL OR team = ?1 "
            "ORDER BY started_s DESC, rowid DESC LIMIT ?2",
            *(team, most),
        )
        return [_run(row) for row in rows]

    def events(self, run_id: str, after_seq: int = 0) -> list[Event]:
        """Return the events of a run whose number is greater than `after_seq`, in order."""
        rows = self._execute(
            "SELECT seq, time_s, kind, data FROM events WHERE run_id = ? AND seq > ? ORDER BY seq",
            *(run_id, after_seq),
        )
        return [Event(seq, time_s, kind, json.loads(data)) for seq, time_s, kind, data in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _execute(self, command: str, *values: Any) -> list[Any]:
        with self._lock:
            try:
                return self._database.execute(command, values).fetchall()
            except sqlite3.Error as error:
                raise InfraMindError(f"{self.path}: cannot be used ({error}).") from None


class RunLog:
    """One run of a store, to which services and teams write events.

    `finish` ends it with a summary. Used as a context manager, an exception ends it as "failed",
    Ctrl-C as "interrupted".
    """

    def __init__(self, store: RunStore, team: str, settings: Mapping[str, Any]) -> None:
        self.store, self.run_id = store, store.create_run(team, settings)
        self._is_finished = False

    def append(self, kind: str, data: Mapping[str, Any]) -> int:
        """Write an event at once and return its number."""
        return self.store.append(self.run_id, kind, data)

    def finish(self, status: Status, summary: Mapping[str, Any]) -> None:
        """End the run."""
        self.store.finish(self.run_id, status, summary)
        self._is_finished = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: object) -> None:
        if not self._is_finished and error is not None:
            status: Status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.finish(status, {"error": str(error) or str(kind)})


def _text(data: Mapping[str, Any]) -> str:
    text = json.dumps(dict(data), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()  # a model can answer half of a surrogate pair


def _start(pid: int) -> str | None:
    """Return when a process began, in ticks since boot; None where that cannot be read."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    return None


def _run(row: tuple[Any, ...]) -> Run:
    run_id, team, status, settings, summary, started_s, finished_s, process = row
    node, pid, *begun = json.loads(process)  # older files do not have when it began
    if status == "running" and node == platform.node():  # one of another machine counts as alive
        try:
            os.kill(pid, 0)
            if begun and _start(pid) not in (None, *begun):  # another has its number, as in a
                status = "interrupted"  # container that was made again
        except ProcessLookupError:
            status = "interrupted"
        except OSError:
            pass  # alive, and another user's
    parsed = None if summary is None else json.loads(summary)
    return Run(run_id, team, status, json.loads(settings), parsed, started_s, finished_s)


# Comparison

_LONG_KEYS: Final = ("output", "scores", "utilization")  # left out of a comparison's traces
# Kind of the events of a trace by team, and the two keys of a point of its curve.
FORMS: Final = {
    "assignment": ("iteration", ("iteration", "adjusted_reward")),
    "token-budget": ("trace", ("cumulative_tokens", "quality")),
}


def compare(store: RunStore, first: str, second: str) -> dict[str, Any]:
    """Return two runs of a team side by side, as JSON values.

    Returns:
        "runs" (name, team, status, settings), "numbers" (each number of the summaries that both
        have: a, b, and the change in % of a, None where a is 0), "traces" (steps of a and b in
        pairs), "curves" (a point a step: tokens and quality, or iteration and reward) and "cutoffs"
        (steps that cut an agent off, or ended the run) of each.
    """
    runs = [store.get_run(name) for name in (first, second)]
    teams = [run.team for run in runs]
    if teams[0] != teams[1] or teams[0] not in FORMS:
        raise ConfigError(
            f"run {runs[0].run_id} is of the team {teams[0]}, run {runs[1].run_id} of "
            f"{teams[1]}: compare two runs of {' or of '.join(FORMS)}. `inframind team list` "
            "shows them."
        )
    kind, curve = FORMS[teams[0]]
    traces = [
        [
            {key: value for key, value in event.data.items() if key not in _LONG_KEYS}
            for event in store.events(run.run_id)
            if event.kind == kind
        ]
        for run in runs
    ]
    numbers = {}
    before, after = (_numbers(run.summary or {}) for run in runs)
    for key, a in before.items():
        if key in after:
            change = None if a == 0 else 100.0 * (after[key] - a) / abs(a)
            numbers[key] = {"a": a, "b": after[key], "change_percent": change}
    keys = ("run_id", "team", "status", "settings")
    return {
        "runs": [{key: getattr(run, key) for key in keys} for run in runs],
        "numbers": numbers,
        "traces": [list(pair) for pair in zip_longest(*traces)],
        "curves": [[[step.get(key) for key in curve] for step in trace] for trace in traces],
        "cutoffs": [[step for step in trace if step.get("cutoff_reason")] for trace in traces],
    }


def _numbers(summary: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a summary by dotted keys."""
    numbers: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, dict):
            numbers |= _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            numbers[prefix + key] = value
    return numbers


# Commands of the teams

Runs = Annotated[Path, typer.Option("--runs", help="File of runs (SQLite).")]
ProviderName = Annotated[
    str,
    typer.Option(
        metavar="NAME|URL",
        help="simulated, openai, anthropic, or the base URL of an OpenAI-compatible server.",
    ),
]
