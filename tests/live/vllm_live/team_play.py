"""Teams of agents on OpenAI-compatible servers, as a person starts them; what must hold then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.live.settings import ServerAddress
from inframind_gym.teams.runs.store import Event, RunStore

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
        *("--iterations", str(TASKS), "--max-tokens", "48", "--demo", "1"),
    )
    calls = attempts(events)
    assert len(calls) == 2 * TASKS + 2  # and one request of the demo
    assert (summary["calls"], summary["simulated"]) == (2 * TASKS, False)
    assert {call["model"] for call in calls} == {server.model for server in servers}
    assert summary["judge_failed"] == 0, summary["judge_error"]
    rewards = [event.data["adjusted_reward"] for event in events if event.kind == "iteration"]
    assert len(rewards) == TASKS
    assert all(0.0 <= reward <= 1.0 for reward in rewards)


def play_token_budget(runs: Path, server: ServerAddress, budget: int = 4000) -> None:
    """Answer a task within its budget."""
    _, events = play(
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
