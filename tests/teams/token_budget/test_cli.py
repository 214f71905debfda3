"""`inframind team run token-budget`, as a person types it; and two runs compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inframind_gym.teams.cli import app
from inframind_gym.teams.runs import RunStore, compare


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def started(runs: Path, *words: object) -> dict[str, Any]:
    """Run the team; return its summary."""
    result = command("run", "token-budget", "Write.", "--runs", runs, "--json", *words)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


def test_without_a_task_a_run_demonstrates(runs: Path) -> None:
    result = command("run", "token-budget", "--runs", runs)
    assert result.exit_code == 0
    with RunStore(runs) as store:
        run = store.list_runs()[0]
        events = store.events(run.run_id)
    assert (run.team, run.status) == ("token-budget", "complete")
    assert (run.settings["budget"], run.settings["provider"]) == (20_000, "simulated")
    # A critic's claim is in a column of its own: no gain is shown where quality fell.
    traces = [event.data for event in events if event.kind == "trace"]
    reviews = [i for i, trace in enumerate(traces) if trace["agent"] == "critic" and i]
    falls = [i for i in reviews if traces[i]["quality"] < traces[i - 1]["quality"]]
    assert falls and traces[falls[0]]["quality_delta"] > 0.0
    line = next(line for line in result.output.splitlines() if line.startswith("critic"))
    change = traces[falls[0]]["quality"] - traces[falls[0] - 1]["quality"]
    assert f"{change:+.0f}" in line and "+" not in line


def test_two_runs_are_compared(runs: Path) -> None:
    a, b = started(runs), started(runs, "--strategy", "adaptive_roi_strict")
    with RunStore(runs) as store:
        result = compare(store, a["run_id"], b["run_id"])
    tokens, spent = result["numbers"]["cost_report.tokens"], a["cost_report"]["tokens"]
    change = 100.0 * (b["cost_report"]["tokens"] - spent) / spent
    assert (tokens["a"], tokens["change_percent"]) == (spent, pytest.approx(change))
    first, second = result["curves"]
    assert len(first) != len(second) and first[0] == second[0]
    assert result["traces"][0][0] == result["traces"][0][1]
    assert None in result["traces"][-1]
    assert result["cutoffs"][0][0]["agent"] == "critic"
