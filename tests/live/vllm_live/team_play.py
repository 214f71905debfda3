"""Teams of agents on OpenAI-compatible servers, as a person starts them; what must hold then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.live.config import ServerAddress
from inframind_gym.teams.coordination.agents import NO_SOURCE
from inframind_gym.teams.runs import Event, RunStore

TASKS = 6


def play(runs: Path, team: str, *arguments: str) -> tuple[dict[str, Any], list[Event]]:
    """Run a team to its end: its summary, its events."""
    done = CliRunner().invoke(app, ["team", "run", team, "--runs", str(runs), *arguments])
    assert done.exit_code == 0, done.output
    with RunStore(runs) as store:
        run = store.list_runs()[0]
        events = store.events(run.run_id)
    assert (run.team, run.status) == (team, "complete")
    assert run.summary is not None
    return run.summary, events


def attempts(events: list[Event]) -> list[dict[str, Any]]:
    """Every attempt of a call, which must have been answered and counted by a real server."""
    found = [event.data for event in events if event.kind == "llm_attempt"]
    for each in found:
        assert each["outcome"] == "ok", json.dumps(each)
        assert "simulated" not in each and "tokens_estimated" not in each
        assert each["input_tokens"] > 0 and each["output_tokens"] > 0
        assert each["latency_s"] > 0.0
        assert "over_max_tokens" not in each
    return found


def play_assignment(runs: Path, servers: tuple[ServerAddress, ServerAddress]) -> None:
    """Train on two servers: two calls for every task, both servers among them."""
    summary, events = play(
        runs,
        "assignment",
        *(part for server in servers for part in ("--provider", f"{server.url}/v1")),
        *(part for server in servers for part in ("--model", server.model)),
        *("--iterations", str(TASKS), "--max-tokens", "48"),
    )
    calls = attempts(events)
    assert len(calls) == 2 * (TASKS + 4)  # with four requests of the demonstration
    assert (summary["calls"], summary["simulated"]) == (2 * TASKS, False)
    assert {call["model"] for call in calls} == {server.model for server in servers}
    assert summary["judge_failed"] == 0, summary["judge_error"]
    rounds = [event.data for event in events if event.kind == "iteration"]
    assert [each["iteration"] for each in rounds] == list(range(TASKS))
    # Agent and judge take turns, and what a round is told to have cost is what was counted.
    asked = calls[: 2 * TASKS]
    assert [call["agent"] == "judge" for call in asked] == [False, True] * TASKS
    for each, call in zip(rounds, asked[::2], strict=True):
        assert each["total_tokens"] == call["input_tokens"] + call["output_tokens"]
        assert each["latency_s"] == call["latency_s"] and 0.0 <= each["adjusted_reward"] <= 1.0


def play_token_budget(runs: Path, server: ServerAddress, budget: int = 4000) -> None:
    """Answer a task within its budget."""
    summary, events = play(
        runs,
        "token-budget",
        *("--provider", f"{server.url}/v1", "--model", server.model),
        *("--budget", str(budget), "Name three uses of a queue."),
    )
    calls = attempts(events)
    assert calls
    spent = sum(call["input_tokens"] + call["output_tokens"] for call in calls)
    # The ceiling is passed by errors of prompt estimates alone.
    assert spent <= budget + max(call["input_tokens"] for call in calls)
    report = summary["cost_report"]
    assert report["tokens"] == spent + report["lost_tokens"]
    assert report["tokens"] == sum(report["by_agent"].values()) + report["overhead_tokens"]
    assert (summary["calls"], summary["simulated"]) == (len(calls), False)
    assert summary["output"]
    steps = [event.data for event in events if event.kind == "agent_step"]
    assert (steps[-1]["cumulative_tokens"], steps[-1]["status"]) == (report["tokens"], "complete")


def play_coordination(runs: Path, server: ServerAddress) -> None:
    """Answer a question from the shipped passages, whatever the model says; then by faults."""
    way = ("--provider", f"{server.url}/v1", "--model", server.model, "--set", "rewrite=model")
    question = "What does chunked prefill change for requests that decode?"
    summary, events = play(runs, "coordination", *way, "--set", "deadline_s=60", question)
    calls = attempts(events)
    assert {call["model"] for call in calls} == {server.model}
    assert (summary["calls"], summary["simulated"]) == (len(calls), False)
    spent = sum(call["input_tokens"] + call["output_tokens"] for call in calls)
    assert summary["input_tokens"] + summary["output_tokens"] == spent
    (told,) = [event.data for event in events if event.kind == "answer"]
    # An answer names its sources, or those that it was written from; a model that plans noise finds
    # nothing about the question.
    assert told["sources"] or told["content"] == NO_SOURCE
    assert 0.0 < told["processing_time"] < 60.0
    decisions = [event.data for event in events if event.kind == "decision"]
    assert (decisions[0]["action"], calls[0]["agent"]) == ("route", "router")
    assert decisions[-1]["action"] in ("answer", "fallback")
    # Every failure of an agent is told with its name, and ends in the fallback.
    failed = [event.data["agent"] for event in events if event.kind == "agent_failed"]
    assert bool(failed) == (decisions[-1]["action"] == "fallback")
    # The router's calls hang: the answer is there by the hard deadline all the same.
    arguments = (*way, "--set", "deadline_s=12", "--set", "fault=router:timeout")
    summary, events = play(runs, "coordination", *arguments, "What is a KV block?")
    assert summary["ended_by"] == "fallback"
    failed = [event.data for event in events if event.kind == "agent_failed"]
    assert [(each["agent"], each["failure"]) for each in failed] == [("router", "timeout")]
    told = next(event.data for event in events if event.kind == "answer")
    assert told["sources"]
    assert told["processing_time"] < 12.5
