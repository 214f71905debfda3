"""Runs and their events in one SQLite file, written at once and readable while they run."""

from __future__ import annotations

import json
import os
import platform
import secrets
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, get_args

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
_COLUMNS: Final = "run_id, team, status, settings, summary, started_s, finished_s, process"


@dataclass(frozen=True, slots=True)
class Run:
    """One run.

    Attributes:
        run_id: its name, eight hexadecimal digits.
        team: "assignment", "token-budget", …
        status: "interrupted" where the process has died without a word.
        settings: what it was started with.
        summary: what came of it; None until it has finished.
        started_s: start, seconds since 1970.
        finished_s: end, or None.
    """

    run_id: str
    team: str
    status: Status
    settings: dict[str, Any]
    summary: dict[str, Any] | None
    started_s: float
    finished_s: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    Attributes:
        seq: its number in the run, from 1.
        time_s: when it was written, seconds since 1970.
        kind: e.g. "llm_attempt".
        data: what happened.
    """

    seq: int
    time_s: float
    kind: str
    data: dict[str, Any]


class RunStore:
    """A file of runs. Several threads and processes may use it at once.

    Args:
        path: the file; it is made with its folders where it is missing.
        must_exist: refuse a file that is missing instead.

    Raises:
        ConfigError: the file cannot be opened, or is no file of runs.
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
        row = (run_id, team, "running", _text(settings), time.time(), _this_process())
        self._execute(
            "INSERT INTO runs (run_id, team, status, settings, started_s, process) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            row,
        )
        return run_id

    def append(self, run_id: str, kind: str, data: Mapping[str, Any]) -> int:
        """Write an event at once and return its number in the run."""
        rows = self._execute(
            "INSERT INTO events SELECT ?1, COALESCE(MAX(seq), 0) + 1, ?2, ?3, ?4 FROM events "
            "WHERE run_id = ?1 RETURNING seq",
            (run_id, time.time(), kind, _text(data)),
        )
        return int(rows[0][0])

    def finish(self, run_id: str, status: Status, summary: Mapping[str, Any]) -> None:
        """End a run.

        Raises:
            ConfigError: there is no such status or run.
        """
        if status not in get_args(Status):
            raise ConfigError(unknown("status", status, get_args(Status)))
        rows = self._execute(
            "UPDATE runs SET status = ?, summary = ?, finished_s = ? WHERE run_id = ? "
            "RETURNING run_id",
            (status, _text(summary), time.time(), run_id),
        )
        if not rows:
            raise ConfigError(f"{self.path}: there is no run {run_id!r}.")

    def get_run(self, run_id: str) -> Run:
        """Return a run by its name, or by the beginning of its name.

        Raises:
            ConfigError: there is none, or more than one.
        """
        wanted = f"SELECT {_COLUMNS} FROM runs WHERE substr(run_id, 1, ?) = ?"
        rows = self._execute(wanted, (len(run_id), run_id)) if run_id else []
        if len(rows) != 1:
            known = [run.run_id for run in self.list_runs(most=20)]
            more = f"{self.path}: {len(rows)} runs begin with {run_id!r}. Give more of its name."
            raise ConfigError(f"{self.path}: {unknown('run', run_id, known)}" if not rows else more)
        return _run(rows[0])

    def list_runs(self, team: str | None = None, most: int = 1000) -> list[Run]:
        """Return the runs of a team or of all, the newest first."""
        wanted = (
            f"SELECT {_COLUMNS} FROM runs WHERE ?1 IS NULL OR team = ?1 "
            "ORDER BY started_s DESC, rowid DESC LIMIT ?2"
        )
        return [_run(row) for row in self._execute(wanted, (team, most))]

    def events(self, run_id: str, after_seq: int = 0) -> list[Event]:
        """Return the events of a run whose number is greater than `after_seq`, in order."""
        rows = self._execute(
            "SELECT seq, time_s, kind, data FROM events WHERE run_id = ? AND seq > ? ORDER BY seq",
            (run_id, after_seq),
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

    def _execute(self, command: str, values: tuple[Any, ...]) -> list[Any]:
        with self._lock:
            try:
                return self._database.execute(command, values).fetchall()
            except sqlite3.Error as error:
                raise InfraMindError(f"{self.path}: cannot be used ({error}).") from None


class RunLog:
    """One run of a store, as services and teams write to it.

    Finishing comes with the context: "complete" needs a summary (`finish`), an exception makes the
    run "failed", Ctrl-C "interrupted".

    Args:
        store: the file of runs.
        team: name of the team.
        settings: what the run is started with.
    """

    def __init__(self, store: RunStore, team: str, settings: Mapping[str, Any]) -> None:
        self.store = store
        self.run_id = store.create_run(team, settings)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_finished or kind is None:
            return
        is_stopped = issubclass(kind, KeyboardInterrupt)
        self.finish("interrupted" if is_stopped else "failed", {"error": str(error) or str(kind)})


def _text(data: Mapping[str, Any]) -> str:
    text = json.dumps(dict(data), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()  # a model can answer half of a surrogate pair


def _run(row: tuple[Any, ...]) -> Run:
    run_id, team, status, settings, summary, started_s, finished_s, process = row
    if status == "running" and not _is_alive(process):
        status = "interrupted"
    told = None if summary is None else json.loads(summary)
    return Run(run_id, team, status, json.loads(settings), told, started_s, finished_s)


def _this_process() -> str:
    """Name of this process: machine, number, and start, as numbers are used again."""
    return json.dumps([platform.node(), os.getpid(), _start_of(os.getpid())])


def _is_alive(process: str) -> bool:
    """Return True unless a process has ended; one of another machine counts as alive."""
    node, pid, start = json.loads(process)
    if node != platform.node():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return bool(_start_of(pid) == start)


def _start_of(pid: int) -> str:
    """Start of a process, as Linux tells it; "" where it is not told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return f"{boot}:{stat.rpartition(')')[2].split()[19]}"
