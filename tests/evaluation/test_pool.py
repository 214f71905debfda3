"""Jobs give the same results wherever they are done; deaths and errors are reported."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.runner import in_parallel

ROOT = Path(__file__).resolve().parents[2]


def square(number: int) -> int:
    return number * number


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_are_done_once_and_those_that_are_not_wanted_never(workers: int) -> None:
    found = dict(in_parallel(square, range(7), workers, wanted=lambda job: job != 3))
    assert found == {job: job * job for job in range(7) if job != 3}


def test_a_process_that_dies_is_an_error_of_the_run() -> None:
    with pytest.raises(ConfigError, match="a process died"):
        list(in_parallel(os._exit, [9, 9], 2))


SCRIPT = """
from tests.evaluation.test_pool import hangs
from inframind_gym.evaluation.runner import in_parallel
list(in_parallel(hangs, ["{out}/1", "{out}/2"], 2))
"""


def hangs(path: str) -> None:
    Path(path).touch()
    time.sleep(300)


@pytest.mark.parametrize("begun", [0, 2])
def test_processes_end_with_their_parent(tmp_path: Path, begun: int) -> None:
    psutil, script = pytest.importorskip("psutil"), SCRIPT.format(out=tmp_path)
    parent = psutil.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline, workers = time.monotonic() + 60, list[Any]()
    while len(workers) < 2 or len(list(tmp_path.iterdir())) < begun:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        workers = [p for p in parent.children() if any("popen_loky" in w for w in p.cmdline())]
    parent.kill()
    parent.wait()
    assert psutil.wait_procs(workers, timeout=60)[1] == [], "a process outlives its parent"
