"""The file of runs: written at once, read while it is written, honest about what died."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.teams.runs import RunLog, RunStore, compare

ROOT = Path(__file__).parents[2]
DIES = """
import os, signal, sys
from inframind_gym.teams.runs import RunLog, RunStore
log = RunLog(RunStore(sys.argv[1]), "assignment", {"seed": 1})
log.append("first", {"a": 1})
print(log.run_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "runs.sqlite"


def test_a_run_comes_back_as_it_was_written(path: Path) -> None:
    with RunStore(path) as store:
        with RunLog(store, "assignment", {"seed": 1, "text": "ä"}) as log:
            assert [log.append("x", {"n": n}) for n in range(3)] == [1, 2, 3]
            assert store.get_run(log.run_id).status == "running"
            log.finish("complete", {"reward": 0.5})
        other = RunLog(store, "token-budget", {})
        assert other.append("x", {}) == 1  # each run counts its own
    with RunStore(path, must_exist=True) as store:
        run = store.get_run(log.run_id[:5])
        assert (run.team, run.status) == ("assignment", "complete")
        assert (run.settings, run.summary) == ({"seed": 1, "text": "ä"}, {"reward": 0.5})
        assert [e.data["n"] for e in store.events(log.run_id, after_seq=1)] == [1, 2]
        assert [run.run_id for run in store.list_runs()] == [other.run_id, log.run_id]
        assert [run.run_id for run in store.list_runs("assignment")] == [log.run_id]


def test_a_process_that_was_killed_leaves_an_interrupted_run(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES, path], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with RunStore(path) as store:
        run = store.get_run(done.stdout.strip())
        assert (run.status, run.summary) == ("interrupted", None)
        assert [(e.seq, e.kind, e.data) for e in store.events(run.run_id)] == [
            (1, "first", {"a": 1})
        ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_of_the_same_number_is_another(path: Path) -> None:
    with RunStore(path) as store:
        run_id = store.create_run("assignment", {})
        for begun, status in (("1", "interrupted"), (None, "running")):  # None: in older files
            process = json.dumps([platform.node(), os.getpid(), *filter(None, [begun])])
            store._execute("UPDATE runs SET process = ?", process)
            assert store.get_run(run_id).status == status


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_an_error_ends_a_run(path: Path, error: BaseException, status: str) -> None:
    store = RunStore(path)
    with pytest.raises(type(error)), RunLog(store, "assignment", {}) as log:
        raise error
    run = store.get_run(log.run_id)
    assert run.status == status and run.summary and run.summary["error"]


def test_writers_at_once_lose_nothing(path: Path) -> None:
    store, other = RunStore(path), RunStore(path)
    log = RunLog(store, "assignment", {})
    with ThreadPoolExecutor(3) as pool:
        writes: Any = ((store, store, other)[n % 3].append for n in range(150))
        list(pool.map(lambda write: write(log.run_id, "x", {}), writes))
    assert [event.seq for event in store.events(log.run_id)] == list(range(1, 151))


def test_a_wrong_file_or_name_is_an_error(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runs\.sqlite"):
        RunStore(path, must_exist=True)
    path.parent.mkdir()
    path.write_text("no database" * 100)
    with pytest.raises(ConfigError, match=r"runs\.sqlite"):
        RunStore(path)
    path.unlink()
    with pytest.raises(ConfigError, match="abc"):
        RunStore(path).get_run("abc")


def test_two_runs_of_a_team_are_compared(path: Path) -> None:
    steps = [(2_000, 60.0, ""), (5_000, 75.0, "roi"), (6_000, 75.0, "stop")]
    with RunStore(path) as store:
        logs = [RunLog(store, team, {}) for team in ("token-budget", "token-budget", "assignment")]
        for log, most in zip(logs, (3, 1, 0), strict=True):
            for tokens, quality, reason in steps[:most]:
                point = {"cumulative_tokens": tokens, "quality": quality, "output": "long"}
                log.append("trace", {**point, "cutoff_reason": reason})
            report = {"tokens": 1_500 * (most + 1), "cut": ["critic"], "lost": 0}
            log.finish("complete", {"cost_report": report, "simulated": True})
        first, second, other = (log.run_id for log in logs)
        result = compare(store, first, second)
        with pytest.raises(ConfigError, match="compare two runs of assignment or of token-budget"):
            compare(store, first, other)
    assert [run["run_id"] for run in result["runs"]] == [first, second]
    assert result["numbers"] == {
        "cost_report.tokens": {"a": 6_000, "b": 3_000, "change_percent": -50.0},
        "cost_report.lost": {"a": 0, "b": 0, "change_percent": None},
    }
    assert result["curves"] == [[[t, q] for t, q, _ in steps], [[2_000, 60.0]]]
    one, *rest = result["traces"]
    assert one[0] == one[1] and "output" not in one[0] and [b for _, b in rest] == [None, None]
    assert [len(cut) for cut in result["cutoffs"]] == [2, 0]
