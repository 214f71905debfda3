"""The fluid bound: toys by hand, and a router that it bounds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("scipy")

from inframind_gym.evaluation import bounds, informed
from inframind_gym.evaluation.bounds import fluid_bound
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.evaluation.informed import (
    Resources,
    Tables,
    first_recipes,
    neighbours,
    resources_of,
    solve,
)
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph
from tests.evaluation.synthetic_results import routing

ONE = Resources(("server",), np.ones((1, 1)), np.ones(1))
N = 40


def suite(**changes: Any) -> RoutingSuite:
    content: dict[str, Any] = {
        "name": "test",
        "policies": ["random"],
        "workloads": ["mmlu_pro"],
        "rates_per_min": [10, 200],
        "budgets_s": ["tiers"],
        "seeds": 2,
        "num_queries": N,
    }
    return RoutingSuite.model_validate({**content, **changes})


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fewer recipes, and less luck to average over."""
    monkeypatch.setattr(informed, "SEARCH_DRAWS", 1)
    monkeypatch.setattr(informed, "SEARCH_ROUNDS", 1)
    monkeypatch.setattr(informed, "SEARCH_WIDTH", 50)
    monkeypatch.setattr(informed, "FINAL_DRAWS", 6)
    bounds._informed.cache_clear()
    yield
    bounds._informed.cache_clear()


# Capacity.


def test_models_that_share_a_gpu_share_its_time() -> None:
    """At a slowdown of 1.19 three models do less than one alone, at 0.25 more."""
    pool = load_pool("b200-2gpu")
    resources = resources_of(pool)
    assert resources.names == ("gpu0", "gpu1")
    np.testing.assert_array_equal(resources.rate, [1.0, 1.0])
    np.testing.assert_array_equal(resources.uses[:, 0], np.array(pool.gpu_index) == 0)
    gpus = tuple(gpu.model_copy(update={"colocation_slowdown": 0.25}) for gpu in pool.gpus)
    resources = resources_of(pool.model_copy(update={"gpus": gpus}))
    assert resources.names == (*pool.aliases, "gpu0", "gpu1")
    np.testing.assert_allclose(resources.rate, [1, 1, 1, 1, 1, 2 / 1.25, 3 / 1.5])


# The informed bound.


def test_the_informed_program_by_hand() -> None:
    cheap, dear = (0, 1, 0, (0,)), (0, 1, 0, (1,))
    tables = Tables(
        [cheap, dear],
        good=np.array([[[0.5]], [[0.9]]]),
        solved=np.array([[0.5], [0.9]]),
        work_s=np.array([[[1.0]], [[4.0]]]),
    )

    def at(span_s: float) -> informed.Plan:
        whole = np.ones(1)
        return solve(tables, whole, whole, np.array([10.0]), span_s, 10, ONE)

    assert at(1000.0).goodput == pytest.approx(0.9)
    assert at(0.0).goodput == pytest.approx(0.5)  # 10 seconds for 10 queries
    half = at(15.0)  # 25 seconds: half of them may cost 4
    assert half.goodput == pytest.approx(0.7)
    assert half.used == pytest.approx({(0, 0, cheap): 0.5, (0, 0, dear): 0.5})
    assert half.price[0, 0] == pytest.approx(0.4 / 3.0)


def test_queries_of_short_budgets_must_fit_before_the_others() -> None:
    tables = Tables(
        [(0, 1, 0, (0,))],
        good=np.ones((1, 1, 2)),
        solved=np.ones((1, 1)),
        work_s=np.ones((1, 1, 1)),
    )
    whole = np.ones(1)
    plan = solve(tables, whole, np.array([0.5, 0.5]), np.array([2.0, 100.0]), 0.0, 10, ONE)
    assert plan.goodput == pytest.approx(0.7)  # 2 of the 5 urgent ones, and all others


def test_a_static_router_stays_below_the_informed_bound(quick: None) -> None:
    shared = suite(seeds=6)
    bound = fluid_bound(suite(), "mmlu_pro", 10.0, "tiers")
    policy = "static:qwen-14b:DeepThink"
    cells = [routing(policy, "mmlu_pro", 10.0, "tiers", s) for s in shared.seed_list]
    bounds_cells = [goodput(records) for _, records, _ in shared.player().run(cells)]
    noise = 3 * np.std(bounds_cells, ddof=1) / np.sqrt(len(bounds_cells))
    assert np.mean(bounds_cells) <= bound + noise
    assert 0.5 < bound < 1.0


def test_more_load_and_less_time_allow_less(quick: None) -> None:
    at = {
        (rate, budget): fluid_bound(suite(num_queries=200), "mmlu_pro", rate, budget)
        for rate in (10.0, 6000.0)
        for budget in (10.0, 100.0)
    }
    assert at[10.0, 10.0] >= at[6000.0, 10.0] + 0.1
    assert at[6000.0, 100.0] > at[6000.0, 10.0]
    assert at[10.0, 100.0] > at[10.0, 10.0]


def test_neighbours_are_other_recipes_of_the_right_length() -> None:
    kinds = (RoleRule.SINGLE, RoleRule.DOUBLE)
    for recipe in first_recipes(6, kinds):
        found = neighbours(recipe, 6, kinds)
        assert recipe not in found and len(set(found)) == len(found)
        for topology, agents, kind, routes in found:
            assert len(routes) == graph(TOPOLOGIES[topology], agents).num_nodes
            assert kind in kinds and max(routes) < 6
            assert TOPOLOGIES[topology] != "CoT"


# What is kept.


def test_a_bound_is_computed_once(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = fluid_bound(suite(), "mmlu_pro", 60.0, 30.0, cache=tmp_path)

    def fail(*_: object) -> NDArray[np.float64]:
        raise AssertionError("computed again")

    monkeypatch.setattr(bounds, "informed_plan", fail)
    assert fluid_bound(suite(), "mmlu_pro", 60.0, 30.0, cache=tmp_path) == found
    with pytest.raises(AssertionError, match="again"):
        fluid_bound(suite(num_queries=N + 1), "mmlu_pro", 60.0, 30.0, cache=tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_text("{}")
    with pytest.raises(BenchmarkError, match="Delete it"):
        fluid_bound(suite(), "mmlu_pro", 60.0, 30.0, cache=tmp_path)


def goodput(records: dict[str, NDArray[Any]]) -> float:
    in_time = records["latency_s"] <= records["budget_s"]
    return float(((records["solved"] == 1) & in_time).mean())
