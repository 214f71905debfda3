"""Teams of agents on OpenAI-compatible servers, as a person starts them; what must hold then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.teams.coordination import retrieval
from inframind_gym.teams.coordination.agents import NO_SOURCE
from inframind_gym.teams.runs import Event, RunStore
from tests.live.vllm_server.fake import Answer, FakeServer

pytest.importorskip("openai")
TASKS = 6
SCORES = '{"relevance": 0.9, "accuracy": 0.8, "completeness": 0.7, "agent_match": 0.6}'


def noise(request: dict[str, Any], _: int) -> Answer:
    """Valid JSON for whoever asks for it, else noise: as a model with random weights answers."""
    wants_json = "response_format" in request
    return Answer(SCORES if wants_json else "qx zzv 81 _", tokens=request["max_tokens"])


def play(runs: Path, team: str, *arguments: str) -> tuple[dict[str, Any], list[Event]]:
    """Run a team to its end: its summary, its events."""
    done = CliRunner().invoke(app, ["team", "run", team, "--runs", str(runs), *arguments])
    assert done.exit_code == 0, done.output
    with RunStore(runs) as store:
        run = store.list_runs()[0]
        events = store.events(run.run_id)
    assert (run.team, run.status) == (team, "complete")
    assert run.summary is not None and run.summary["simulated"] is False
    return run.summary, events


def of_kind(events: list[Event], kind: str) -> list[dict[str, Any]]:
    return [event.data for event in events if event.kind == kind]


def attempts(events: list[Event]) -> tuple[list[dict[str, Any]], int]:
    """Every attempt of a call, answered and counted by a server, and the tokens of all."""
    calls = of_kind(events, "llm_attempt")
    for call in calls:
        assert call["outcome"] == "ok" and "tokens_estimated" not in call, call
        assert min(call["input_tokens"], call["output_tokens"], call["latency_s"]) > 0
    return calls, sum(call["input_tokens"] + call["output_tokens"] for call in calls)


def test_the_assignment_team(tmp_path: Path) -> None:
    """Two calls for every task, both servers among them; what a round cost is what was counted."""
    with FakeServer(noise, model="a") as one, FakeServer(noise, model="b") as two:
        summary, events = play(
            tmp_path / "runs.sqlite",
            "assignment",
            *(part for server in (one, two) for part in ("--provider", f"{server.url}/v1")),
            *("--model", "a", "--model", "b"),
            *("--iterations", str(TASKS), "--max-tokens", "48"),
        )
        calls, _ = attempts(events)
        # With four requests of the demonstration.
        assert len(calls) == 2 * (TASKS + 4) == len(one.requests) + len(two.requests)
    assert (summary["calls"], summary["judge_failed"]) == (2 * TASKS, 0)
    assert {call["model"] for call in calls} == {"a", "b"}
    for each, call in zip(of_kind(events, "iteration"), calls[: 2 * TASKS : 2], strict=True):
        assert each["total_tokens"] == call["input_tokens"] + call["output_tokens"]


def test_the_token_budget_team(tmp_path: Path) -> None:
    with FakeServer(noise) as server:
        provider = ("--provider", f"{server.url}/v1", "--model", "m", "--budget", "4000")
        summary, events = play(
            tmp_path / "runs.sqlite", "token-budget", *provider, "Name three uses of a queue."
        )
    calls, tokens = attempts(events)
    # The ceiling is passed by errors of prompt estimates alone.
    assert 0 < tokens <= 4000 + max(call["input_tokens"] for call in calls)
    assert summary["cost_report"]["tokens"] == tokens
    assert of_kind(events, "agent_step")[-1]["status"] == "complete"


def test_the_coordination_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer from the passages, whatever the model says; by the deadline if its calls hang."""
    monkeypatch.setattr(retrieval, "available", lambda: None)
    runs = tmp_path / "runs.sqlite"
    with FakeServer(noise) as server:
        way = ("--provider", f"{server.url}/v1", "--model", "m", "--set", "rewrite=model")
        question = "What does chunked prefill change for requests that decode?"
        summary, events = play(runs, "coordination", *way, "--set", "deadline_s=60", question)
        hung = ("--set", "deadline_s=12", "--set", "fault=router:timeout")
        late, events_of_late = play(runs, "coordination", *way, *hung, "What is a KV block?")
    calls, tokens = attempts(events)
    assert summary["calls"] == len(calls) > 0
    assert summary["input_tokens"] + summary["output_tokens"] == tokens
    (answer,) = of_kind(events, "answer")
    # It names its sources; a model that plans noise finds nothing about the question.
    assert answer["sources"] or answer["content"] == NO_SOURCE
    kinds = [message["kind"] for message in answer["handoffs"]]
    assert kinds.count("handoff") == kinds.count("handoff_back") and kinds[-1] == "forward"
    assert late["ended_by"] == "fallback"
    (answer,) = of_kind(events_of_late, "answer")
    assert answer["sources"] and answer["processing_time"] < 12.5
