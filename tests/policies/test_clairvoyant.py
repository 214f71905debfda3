"""The clairvoyant policy: a bound that plays by the rules of the environment."""

import numpy as np
import pytest

from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.routing import RoutingSuite
from inframind_gym.evaluation.store import digest_of
from inframind_gym.evaluation.suite import Cell
from inframind_gym.policies.clairvoyant import ClairvoyantPolicy

SUITE = RoutingSuite(
    name="test",
    policies=("clairvoyant", "budget_greedy"),
    workloads=("math",),
    rates_per_min=(30.0, 200.0),
    budgets_s=("tiers",),
    seeds=2,
    num_queries=60,
)


def played(policy: str, rows: int = 4) -> dict[Cell, np.ndarray]:
    cells = [cell for cell in SUITE.cells() if cell.policy == policy]
    found = {}
    for first in range(0, len(cells), rows):
        over = SUITE.player().run(cells[first : first + rows])
        found.update({cell: records for cell, records, _ in over})
    return {cell: found[cell] for cell in cells}


def goodput(records: dict[str, np.ndarray]) -> float:
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
        assert digest_of(records) == digest_of(alone[cell])


def test_it_says_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match="foresee"):
        ClairvoyantPolicy().act_batch(np.zeros((0, 3)), np.zeros(0), np.zeros(0, np.int64))
    with pytest.raises(ConfigError, match="safety"):
        ClairvoyantPolicy(safety=0.5)
