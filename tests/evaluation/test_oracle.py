"""The oracle's outcome of a recipe is what the environment then does."""

from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.evaluation.oracle import (
    Recipe,
    best_role,
    make_oracle,
    outcomes_of,
    work_of_calls,
)
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.state import COMPLETED, FINAL, PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, graph

# Workloads and executions whose rules differ.
RULES = [("math", "parallel"), ("mbpp", "parallel"), ("humaneval", "sequential")]


def random_recipes(count: int, routes: int, seed: int) -> list[Recipe]:
    rng, recipes = np.random.default_rng(seed), []
    for _ in range(count):
        topology, agents = int(rng.integers(len(TOPOLOGIES))), int(rng.integers(1, MAX_AGENTS + 1))
        chosen = rng.integers(routes, size=graph(TOPOLOGIES[topology], agents).num_nodes)
        kind = RoleRule(rng.integers(len(RoleRule)))
        recipes.append(Recipe(topology, agents, kind, tuple(chosen.tolist())))
    return recipes


class Played(NamedTuple):
    """N queries by as many recipes: in an environment, and as the oracle foresees them."""

    records: NDArray[Any]  # (N,) COMPLETED by ordinal
    calls: NDArray[Any]  # CALL of all
    worked_s: NDArray[np.float64]  # (N, M) work of the calls that count
    solved: NDArray[np.bool_]  # (N,) as foreseen, like the next two
    latency_s: NDArray[np.float64]  # (N,)
    work_s: NDArray[np.float64]  # (N, M)


def played(workload: str, execution: str, rate_per_min: float, recipes: list[Recipe]) -> Played:
    env: Any = gym.make(
        "InfraMind-Stream-v0",
        workload=workload,
        execution=execution,
        level="joint",
        observation="index",
        num_queries=len(recipes),
        arrival_rate_per_min=rate_per_min,
        record_calls=True,
    ).unwrapped
    env.reset(seed=3)
    simulation, params = env.simulation, env.simulation.params
    records, action, over = np.zeros(len(recipes), COMPLETED), np.zeros(9, np.int64), False
    while not over:
        context = env.context()
        topology, agents, kind, routes = recipes[context["query"]]
        if context["kind"] == PLAN:
            role = best_role(params, int(context["task"]), kind)
            action[:2] = topology, agents - 1
            action[2:8] = role - params.role_start[context["domain"]]
        else:
            action[8] = routes[context["node"]]
        _, _, over, _, _ = env.step(action)
        done = env.completed()
        records[done["query"]] = done
    oracle, calls = make_oracle(params, cards(simulation.pool)), simulation.calls(0)
    counted = calls if execution == "parallel" else calls[calls["phase"] != FINAL]
    worked_s = np.zeros((len(records), len(simulation.pool.models)))
    work_of_calls(oracle, counted, worked_s)
    key, tasks = simulation.state.stream[0]["key"], simulation.state.task[0].astype(np.int64)
    foreseen = (
        [part[q] for part in outcomes_of(oracle, key, tasks, recipe)]
        for q, recipe in enumerate(recipes)
    )
    return Played(records, calls, worked_s, *map(np.array, zip(*foreseen, strict=True)))


@pytest.mark.parametrize(("workload", "execution"), RULES)
def test_a_recipe_does_what_was_foreseen(workload: str, execution: str) -> None:
    recipes = random_recipes(80, routes=15, seed=1)
    topologies, agents, kinds, _ = zip(*recipes, strict=True)
    assert set(topologies) == set(range(len(TOPOLOGIES)))
    assert set(agents) == set(range(1, MAX_AGENTS + 1)) and set(kinds) == set(RoleRule)
    found = played(workload, execution, 20.0, recipes)
    np.testing.assert_array_equal(found.solved, found.records["solved"])
    # Calls, their models and their tokens are the same, or their work would differ.
    np.testing.assert_allclose(found.work_s, found.worked_s, rtol=1e-12)
    assert 0.2 < found.solved.mean() < 1.0
    # Servers are shared: no query is faster than on idle ones.
    assert (found.records["latency_s"] >= found.latency_s * (1 - 1e-9)).all()
    # And the work is no more than the time that the servers were busy.
    models = range(found.work_s.shape[1])
    busy_s = np.array([covered_s(found.calls[found.calls["model"] == m]) for m in models])
    assert (found.work_s.sum(axis=0) <= busy_s).all()
    assert found.work_s.sum() > 0.05 * busy_s.sum()


def test_alone_on_idle_servers_a_query_takes_what_was_foreseen() -> None:
    topologies = [q % 2 * TOPOLOGIES.index("Reflection") for q in range(12)]
    recipes = [Recipe(topology, 1, 0, (q,)) for q, topology in enumerate(topologies)]
    found = played("mmlu_pro", "parallel", 0.02, recipes)
    np.testing.assert_allclose(found.records["latency_s"], found.latency_s, rtol=1e-9)


def covered_s(calls: NDArray[Any]) -> float:
    """Time in which at least one of the calls was running."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(zip(calls["admitted_s"], calls["finish_s"], strict=True)):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
