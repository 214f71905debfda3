"""The informed bound: where the search looks, what servers can do, toys in steady load by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inframind_gym.evaluation.bounds import (
    Informed,
    Resources,
    SteadyBound,
    Tables,
    compute_limits,
    first_recipes,
    neighbours,
    resources_of,
)
from inframind_gym.evaluation.oracle import Recipe
from inframind_gym.evaluation.scenarios import load_limits
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph

ONE = Resources(("server",), np.ones((1, 1)), np.ones(1))
CHEAP, DEAR = Recipe(0, 1, 0, (0,)), Recipe(0, 1, 0, (1,))


def bound(good: Any, drawn_s: tuple[float, ...] = (10.0,), gpus: int = 1) -> SteadyBound:
    """A cheap recipe of 1 s and a dear one of 4 s on one server; `good` (2, 1, B)."""
    tables = Tables([CHEAP, DEAR], np.array(good, float), work_s=np.array([[[1.0]], [[4.0]]]))
    recipes = Informed(np.unique(drawn_s), tables, np.ones(1), ONE, np.array([float(gpus)]))
    return SteadyBound(recipes, drawn_s)


PLAIN = [[[0.5]], [[0.9]]]  # of the cheap recipe and the dear one
QUARTER = ([[[0.4, 0.6]], [[0.8, 0.6]]], (10.0, 20.0, 20.0, 20.0))  # has 10 s, the others 20 s
EQUAL = ([[[0.4, 0.6]], [[0.4, 0.6]]], (10.0, 20.0))


@pytest.mark.parametrize(
    ("toy", "rate_per_min", "options", "score"),
    [
        ((PLAIN,), 0.01, {}, 0.9),
        ((PLAIN,), 60.0 / 2.5, {}, 0.7),  # 2.5 s a query: half of them may cost 4
        ((PLAIN,), 60.0, {}, 0.5),
        ((PLAIN,), 120.0, {}, 0.25),  # half of the queries are dropped
        ((PLAIN,), 0.01, {"cap_s": 2.5}, 0.7),  # a cap binds like the servers
        ((PLAIN, (10.0,), 2), 0.01, {"cap_s": 2.0}, 0.5),  # and counts every GPU
        # Queries count by weight and share; the dear recipe pays for the first quarter alone.
        (QUARTER, 0.01, {}, 0.25 * 0.8 + 0.75 * 0.6),
        (QUARTER, 0.01, {"weights": (3.0, 1.0)}, (0.75 * 0.8 + 0.75 * 0.6) / 1.5),
        (QUARTER, 60.0, {"weights": (3.0, 1.0)}, (0.75 * 0.4 + 0.75 * 0.6) / 1.5),  # all are cheap
        # The worst budget is as good as all can be; later each has half of its queries.
        (EQUAL, 0.01, {"worst": True}, 1.0),
        (EQUAL, 120.0, {"worst": True}, 0.5),
    ],
)
def test_the_work_that_arrives_in_a_second_fits_into_a_second(
    toy: tuple[Any, ...], rate_per_min: float, options: dict[str, Any], score: float
) -> None:
    assert bound(*toy).plan(rate_per_min, **options).score == pytest.approx(score)


def test_reach_and_work_of_a_plan() -> None:
    assert bound(PLAIN).reach.tolist() == [0.9]
    np.testing.assert_allclose(bound(*QUARTER).reach, [0.8, 0.6])
    assert bound(PLAIN).plan(60.0 / 2.5).work_s == pytest.approx(2.5)
    assert bound(PLAIN, gpus=2).plan(0.01, cap_s=2.0).work_s == pytest.approx(2.0)


def test_arrivals_have_the_bound_of_the_times_at_which_they_come() -> None:
    """A hundred at once have 20 s of work until their budget ends; a late one has all it wants."""
    one = bound(PLAIN)
    assert one.of_arrivals(np.arange(0.5, 240.0) * 2.5) == pytest.approx(0.7, abs=0.003)
    burst = np.append(np.full(100, 5.0), 95.0)
    assert one.of_arrivals(burst) == pytest.approx((20 * 0.5 + 0.9) / 101, abs=0.001)
    patient = bound(PLAIN, (40.0,)).of_arrivals(burst)  # 50 s of work
    assert patient == pytest.approx((50 * 0.5 + 0.9) / 101, abs=0.001)


def test_capacity_is_where_nine_tenths_are_left() -> None:
    """0.81 of 0.9: 77.5 % of the queries are dear, 3.325 s each."""
    assert bound(PLAIN).capacity_per_min() == pytest.approx(60.0 / 3.325, rel=0.003)


def test_bounds_are_computed_again_at_capacities_that_stay(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nloads: [0.5, 1]\nscenarios: {one: {workload: math, budgets_s: [10]}}\n"
    )

    def toy(scenario: Any) -> SteadyBound:
        return bound(PLAIN)

    written = compute_limits(str(path), bound_of=toy)
    (made,) = load_limits(str(path)).values()
    assert made.capacity_per_min == pytest.approx(60.0 / 3.325, rel=0.003)
    assert made.informed[1.0] == pytest.approx(0.81, abs=0.002)
    at_24 = made.model_copy(update={"capacity_per_min": 24.0})
    written.write_text(written.read_text().replace(f"{made.capacity_per_min:g}", "24"))
    compute_limits(str(path), bound_of=toy)
    assert load_limits(str(path))["one"] == at_24
    compute_limits(str(path), bound_of=toy, again=True)
    again = load_limits(str(path))["one"]
    assert (again.capacity_per_min, again.informed[1.0]) == (24.0, 0.7)


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


def test_neighbours_are_other_recipes_of_the_right_length() -> None:
    kinds = (RoleRule.SINGLE, RoleRule.DOUBLE)
    for recipe in first_recipes(6, kinds):
        found = neighbours(recipe, 6, kinds)
        assert recipe not in found and len(set(found)) == len(found)
        for topology, agents, kind, routes in found:
            assert len(routes) == graph(TOPOLOGIES[topology], agents).num_nodes
            assert kind in kinds and max(routes) < 6
            assert TOPOLOGIES[topology] != "CoT"
