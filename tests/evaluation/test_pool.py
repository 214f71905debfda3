"""Jobs give the same results wherever they are done; deaths and errors are reported."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.runner import in_parallel

ROOT = Path(__file__).resolve().parents[2]


def square(number: int) -> int:
    return number * number


def dies(_: int) -> None:
    os._exit(9)


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_are_done_once_and_those_that_are_not_wanted_never(workers: int) -> None:
    found = dict(in_parallel(square, range(7), workers, wanted=lambda job: job != 3))
    assert found == {job: job * job for job in range(7) if job != 3}


def test_a_process_that_dies_is_an_error_of_the_run() -> None:
    with pytest.raises(ConfigError, match="a process died"):
        list(in_parallel(dies, [1, 2], 2))


SCRIPT = """
import time
from tests.evaluation.test_pool import hangs
from inframind_gym.evaluation.runner import in_parallel
list(in_parallel(hangs, ["{out}/1", "{out}/2"], 2))
"""


def hangs(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(300)


def test_processes_end_with_their_parent(tmp_path: Path) -> None:
    script = SCRIPT.format(out=tmp_path)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 or not all(p.read_text() for p in tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    parent.kill()
    parent.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process outlives its parent"
        time.sleep(0.05)
