"""The teams of agents on real vLLM servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from inframind_gym.live.config import addresses
from tests.live.vllm_live.rig import LiveRig
from tests.live.vllm_live.team_play import (
    TASKS,
    play_assignment,
    play_coordination,
    play_token_budget,
)

pytestmark = pytest.mark.live


def test_the_assignment_team_on_two_servers(rig: LiveRig, tmp_path: Path) -> None:
    first, second = addresses(rig.config)[:2]
    before = rig.finished(0) + rig.finished(1)
    play_assignment(tmp_path / "runs.sqlite", (first, second))
    assert rig.finished(0) + rig.finished(1) - before == 2 * (TASKS + 4)  # nothing was sent twice


def test_the_token_budget_team_on_a_server(rig: LiveRig, tmp_path: Path) -> None:
    play_token_budget(tmp_path / "runs.sqlite", addresses(rig.config)[1])


def test_the_coordination_team_on_a_server(rig: LiveRig, tmp_path: Path) -> None:
    play_coordination(tmp_path / "runs.sqlite", addresses(rig.config)[1])
