"""A fleet gives the same results wherever its shards are, and says who has died."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.benchmark.workers import Fleet, WorkerDiedError, Workers, run_jobs
from inframind_gym.errors import ConfigError, InfraMindError

HERE = "tests.agents.shards_under_test"


def fleet(workers: int = 1, shards: int = 3, ray_address: str | None = None) -> Fleet:
    configs = [{"seed": i} for i in range(shards)]
    return Fleet(f"{HERE}:Counter", configs, workers, ray_address)


def play(shards: Fleet) -> list[Any]:
    return [shards.call("add", 1.0), shards.call("add", 0.5, each=[10.0, 20.0, 30.0])]


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    with fleet(1) as inline, fleet(2) as two, fleet(8) as many:
        expected = play(inline)
        for spread in (two, many):
            assert play(spread) == expected
            doubled = spread.call("double", np.arange(2.0))
            assert [array.tolist() for array in doubled] == [[0.0, 2.0]] * 3
        assert [total for total, _ in expected[1]] == [11.5, 22.5, 33.5]
        assert len(set(inline.call("where"))) == 1
        assert len(set(two.call("where"))) == 2
        assert len(set(many.call("where"))) == 3


def test_a_dead_worker_is_named_and_made_again_while_the_others_keep_their_state(
    tmp_path: Path,
) -> None:
    flag = str(tmp_path / "flag")
    with fleet(3) as shards:
        with pytest.raises(WorkerDiedError, match=r"worker 1 died \(exit code 9\) in 'die_once'"):
            shards.call("die_once", flag)
        with pytest.raises(WorkerDiedError, match="restart"):
            shards.call("add", 1.0)
        shards.restart()
        assert [total for total, _ in shards.call("add", 0.0)] == [100.0, 1.0, 102.0]


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_of_a_shard_arrive_as_they_are(workers: int) -> None:
    with fleet(workers) as shards:
        with pytest.raises(ConfigError, match="queue_norm"):
            shards.call("fail", "own")
        with pytest.raises(KeyError, match="my own mistake"):
            shards.call("fail", "other")
        assert len(shards.call("where")) == 3
        with pytest.raises(InfraMindError, match="each has 2 items for 3 shards"):
            shards.call("add", 1.0, each=[1, 2])


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(InfraMindError, match=r"package\.module:name"):
        Fleet("nothing", [{}])
    with (
        Fleet(f"{HERE}:Missing", [{}, {}], workers=2) as shards,
        pytest.raises(InfraMindError, match="cannot be imported"),
    ):
        shards.call("add", 1.0)


def test_shards_play_while_their_results_are_not_yet_asked_for() -> None:
    for workers in (1, 2):
        with fleet(workers) as shards:
            shards.ask("add", 1.0, each=[1.0, 2.0, 3.0])
            assert [total for total, _ in shards.results()] == [2.0, 4.0, 6.0]


def test_a_death_costs_a_job_a_retry(tmp_path: Path) -> None:
    deaths: list[tuple[Any, str]] = []

    def retry(job: Any, death: WorkerDiedError) -> list[Any]:
        deaths.append((job, str(death)))
        return [job]

    jobs = [(i, str(tmp_path)) for i in range(4)]
    with Workers(2) as where:
        done = dict(run_jobs(where, f"{HERE}:Fragile", {}, jobs, retry=retry))
    assert done == {job: job[0] for job in jobs}
    assert deaths == [(jobs[2], "exit code 9")]


def test_a_retry_may_give_up(tmp_path: Path) -> None:
    def give_up(job: Any, death: WorkerDiedError) -> list[Any]:
        raise WorkerDiedError(f"job {job[0]}: {death}")

    jobs = [(i, str(tmp_path)) for i in range(4)]
    with Workers(2) as where, pytest.raises(WorkerDiedError, match="job 2: exit code 9"):
        list(run_jobs(where, f"{HERE}:Fragile", {}, jobs, retry=give_up))
