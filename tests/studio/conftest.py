"""A studio on a file of runs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from inframind_gym.studio.runs import Launcher, Ways
from inframind_gym.teams.runs import Run, RunStore
from tests.conftest import until

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
    until(lambda: run_id not in launcher.owned(), longest_s)
    return launcher.store.get_run(run_id)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start `inframind studio` on a free port; returns its address."""
    running: list[subprocess.Popen[str]] = []

    def start(*options: str, token: str = "") -> str:
        words = ["studio", "--port", "0", "--runs", str(tmp_path / "runs.sqlite"), *options]
        # NiceGUI behaves differently where it believes to be under test.
        env = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST")}
        process = subprocess.Popen(
            [sys.executable, "-c", "from inframind_gym.cli import app; app()", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**env, "INFRAMIND_STUDIO_TOKEN": token},
        )
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://\S+?:(\d+)", line)
        assert match, line
        last_s = time.monotonic() + 60.0
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(match[1])), 1.0):
                return match[0]
            assert time.monotonic() < last_s
            time.sleep(0.1)

    yield start
    for process in running:
        process.terminate()
        process.communicate(timeout=120)
