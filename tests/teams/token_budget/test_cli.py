"""`inframind team run token-budget`, `compare`, `serve`; the OpenAI SDK against a real socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from inframind_gym.teams.cli import app
from inframind_gym.teams.runs import RunStore
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
    a = started(runs, "--profile", "seed-example")
    b = started(runs, "--profile", "seed-example", "--strategy", "adaptive_roi_strict")
    words = ["compare", a["run_id"], b["run_id"], "--runs", runs]
    result = json.loads(command(*words, "--json").stdout)
    tokens = result["numbers"]["cost_report.tokens"]
    assert (tokens["a"], tokens["b"], tokens["change_percent"]) == (12_500, 5_500, -56.0)
    assert [len(curve) for curve in result["curves"]] == [9, 4]
    assert result["traces"][0][0] == result["traces"][0][1]
    assert result["traces"][8][1] is None
    assert [c["agent"] for c in result["cutoffs"][1]] == ["executor", "executor"]
    shown = " ".join(command(*words).output.split())
    assert "-56.0 %" in shown
    for line in ("A: cut-off: cut critic (roi): 10,600", "B: cut-off: cut executor (roi): 5,500"):
        assert line in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--strategy", "adaptiv"), "adaptive"),
        (("--budget", 10), "500"),
        (("--provider", "openia"), "openai"),
    ],
    ids=str,
)
def test_wrong_input_is_named_and_leaves_no_run(
    runs: Path, words: tuple[object, ...], named: str
) -> None:
    result = command("run", "token-budget", "Write.", "--runs", runs, *words)
    assert (result.exit_code, named in result.output) == (2, True), result.output
    assert not runs.exists()


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
    with StandIn(lambda body: busy.pop() if busy else by_prompt(body)) as server:
        words = ("--provider", f"{server.url}/v1", "--model", "tiny", "--budget", 6000)
        summary = started(runs, *words)
    report = summary["cost_report"]
    assert (summary["output"], summary["ended_by"]) == ("## A\nanswer", "stop")
    assert not summary["simulated"]
    # Pre-flight, plan, draft, review (no flag: cut) and closing revision, a rating for each.
    assert (summary["calls"], report["tokens"], report["lost_tokens"]) == (9, 9 * 150, 0)
    assert len(server.requests) == 9 + 2
    assert all(body["max_tokens"] <= 6000 for body in server.requests)
    schemas = [body["response_format"] for body in server.requests if "response_format" in body]
    assert {schema["type"] for schema in schemas} == {"json_schema"}
