"""The clairvoyant policy: a bound that plays by the rules of the environment."""

import numpy as np
import pytest

from inframind_gym.benchmark.cells import grid
from inframind_gym.benchmark.routing.rollout import Simulator
from inframind_gym.benchmark.routing.suite import RoutingCell, RoutingSuite
from inframind_gym.errors import ConfigError
from inframind_gym.policies import requires_of, resolve_policy
from inframind_gym.policies.builtin import BASELINES, is_bound
from inframind_gym.policies.clairvoyant import ClairvoyantPolicy, small_recipes

SUITE = RoutingSuite(
    name="test",
    policies=("clairvoyant", "budget_greedy"),
    workloads=("math",),
    rates_per_min=(30.0, 200.0),
    budgets_s=("tiers",),
    seeds=2,
    num_queries=60,
)


def played(policy: str, rows: int = 4) -> dict[RoutingCell, np.ndarray]:
    cells = [cell for cell in grid(SUITE) if cell.policy == policy]
    found = {}
    for first in range(0, len(cells), rows):
        for over in Simulator(SUITE).run(cells[first : first + rows]):
            found.update({cell: records.copy() for cell, records, _ in over})
    return {cell: found[cell] for cell in cells}


def goodput(records: np.ndarray) -> float:
    in_time = records["latency_s"] <= records["budget_s"]
    return float(((records["solved"] == 1) & in_time).mean())


def test_it_solves_what_no_contestant_solves_in_time() -> None:
    known = [goodput(records) for records in played("clairvoyant").values()]
    routed = [goodput(records) for records in played("budget_greedy").values()]
    assert min(known) > 0.85
    assert (np.array(known) > np.array(routed)).all()


def test_a_row_does_alone_what_it_does_in_a_batch() -> None:
    together, alone = played("clairvoyant"), played("clairvoyant", rows=1)
    for cell, records in together.items():
        np.testing.assert_array_equal(records, alone[cell])


def test_it_is_registered_as_a_bound_and_not_as_a_baseline() -> None:
    assert is_bound("clairvoyant") and is_bound("clairvoyant:1.5")
    assert not is_bound("least_loaded")
    assert "clairvoyant" not in {entry.name for entry in BASELINES}
    policy = resolve_policy("clairvoyant:1.5")
    assert isinstance(policy, ClairvoyantPolicy) and policy.safety == 1.5
    assert requires_of(policy) == {"level": "joint"}


def test_it_says_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="foresee"):
        ClairvoyantPolicy().act_batch(np.zeros((0, 3)), np.zeros(0), np.zeros(0, np.int64))
    with pytest.raises(ConfigError, match="safety"):
        ClairvoyantPolicy(safety=0.5)


def test_every_recipe_is_written_down_once() -> None:
    recipes = small_recipes(15)
    assert len(np.unique(recipes)) == len(recipes) == 3 * 15 + 4 * 15 * 15
