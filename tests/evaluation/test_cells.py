"""Cells, suites and the options that change them."""

import dataclasses

import pytest

from inframind_gym.configs import read_setting
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.cells import Cell, in_order
from inframind_gym.evaluation.placement import PlacementSuite
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.suite import load_suite
from inframind_gym.evaluation.tracks import TrackSuite
from tests.evaluation.synthetic_results import routing

CELL = routing("random", "mixed", 100.0, 30.0, 0)
PLACEMENT = PlacementSuite.cell("lru", "h100-4gpu", "steady", seed=0)


def suite(**changes: object) -> RoutingSuite:
    content: dict[str, object] = {
        "name": "test",
        "policies": ["a", "b"],
        "workloads": ["w"],
        "rates_per_min": [10, 100],
        "budgets_s": [30, "tiers"],
        "seeds": 3,
    }
    return RoutingSuite.model_validate({**content, **changes})


@pytest.mark.parametrize("cell", [CELL, PLACEMENT])
def test_policies_meet_the_same_episode_and_other_cells_another(cell: Cell) -> None:
    assert dataclasses.replace(cell, policy="other").episode_seed == cell.episode_seed
    places = [(*cell.place[:i], 7.0, *cell.place[i + 1 :]) for i in range(1, len(cell.place))]
    places.append(("other", *cell.place[1:]))
    changed = [dataclasses.replace(cell, place=place) for place in places]
    changed.append(dataclasses.replace(cell, seed=1))
    assert len({one.episode_seed for one in [cell, *changed]}) == len(changed) + 1
    assert cell.policy_seed != cell.episode_seed


def test_posterior_draws_of_a_workload_meet_its_episodes() -> None:
    drawn = dataclasses.replace(CELL, place=("mixed#7", *CELL.place[1:]))
    assert (drawn.episode_seed, drawn.policy_seed) == (CELL.episode_seed, CELL.policy_seed)
    assert drawn.id("s", "p") != CELL.id("s", "p")
    own = suite(workloads=["w#0", "w#1"], by_workload={"w": {"num_queries": 8}})
    assert own.queries_of("w#1") == 8


def test_workloads_may_have_budgets_and_lengths_of_their_own() -> None:
    """Those of the published runs: HumanEval has 131 questions, MATH met more budgets."""
    suite = load_suite("published")
    places = list(suite.places())
    assert len(places) == len(set(places)) == 4 * (8 + 4 * 5)
    assert ("humaneval", 10, 1000) not in places
    humaneval = next(cell for cell in suite.cells() if cell.place[0] == "humaneval")
    assert (suite.length(humaneval), suite.queries_of("math")) == (131, 500)
    short = load_suite("published", {"num_queries": 7})
    assert (short.queries_of("humaneval"), short.queries_of("math")) == (7, 7)
    assert set(load_suite("published", {"workloads": ("math",)}).by_workload) == {"math"}


def test_settings_of_a_command_line_are_read() -> None:
    for text, value in {
        "budgets_s=30,tiers": (30, "tiers"),
        "rates_per_min=10": (10,),
        "seeds=5": 5,
        "seeds=0, 1": (0, 1),
        "seeds=7,": (7,),
        "workloads=math, a/b:1,": ("math", "a/b:1"),
        "num_queries=12": 12,
        "split=val": "val",
        "tasks=12": "12",
        "arrivals=burst": "burst",
        "arrivals={kind: burst, factor: 3}": {"kind": "burst", "factor": 3},
    }.items():
        assert read_setting(text, RoutingSuite) == (text.split("=")[0], value), text
    assert read_setting("loads=0.6,0.9", TrackSuite) == ("loads", (0.6, 0.9))
    for text, says in (
        ("rates", "--set rates: write KEY=VALUE"),
        ("rate=10", r"Did you mean 'rates'\? Known: rates, budgets, queries, kind"),
        ("exection=parallel", "Did you mean 'execution'"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_suite("starter", settings=[text])
    assert load_suite("starter", settings=["queries=9"]).num_queries == 9


def test_numbers_in_names_are_sorted_as_numbers_and_tiers_come_last() -> None:
    places = [("gpu", 1, 1), ("gpu4", 200.0, 30.0)]
    places += [("gpu16", 50.0, 300.0), ("gpu16", 50.0, "tiers"), ("tiers", 0.6, 30.0)]
    assert sorted(reversed(places), key=in_order) == places
