"""The file of runs: written at once, read while it is written, honest about what died."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.errors import ConfigError
from inframind_gym.teams.runs.store import RunLog, RunStore

ROOT = Path(__file__).parents[2]

DIES = """
import os, signal, sys
from inframind_gym.teams.runs.store import RunLog, RunStore
log = RunLog(RunStore(sys.argv[1]), "assignment", {"seed": 1})
log.append("first", {"a": 1})
log.append("second", {"a": 2})
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
        assert (run.team, run.status, run.settings) == (
            "assignment",
            "complete",
            {"seed": 1, "text": "ä"},
        )
        assert run.summary == {"reward": 0.5}
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
            (1, "first", {"a": 1}),
            (2, "second", {"a": 2}),
        ]


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("no"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_an_error_ends_a_run(path: Path, error: BaseException, status: str) -> None:
    store = RunStore(path)
    with pytest.raises(type(error)), RunLog(store, "assignment", {}) as log:
        raise error
    run = store.get_run(log.run_id)
    assert run.status == status
    assert run.summary and run.summary["error"]


def test_writers_at_once_lose_nothing(path: Path) -> None:
    store, other = RunStore(path), RunStore(path)
    log = RunLog(store, "assignment", {})

    def write(through: RunStore) -> None:
        for n in range(50):
            through.append(log.run_id, "x", {"n": n})

    threads = [threading.Thread(target=write, args=(each,)) for each in (store, store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in store.events(log.run_id)] == list(range(1, 151))


def test_what_is_wrong_is_said(path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        RunStore(path, must_exist=True)
    path.parent.mkdir()
    path.write_text("no database" * 100)
    with pytest.raises(ConfigError, match="cannot be used as a file of runs"):
        RunStore(path)
    path.unlink()
    store = RunStore(path)
    with pytest.raises(ConfigError, match="unknown run 'abc'"):
        store.get_run("abc")
    with pytest.raises(ConfigError, match="no run"):
        store.finish("abc", "complete", {})
    with pytest.raises(ConfigError, match="Did you mean 'complete'"):
        store.finish("abc", "completed", {})  # type: ignore[arg-type]


def command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["team", *arguments])
    return done.exit_code, done.output


def test_runs_are_listed_and_shown(path: Path) -> None:
    with RunStore(path) as store, RunLog(store, "assignment", {"provider": "simulated"}) as log:
        log.append("llm_attempt", {"n": 1})
        log.append("other", {"n": 2})
        log.finish("complete", {"calls": 100, "cost_usd": 0.05})
    status, output = command("list", "--runs", str(path))
    assert (status, log.run_id in output, "0.0500" in output) == (0, True, True), output
    status, output = command("show", "--runs", str(path), "--events")
    assert "1 llm_attempt, 1 other" in output
    assert '{"n": 2}' in output
    shown = json.loads(
        command("show", log.run_id, "--runs", str(path), "--kind", "other", "--json")[1]
    )
    assert [event["data"] for event in shown["events"]] == [{"n": 2}]
    assert json.loads(command("list", "--runs", str(path), "--json")[1])[0]["run_id"] == log.run_id
    status, output = command("show", "zzz", "--runs", str(path))
    assert (status, "unknown run 'zzz'" in output) == (2, True)
    status, output = command("list", "--runs", str(path) + "x")
    assert (status, "no such file" in output) == (2, True)


def test_two_runs_of_the_assignment_team_are_compared(path: Path) -> None:
    names = []
    for router in ("q_learning", "round_robin"):
        words = ("--router", router, "--iterations", "6", "--demo", "0", "--json")
        status, output = command("run", "assignment", *words, "--runs", str(path))
        assert status == 0, output
        names.append(json.loads(output[output.index("{") :])["run"])
    words = ("compare", *names, "--runs", str(path))
    found = json.loads(command(*words, "--json")[1])
    assert len(found["traces"]) == 6
    with RunStore(path) as store:
        rewards = [
            [e.data["adjusted_reward"] for e in store.events(name) if e.kind == "iteration"]
            for name in names
        ]
    assert [[reward for _, reward in curve] for curve in found["curves"]] == rewards
    assert found["cutoffs"] == [[], []]
    status, output = command(*words)
    assert status == 0
    assert f"{rewards[1][5]:.3f}" in output
    assert found["traces"][0][1]["key"] in output


def test_runs_of_two_teams_are_not_compared(path: Path) -> None:
    with RunStore(path) as store:
        made = [RunLog(store, team, {}).run_id for team in ("assignment", "token-budget")]
    status, output = command("compare", *made, "--runs", str(path))
    assert status == 2
    assert "of the team assignment" in output
