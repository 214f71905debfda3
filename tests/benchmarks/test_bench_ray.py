"""Cells on a local Ray cluster of two nodes: the same records as in one process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.runner import run
from inframind_gym.evaluation.store import read_cells

ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray` brings it")
cluster_utils = pytest.importorskip("ray.cluster_utils")

MINE = "tests.evaluation.policies_under_test"
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core each."""
    with pytest.MonkeyPatch.context() as patch:
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


def digests(folder: Path) -> dict[str, str]:
    return {one.cell_id: one.digest for one in read_cells(folder) if one is not None}


def test_the_same_records_as_in_one_process(cluster: Any, tmp_path: Path) -> None:
    config = suite("random", f"{MINE}:Learner")
    run(config, tmp_path / "two", workers=2, ray_address=cluster.address, max_rows=2)
    run(config, tmp_path / "one", workers=1)
    assert digests(tmp_path / "two") == digests(tmp_path / "one")
    assert not ray.is_initialized()


def test_a_policy_that_fails_or_always_dies_is_an_error(cluster: Any, tmp_path: Path) -> None:
    where = {"workers": 2, "ray_address": cluster.address}
    with pytest.raises(BenchmarkError, match=r"(?s)RaisesLater: failed with KeyError.*my own"):
        run(suite(f"{MINE}:RaisesLater"), tmp_path / "raises", strict=True, **where)
    with pytest.raises(BenchmarkError, match="a process died 3 times"):
        run(suite(f"{MINE}:AlwaysDies"), tmp_path / "dies", max_rows=2, **where)
