"""The oracle's outcome of a recipe is what the environment then does."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.policies.oracle import RECIPE
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES
from tests.policies.recipes import RULES, carry_out, foreseen, random_recipes, stream


@pytest.mark.parametrize(("workload", "execution"), RULES)
def test_a_recipe_does_what_was_foreseen(workload: str, execution: str) -> None:
    env = stream(workload, execution)
    recipes = random_recipes(env.simulation.num_queries, env.simulation.num_routes, seed=1)
    records, calls = carry_out(env, recipes)
    outcomes, work_s = foreseen(env, recipes)
    assert set(recipes["topology"]) == set(range(len(TOPOLOGIES)))
    assert set(recipes["num_agents"]) == set(range(1, MAX_AGENTS + 1))
    assert set(recipes["role_kind"]) == set(RoleRule)
    for field in ("solved", "calls", "final_model", "right"):
        np.testing.assert_array_equal(outcomes[field], records[field], err_msg=field)
    np.testing.assert_array_equal(outcomes["tokens"], records["output_tokens"])
    assert 0.2 < outcomes["solved"].mean() < 1.0
    # Servers are shared: no query is faster than on idle ones.
    assert (records["latency_s"] >= outcomes["latency_s"] * (1 - 1e-9)).all()
    # And the work is no more than the time that the servers were busy.
    busy_s = np.array([covered_s(calls[calls["model"] == m]) for m in range(work_s.shape[1])])
    assert (work_s.sum(axis=0) <= busy_s).all()
    assert work_s.sum() > 0.05 * busy_s.sum()


def test_alone_on_idle_servers_a_query_takes_what_was_foreseen() -> None:
    env = stream("mmlu_pro", "parallel", rate_per_min=0.02, queries=12)
    recipes = np.zeros(12, RECIPE)
    recipes["num_agents"] = 1
    recipes["topology"] = np.arange(12) % 2 * TOPOLOGIES.index("Reflection")
    recipes["route"] = np.arange(12)[:, None]
    records, _ = carry_out(env, recipes)
    outcomes, _ = foreseen(env, recipes)
    np.testing.assert_allclose(records["latency_s"], outcomes["latency_s"], rtol=1e-9)


def covered_s(calls: NDArray[Any]) -> float:
    """Time in which at least one of the calls was running."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(zip(calls["admitted_s"], calls["finish_s"], strict=True)):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
