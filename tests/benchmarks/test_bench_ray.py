"""Cells and jobs on a local Ray cluster of two nodes: the same results after a death."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.benchmark.errors import BenchmarkError
from inframind_gym.benchmark.routing.suite import RoutingSuite
from inframind_gym.benchmark.runner import run
from inframind_gym.benchmark.store import CELLS, read_cells
from inframind_gym.benchmark.workers import RayError, Workers, checkout_env

ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray` brings it")
cluster_utils = pytest.importorskip("ray.cluster_utils")

ROOT = Path(__file__).resolve().parents[2]
MINE = "tests.benchmark.policies_under_test"
WORKERS = "tests.benchmarks.workers_under_test"
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Any]:
    """Two nodes of one core each; its workers see DIES_ONCE, a flag of the policy of that name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIES_ONCE", str(folder / "flag"))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = cluster_utils.Cluster(initialize_head=True, head_node_args=NODE)
        try:
            made.add_node(**NODE)
            yield made
        finally:
            made.shutdown()


def suite(*policies: str) -> RoutingSuite:
    content = {
        "name": "small",
        "policies": policies,
        "workloads": ["mixed"],
        "rates_per_min": [200],
        "budgets_s": [30, "tiers"],
        "seeds": 2,
        "num_queries": 12,
    }
    return RoutingSuite.model_validate(content).resolve()


def cells_of(folder: Path) -> bytes:
    return (folder / CELLS).read_bytes()


def test_the_same_bytes_as_in_one_process_and_a_death_costs_a_retry(
    cluster: Any, folder: Path
) -> None:
    config = suite("random", f"{MINE}:Learner", f"{MINE}:DiesOnce")
    run(config, folder / "two", workers=2, ray_address=cluster.address, max_rows=2)
    assert (folder / "flag").exists()
    os.environ["DIES_ONCE"] = str(folder / "flag")
    run(config, folder / "one", workers=1)
    assert cells_of(folder / "two") == cells_of(folder / "one")
    assert not ray.is_initialized()


def test_a_policy_that_fails_or_always_dies_is_an_error(cluster: Any, folder: Path) -> None:
    where = {"workers": 2, "ray_address": cluster.address}
    with pytest.raises(
        BenchmarkError, match=r"(?s)RaisesLater: failed with KeyError.*my own mistake"
    ):
        run(suite(f"{MINE}:RaisesLater"), folder / "raises", strict=True, **where)
    with pytest.raises(BenchmarkError, match="a worker died 3 times"):
        run(suite(f"{MINE}:AlwaysDies"), folder / "dies", max_rows=4, **where)


def test_jobs_outlive_a_worker_and_a_node(cluster: Any, folder: Path) -> None:
    jobs = [(i, str(folder)) for i in range(6)]
    with Workers(f"{WORKERS}:Fragile", {}, 2, cluster.address) as pool:
        assert dict(pool.run(jobs)) == {job: job[0] for job in jobs}
    assert (folder / "died-2").exists()
    with Workers(f"{WORKERS}:Facts", {}, 2, cluster.address) as pool:
        pids = {pid for _, (pid, _, _) in pool.run(range(4))}
        assert len(pids) == 2 and os.getpid() not in pids
        found = list(pool.run(range(2)))  # by the same workers, in the same folder
        assert {pid for _, (pid, _, _) in found} == pids
        assert {where for _, (_, _, where) in found} == {os.getcwd()}  # paths may be relative
    with Workers(f"{WORKERS}:Square", {}, 2, cluster.address) as pool:
        ((_, array),) = pool.run([np.arange(3.0)])
        assert array.tolist() == [0.0, 1.0, 4.0] and array.flags.writeable
    node = cluster.add_node(**NODE)
    with Workers(f"{WORKERS}:Square", {"seconds": 0.5}, 3, cluster.address) as pool:
        results = pool.run(range(6))
        seen = [next(results)]
        cluster.remove_node(node, allow_graceful=False)
        assert dict([*seen, *results]) == {i: i * i for i in range(6)}


def test_ctrl_c_keeps_what_has_finished_and_a_run_without_ray_continues(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "benchmarks", "run", "--policies", "random,least_loaded,moa"]
    line += ["--rates", "20,200", "--budgets", "30,tiers", "--seeds", "3", "--queries", "100"]
    cut = [*line, "--max-rows", "2", "--ray-address", "local", "--workers", "2"]
    cut += ["--out", str(tmp_path / "cut")]
    process = subprocess.Popen(cut, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    cells = tmp_path / "cut" / CELLS
    while not cells.exists() or not cells.stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Continue with: " in err
    kept = len(list(read_cells(tmp_path / "cut")))
    here = [*line, "--out", str(tmp_path / "cut"), "--workers", "2", "--json"]
    done = subprocess.run(here, cwd=ROOT, capture_output=True, check=True)
    assert json.loads(done.stdout)["kept"] == kept > 0
    whole = [*line, "--workers", "1", "--out", str(tmp_path / "whole")]
    subprocess.run(whole, cwd=ROOT, check=True, capture_output=True)
    assert cells_of(tmp_path / "cut") == cells_of(tmp_path / "whole")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "locl"])
def test_an_address_without_a_cluster_is_an_error(address: str) -> None:
    with pytest.raises(RayError, match=f"no Ray cluster can be reached at '{address}'"):
        Workers(f"{WORKERS}:Square", {}, 1, address)


def test_other_machines_get_the_packages_alone() -> None:
    excluded = {name.strip("/") for name in checkout_env()["excludes"]}
    kept = {path.name for path in ROOT.iterdir()} - excluded
    assert {"agents", "baselines", "benchmarks", "envs_configs", "inframind_gym"} <= kept
    assert not kept & {".git", ".venv", "results", "runs", "docs"}
