"""Workers give the same results wherever they are, and their deaths and errors are reported."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.benchmark.workers import WorkerDiedError, Workers
from inframind_gym.errors import ConfigError, InfraMindError

HERE = "tests.benchmarks.workers_under_test"


@pytest.mark.parametrize("number", [1, 2, 8])
def test_results_do_not_depend_on_the_number_of_workers(number: int) -> None:
    with Workers(f"{HERE}:Square", {"seconds": 0.0}, number) as pool:
        assert dict(pool.run(range(5))) == {i: i * i for i in range(5)}
        arrays = [(i, np.full(3, i)) for i in range(3)]
        for (i, _), found in pool.run(arrays, request=lambda job: job[1]):
            assert found.tolist() == [i * i] * 3 and found.flags.writeable


def test_workers_stay_between_runs_and_end_with_the_block() -> None:
    with Workers(f"{HERE}:Facts", {}, 2) as pool:
        found = [{pid: asked for _, (pid, asked, _) in pool.run(range(4))} for _ in range(2)]
        pids = {pid for facts in found for pid in facts}
        assert 1 <= len(pids) <= 2 and os.getpid() not in pids
        assert sum(found[1].values()) == 8  # times that they were asked, in both runs
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with Workers(f"{HERE}:Facts", {}) as here:
        assert [item[:2] for _, item in here.run(range(2))] == [(os.getpid(), 1), (os.getpid(), 2)]


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_a_worker_arrive_as_they_are(workers: int) -> None:
    with Workers(f"{HERE}:Fails", {}, workers) as pool:
        with pytest.raises(ConfigError, match="queue_norm"):
            list(pool.run(["own", "own"]))
        with pytest.raises(KeyError, match="my own mistake"):
            list(pool.run(["other"]))
    with (
        Workers(f"{HERE}:Missing", {}, workers) as pool,
        pytest.raises(InfraMindError, match="cannot be imported"),
    ):
        list(pool.run([1]))
    with (
        Workers("nothing", {}, workers) as pool,
        pytest.raises(InfraMindError, match=r"package\.module:name"),
    ):
        list(pool.run([1]))


def test_a_death_costs_a_job_a_retry(tmp_path: Path) -> None:
    deaths: list[tuple[Any, str]] = []

    def retry(job: Any, death: WorkerDiedError) -> list[Any]:
        deaths.append((job, str(death)))
        return [job]

    jobs = [(i, str(tmp_path)) for i in range(4)]
    with Workers(f"{HERE}:Fragile", {}, 2) as pool:
        assert dict(pool.run(jobs, retry=retry)) == {job: job[0] for job in jobs}
        assert deaths == [(jobs[2], "exit code 9")]
        (tmp_path / "died-2").unlink()
        assert dict(pool.run(jobs)) == {job: job[0] for job in jobs}


def test_retries_end(tmp_path: Path) -> None:
    def give_up(job: Any, death: WorkerDiedError) -> list[Any]:
        raise WorkerDiedError(f"job {job}: {death}")

    with Workers(f"{HERE}:Mortal", {}, 2) as pool:
        with pytest.raises(WorkerDiedError, match="job 7: exit code 9"):
            list(pool.run([7], retry=give_up))
        with pytest.raises(WorkerDiedError, match=r"died 3 times .*exit code 9"):
            list(pool.run([7]))
    with pytest.raises(InfraMindError, match="at least 1"):
        Workers(f"{HERE}:Mortal", {}, 0)


SCRIPT = """
from inframind_gym.benchmark.workers import Workers
if __name__ == "__main__":  # its workers import it
    with Workers("tests.benchmarks.workers_under_test:Busy", {}, 2) as pool:
        for _, pid in pool.run(["wait", "compute"]):
            print(pid, flush=True)
"""


def test_workers_end_within_a_second_of_their_parents_death(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).resolve().parents[2]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        assert len({parent.stdout.readline() for _ in range(2)}) == 2
        parent.kill()
        died_s = time.monotonic()
        parent.communicate(timeout=10.0)  # to the end of the last process that can write there
        assert time.monotonic() - died_s < 1.0
