"""The plays of `make live`, on a server that only looks like vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inframind_gym.live.config import ServerAddress
from inframind_gym.teams.coordination import retrieval
from tests.live.vllm_live.team_play import (
    TASKS,
    play_assignment,
    play_coordination,
    play_token_budget,
)
from tests.live.vllm_server.fake import Answer, FakeServer
from tests.teams.assignment.scripted import GOOD

pytest.importorskip("openai")


def noise(request: dict[str, Any], _: int) -> Answer:
    """Valid JSON for whoever asks for it, else noise: as a model with random weights answers."""
    wants_json = "response_format" in request
    return Answer(GOOD if wants_json else "qx zzv 81 _", tokens=request["max_tokens"])


def address(server: FakeServer, model: str) -> ServerAddress:
    return ServerAddress(alias=model, url=server.url, model=model)


def test_the_assignment_team(tmp_path: Path) -> None:
    with FakeServer(noise) as one, FakeServer(noise) as two:
        play_assignment(tmp_path / "runs.sqlite", (address(one, "a"), address(two, "b")))
        assert len(one.requests) + len(two.requests) == 2 * (TASKS + 4)


def test_the_token_budget_team(tmp_path: Path) -> None:
    with FakeServer(noise) as server:
        play_token_budget(tmp_path / "runs.sqlite", address(server, "a"))


def test_the_coordination_team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "available", lambda: None)
    with FakeServer(noise) as server:
        play_coordination(tmp_path / "runs.sqlite", address(server, "a"))
        assert {body["model"] for body in server.requests} == {"a"}
