"""A studio on a file of runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from inframind_gym.studio.runs import Launcher, Ways
from inframind_gym.teams.runs import Run, RunStore

TOKEN = "a token of sufficient length"
TASK = {"task": "Write."}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    with RunStore(tmp_path / "runs.sqlite") as opened:
        yield opened


@pytest.fixture
def launcher(store: RunStore) -> Iterator[Launcher]:
    made = Launcher(store, Ways())
    yield made
    made.close()


def until_over(launcher: Launcher, run_id: str, longest_s: float = 120.0) -> Run:
    """Wait for the end of a run."""
    last_s = time.monotonic() + longest_s
    while run_id in launcher.owned():
        assert time.monotonic() < last_s
        time.sleep(0.02)
    return launcher.store.get_run(run_id)
