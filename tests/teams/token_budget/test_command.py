"""`inframind team run token-budget`, `compare`, `serve`; the openai SDK against a real socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inframind_gym.teams.command import app
from inframind_gym.teams.runs.store import RunStore
from tests.teams.stand_in import Reply, StandIn

ROOT = Path(__file__).parents[3]


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


def test_a_run_is_printed_and_written(runs: Path) -> None:
    words = ["run", "token-budget", "Write.", "--profile", "seed-example", "--runs", runs]
    result = command(*words)
    assert result.exit_code == 0
    for text in ("12,500 of 20,000 tokens, 7,500 returned", "0.0018", "[simulated]", "cut critic"):
        assert text in result.output.replace("\n", " ")
    with RunStore(runs) as store:
        run = store.list_runs()[0]
    assert (run.team, run.status) == ("token-budget", "complete")
    assert run.settings["budget"] == 20_000
    assert run.settings["provider"] == "simulated"


def test_a_small_budget_is_warned_about(runs: Path) -> None:
    for seed in range(4):
        summary = started(runs, "--budget", 2000, "--seed", seed)
        assert "wants at least" in summary["warning"]
        assert summary["cost_report"]["tokens"] <= 2200


def test_two_runs_are_compared(runs: Path) -> None:
    a = started(runs, "--profile", "seed-example")
    b = started(runs, "--profile", "seed-example", "--strategy", "adaptive_roi_strict")
    words = ["compare", a["run_id"], b["run_id"], "--runs", runs]
    found = json.loads(command(*words, "--json").stdout)
    tokens = found["numbers"]["cost_report.tokens"]
    assert (tokens["a"], tokens["b"], tokens["change_percent"]) == (12_500, 5_500, -56.0)
    assert found["numbers"]["quality"]["change_percent"] == pytest.approx(100 * (78 - 92) / 92)
    assert found["numbers"]["cost_report.lost_tokens"]["change_percent"] is None
    assert [len(trace) for trace in found["curves"]] == [9, 4]
    assert found["curves"][1][1] == [5500, 78.0]
    assert len(found["traces"]) == 9
    assert found["traces"][0][0] == found["traces"][0][1]
    assert found["traces"][8][1] is None
    assert [c["agent"] for c in found["cutoffs"][1]] == ["executor", "executor"]
    shown = command(*words)
    assert "-56.0 %" in shown.output
    for line in (
        "A: cut-off at 10,600 tokens, quality 90.0: cut critic (roi), ROI of critic 0.0018",
        "B: cut-off at 5,500 tokens, quality 78.0: cut executor (roi), ROI of executor 0.0047",
    ):
        assert line in " ".join(shown.output.split())
    wrong = command("compare", a["run_id"], "nothing", "--runs", runs)
    assert wrong.exit_code == 2
    assert a["run_id"] in wrong.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--strategy", "adaptiv"), "Did you mean 'adaptive'"),
        (("--strategy", "os:system"), "unknown strategy"),
        (("--budget", 10), "from 500 to 200000"),
        (("--profile", "x"), "seed-example"),
        (("--provider", "openia"), "Did you mean 'openai'"),
    ],
    ids=str,
)
def test_wrong_input_is_named_and_leaves_no_run(
    runs: Path, words: tuple[object, ...], said: str
) -> None:
    result = command("run", "token-budget", "Write.", "--runs", runs, *words)
    assert result.exit_code == 2
    assert said in result.output
    assert not runs.exists()


def test_other_machines_need_a_token(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFRAMIND_TEAM_TOKEN", raising=False)
    result = command("serve", "--host", "0.0.0.0", "--runs", runs)
    assert result.exit_code == 2
    assert "INFRAMIND_TEAM_TOKEN" in result.output


def test_a_port_that_is_taken_is_named(runs: Path) -> None:
    pytest.importorskip("fastapi")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = command("serve", "--port", port, "--runs", runs)
    assert result.exit_code == 2
    assert f"127.0.0.1:{port}: address already in use" in result.output


def by_prompt(body: dict[str, Any]) -> Reply:
    """Answer as the agent whose system prompt it is."""
    system = body["messages"][0]["content"]
    for words, text in (
        ("Classify", '{"complexity": "simple"}'),
        ("Rate", '{"completeness": 90, "clarity": 90, "actionability": 90, "resolved": []}'),
        ("You plan", '{"goal": "g", "steps": ["s"], "sections": ["A"], "risks": ["r"]}'),
        ("You review", '{"flags": []}'),
    ):
        if system.startswith(words):
            return Reply(text, 100, 50)
    return Reply("## A\nanswer", 100, 50)


def test_a_run_over_http_with_the_openai_sdk(runs: Path) -> None:
    pytest.importorskip("openai")
    busy = [Reply(status=429), Reply(status=503)]

    def answer(body: dict[str, Any]) -> Reply:
        return busy.pop() if busy else by_prompt(body)

    with StandIn(answer) as server:
        words = ("--provider", f"{server.url}/v1", "--model", "tiny", "--budget", 6000)
        summary = started(runs, *words)
    report = summary["cost_report"]
    assert summary["output"] == "## A\nanswer"
    assert not summary["simulated"]
    assert summary["ended_by"] == "stop"
    # Pre-flight, plan, draft, review (no flag: cut) and closing revision, a rating for each.
    assert (summary["calls"], report["tokens"], report["lost_tokens"]) == (9, 9 * 150, 0)
    assert len(server.requests) == 9 + 2
    assert all(body["max_tokens"] <= 6000 for body in server.requests)
    schemas = [body["response_format"] for body in server.requests if "response_format" in body]
    assert {schema["type"] for schema in schemas} == {"json_schema"}


def test_a_server_that_was_killed_leaves_a_run_that_can_be_read(runs: Path) -> None:
    pytest.importorskip("fastapi")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def hanging(body: dict[str, Any]) -> Reply:
        is_review = body["messages"][0]["content"].startswith("You review")
        return Reply(hangs=True) if is_review else by_prompt(body)

    with StandIn(hanging) as model:
        code = "from inframind_gym.cli import app; app()"
        words = ["team", "serve", "--port", str(port), "--runs", str(runs)]
        provider = ["--provider", f"{model.url}/v1", "--model", "tiny"]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *words, *provider],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 30.0
            while True:
                try:
                    run_id = _ask(f"{url}/run", {"task": "Write."})["run_id"]
                    break
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.1)
            while len(_ask(f"{url}/run/{run_id}")["events"]) < 2:
                assert time.monotonic() < until
                time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    with RunStore(runs) as store:
        run = store.get_run(run_id)
        steps = [e.data for e in store.events(run_id) if e.kind == "agent_step"]
    assert run.status == "interrupted"
    assert [step["agent"] for step in steps] == ["planner", "executor"]


def _ask(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10.0) as reply:
        return dict(json.loads(reply.read()))
