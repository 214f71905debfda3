"""`inframind team run assignment`, as a person types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.teams.runs import RunStore

pytest.importorskip("langgraph")


def play(runs: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["team", "run", "assignment", "--runs", str(runs), *arguments])
    return done.exit_code, done.output


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


def test_without_arguments_a_run_demonstrates_what_it_learned(runs: Path) -> None:
    status, output = play(runs)
    assert status == 0, output
    for figure in ("mean adjusted reward", "400", "Routing policy", "Live demo", "health: ok"):
        assert figure in output
    with RunStore(runs) as store:
        run = store.list_runs()[0]
        events = store.events(run.run_id)
    assert output.splitlines()[-1] == f"inframind team show {run.run_id} --runs {runs}"
    assert run.summary is not None
    assert (run.status, run.summary["simulated"], run.summary["calls"]) == ("complete", True, 400)
    # No agent has twice its fair share of the tasks, nor stays far from it.
    assert max(run.summary["assignments"].values()) < 2 * 200 / 4
    assert run.summary["mean_imbalance"] < 0.7
    assert sum(event.kind == "request" for event in events) == 4
