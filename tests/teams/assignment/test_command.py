"""`inframind team run assignment`, as a person types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.teams.assignment.judge import JUDGE_SYSTEM
from inframind_gym.teams.runs.store import RunStore
from tests.teams.assignment.scripted import GOOD
from tests.teams.stand_in import Reply, StandIn

ROOT = Path(__file__).parents[3]
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")

# A module that is None in sys.modules cannot be imported.
BARE = """
import sys
for name in ("aiohttp", "anthropic", "langgraph", "matplotlib", "openai", "torch"):
    sys.modules[name] = None
from inframind_gym.cli import app
app(["team", "run", "assignment", "--runs", sys.argv[1], "--json"])
"""


def play(runs: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["team", "run", "assignment", "--runs", str(runs), *arguments])
    return done.exit_code, done.output


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


def test_a_simulated_run_says_what_it_learned(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "pictures"
    status, output = play(runs, "--plots", str(folder))
    assert status == 0, output
    for said in (
        *("mean adjusted reward", "mean load penalty", "final ε", "0.364", "final imbalance"),
        *("LLM calls", "100", "total cost", "(simulated)", "elapsed", "Routing policy"),
        *("Shifts", "Live demo", "inframind team show"),
    ):
        assert said in output
    with RunStore(runs) as store:
        run = store.list_runs()[0]
        events = store.events(run.run_id)
    assert output.splitlines()[-1] == f"inframind team show {run.run_id} --runs {runs}"
    for name in ("dashboard", "load_states", "q_tables"):
        picture = (folder / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 10_000
    assert (run.status, run.settings["provider"]) == ("complete", ["simulated"])
    assert run.summary is not None
    assert (run.summary["calls"], run.summary["simulated"]) == (100, True)
    states = [event.data["state"] for event in events if event.kind == "state"]
    assert states[-1] == "End"
    assert [
        s for s in states if s in ("Visualisation", "QTableByLoad", "PolicyShifts", "Demo")
    ] == [
        *("Visualisation", "QTableByLoad", "PolicyShifts", "Demo"),
    ]
    assert sum(event.kind == "request" for event in events) == 4


def test_a_bare_machine_is_enough(runs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, runs], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["calls"] == 100
    assert "LangGraph is not installed" in done.stderr


def answer(request: dict[str, Any]) -> Reply:
    is_judge = request["messages"][0]["content"] == JUDGE_SYSTEM
    return Reply(content=GOOD if is_judge else "An answer.")


def test_two_models_of_one_server(runs: Path) -> None:
    pytest.importorskip("openai")
    with StandIn(answer) as server:
        status, output = play(
            runs,
            *("--provider", f"{server.url}/v1", "--model", "one", "--model", "two"),
            *("--iterations", "12", "--demo", "0", "--json"),
        )
    assert status == 0, output
    summary = json.loads(output)
    assert (summary["calls"], len(server.requests)) == (24, 24)
    assert (summary["simulated"], summary["unpriced_models"]) == (False, ["one", "two"])
    assert summary["judge_unreadable"] == summary["judge_failed"] == 0
    assert {request["model"] for request in server.requests} == {"one", "two"}
    assert summary["mean_raw_reward"] == pytest.approx(0.75, abs=0.01)


def test_a_server_that_refuses_fails_the_run(runs: Path) -> None:
    pytest.importorskip("openai")
    with StandIn([Reply(status=404, message="no such model.")]) as server:
        status, output = play(runs, "--provider", f"{server.url}/v1", "--model", "m")
    assert (status, "no such model. Is the model's name right?" in output) == (2, True), output
    with RunStore(runs) as store:
        run = store.list_runs()[0]
    assert run.status == "failed"
    assert run.summary is not None and "http_404" in run.summary["error"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_is_interrupted_and_readable(runs: Path, how: signal.Signals) -> None:
    pytest.importorskip("openai")
    with StandIn(lambda request: Reply(hangs=len(server.requests) > 3)) as server:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from inframind_gym.cli import app; app()"),
                *("team", "run", "assignment", "--runs", str(runs)),
                *("--provider", f"{server.url}/v1", "--model", "m"),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(600):
            if len(server.requests) == 4:
                break
            time.sleep(0.05)
        process.send_signal(how)
        _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "Traceback" not in said
    with RunStore(runs) as store:
        run = store.list_runs()[0]
        events = store.events(run.run_id)
    assert run.status == "interrupted"
    outcomes = [event.data["outcome"] for event in events if event.kind == "llm_attempt"]
    assert outcomes == ["ok"] * 3 + (["cancelled"] if how == signal.SIGINT else [])
    assert sum(event.kind == "iteration" for event in events) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arrivals", "skewd"], "--arrivals: unknown arrivals 'skewd'. Did you mean 'skewed'"),
        (["--router", "least_bussy"], "Did you mean 'least_busy'"),
        (["--variant", "bandits"], "Did you mean 'bandit'"),
        (["--provider", "opnai"], "Did you mean 'openai'"),
        (["--provider", "openai"], "OPENAI_API_KEY is not set"),
        (["--provider", "openai", "--provider", "anthropic"], "OPENAI_API_KEY is not set"),
        (["--provider", "http://127.0.0.1:1/v1"], "needs --model"),
        (["--provider", "simulated", "--provider", "openai"], "does not go together"),
        (["--model", "gpt-4o-mini"], "--model is of real providers"),
        (["--model", "a", "--model", "b", "--model", "c"], "at most twice"),
        (["--team", "assigment"], "Did you mean 'assignment'"),
        (["--prices", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    runs: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    status, output = play(runs, *arguments)
    assert (status, said in output) == (2, True), output
    assert not runs.exists()
