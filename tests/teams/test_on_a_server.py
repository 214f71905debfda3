"""Teams of agents on OpenAI-compatible servers, as a person starts them; what must hold then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from inframind_gym.cli import app
from inframind_gym.teams.coordination import retrieval
from inframind_gym.teams.coordination.agents import NO_SOURCE
from inframind_gym.teams.runs import RunStore
from tests.live.vllm_server.fake import Answer, FakeServer

pytest.importorskip("openai")
SCORES = '{"relevance": 0.9, "accuracy": 0.8, "completeness": 0.7, "agent_match": 0.6}'
QUESTION = "What does chunked prefill change for requests that decode?"


def noise(request: dict[str, Any], _: int) -> Answer:
    """Valid JSON for whoever asks for it, else noise: as a model with random weights answers."""
    wants_json = "response_format" in request
    return Answer(SCORES if wants_json else "qx zzv 81 _", tokens=request["max_tokens"])


@pytest.mark.parametrize(
    ("team", "arguments"),
    [
        ("assignment", ("--model", "n", "--iterations", "6", "--max-tokens", "48")),
        ("token-budget", ("--budget", "4000", "Name three uses of a queue.")),
        ("coordination", ("--set", "rewrite=model", "--set", "deadline_s=60", QUESTION)),
    ],
)
def test_a_team_counts_what_its_servers_answer(
    team: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "available", lambda: None)
    path = tmp_path / "runs.sqlite"
    with FakeServer(noise, model="m") as one, FakeServer(noise, model="n") as two:
        servers = (one, two) if team == "assignment" else (one,)
        ways = [part for server in servers for part in ("--provider", f"{server.url}/v1")]
        command = ["team", "run", team, "--runs", str(path), *ways, "--model", "m", *arguments]
        done = CliRunner().invoke(app, command)
        sent = sum(len(server.requests) for server in servers)
        assert all(server.requests for server in servers)
    assert done.exit_code == 0, done.output
    with RunStore(path) as store:
        (run,) = store.list_runs()
        events = [(event.kind, event.data) for event in store.events(run.run_id)]
    summary = run.summary or {}
    assert (run.team, run.status, summary["simulated"]) == (team, "complete", False)
    calls = [data for kind, data in events if kind == "llm_attempt"]
    for call in calls:
        assert call["outcome"] == "ok" and "tokens_estimated" not in call, call
        assert min(call["input_tokens"], call["output_tokens"], call["latency_s"]) > 0
    assert len(calls) == sent > 0
    tokens = sum(call["total_tokens"] for call in calls)
    if team == "assignment":  # two calls for every task, and for each of four requests
        assert (summary["calls"], summary["judge_failed"], sent) == (2 * 6, 0, 2 * (6 + 4))
        assert {call["model"] for call in calls} == {"m", "n"}
    elif team == "token-budget":
        assert summary["cost_report"]["tokens"] == tokens
    else:
        assert summary["input_tokens"] + summary["output_tokens"] == tokens
        (answer,) = (data for kind, data in events if kind == "answer")
        # It names its sources; a model that plans noise finds nothing about the question.
        assert answer["sources"] or answer["content"] == NO_SOURCE
        kinds = [message["kind"] for message in answer["handoffs"]]
        assert kinds.count("handoff") == kinds.count("handoff_back") and kinds[-1] == "forward"
