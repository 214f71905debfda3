"""The oracle's outcome of a recipe is what the environment then does."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.envs.routing import StreamVectorEnv
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


def stream(
    workload: str, execution: str, rate_per_min: float = 20.0, queries: int = 80
) -> StreamVectorEnv:
    made = gym.make_vec(
        "InfraMind-Stream-v0",
        num_envs=1,
        workload=workload,
        execution=execution,
        level="joint",
        observation="index",
        num_queries=queries,
        arrival_rate_per_min=rate_per_min,
        record_calls=True,
    ).unwrapped
    assert isinstance(made, StreamVectorEnv)
    made.reset(seed=3)
    return made


def random_recipes(count: int, routes: int, seed: int) -> list[Recipe]:
    rng, recipes = np.random.default_rng(seed), []
    for _ in range(count):
        topology, agents = int(rng.integers(len(TOPOLOGIES))), int(rng.integers(1, MAX_AGENTS + 1))
        chosen = rng.integers(routes, size=graph(TOPOLOGIES[topology], agents).num_nodes)
        kind = int(rng.integers(len(RoleRule)))
        recipes.append(Recipe(topology, agents, kind, tuple(chosen.tolist())))
    return recipes


def carry_out(
    env: StreamVectorEnv, recipes: list[Recipe]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    """Run an episode that has just been reset; query q goes by recipe q.

    Returns:
        (N,) COMPLETED by ordinal, all CALL records, and the work (N, M) of those that count.
    """
    simulation = env.simulation
    world, recorded = simulation.params, simulation.state.call[0]
    done = np.zeros(len(recipes), COMPLETED)
    action, over = np.zeros((1, 9), np.int64), [False]
    while not over[0]:
        context = env.contexts()[0]
        topology, agents, kind, routes = recipes[context["query"]]
        if context["kind"] == PLAN:
            role = best_role(world, int(context["task"]), kind)
            action[0, :2] = topology, agents - 1
            action[0, 2:8] = role - world.role_start[context["domain"]]
        else:
            action[0, 8] = routes[context["node"]]
        _, _, over, _, _ = env.step(action)
        _, records = env.completed()
        done[records["query"]] = records
    calls = recorded[: int(done["calls"].sum())].copy()
    counted = (
        calls if simulation.config.execution != "sequential" else calls[calls["phase"] != FINAL]
    )
    work_s = np.zeros((len(done), len(simulation.pool.models)))
    work_of_calls(make_oracle(world, cards(simulation.pool)), counted, work_s)
    return done, calls, work_s


def foreseen(
    env: StreamVectorEnv, recipes: list[Recipe]
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """Outcome (N,), latency (N,) and work (N, M) of every query by its own recipe."""
    simulation = env.simulation
    env.reset(seed=3)
    key, tasks = simulation.state.stream[0]["key"], simulation.state.task[0].astype(np.int64)
    oracle = make_oracle(simulation.params, cards(simulation.pool))
    found = [
        [part[q] for part in outcomes_of(oracle, key, tasks, recipe)]
        for q, recipe in enumerate(recipes)
    ]
    solved, latency_s, work_s = (np.array(part) for part in zip(*found, strict=True))
    return solved, latency_s, work_s


@pytest.mark.parametrize(("workload", "execution"), RULES)
def test_a_recipe_does_what_was_foreseen(workload: str, execution: str) -> None:
    env = stream(workload, execution)
    recipes = random_recipes(env.simulation.num_queries, env.simulation.num_routes, seed=1)
    records, calls, worked_s = carry_out(env, recipes)
    solved, latency_s, work_s = foreseen(env, recipes)
    topologies, agents, kinds, _ = zip(*recipes, strict=True)
    assert set(topologies) == set(range(len(TOPOLOGIES)))
    assert set(agents) == set(range(1, MAX_AGENTS + 1)) and set(kinds) == set(RoleRule)
    np.testing.assert_array_equal(solved, records["solved"])
    # Calls, their models and their tokens are the same, or their work would differ.
    np.testing.assert_allclose(work_s, worked_s, rtol=1e-12)
    assert 0.2 < solved.mean() < 1.0
    # Servers are shared: no query is faster than on idle ones.
    assert (records["latency_s"] >= latency_s * (1 - 1e-9)).all()
    # And the work is no more than the time that the servers were busy.
    busy_s = np.array([covered_s(calls[calls["model"] == m]) for m in range(work_s.shape[1])])
    assert (work_s.sum(axis=0) <= busy_s).all()
    assert work_s.sum() > 0.05 * busy_s.sum()


def test_alone_on_idle_servers_a_query_takes_what_was_foreseen() -> None:
    env = stream("mmlu_pro", "parallel", rate_per_min=0.02, queries=12)
    topologies = [q % 2 * TOPOLOGIES.index("Reflection") for q in range(12)]
    recipes = [Recipe(topology, 1, 0, (q,)) for q, topology in enumerate(topologies)]
    records, _, _ = carry_out(env, recipes)
    _, latency_s, _ = foreseen(env, recipes)
    np.testing.assert_allclose(records["latency_s"], latency_s, rtol=1e-9)


def covered_s(calls: NDArray[Any]) -> float:
    """Time in which at least one of the calls was running."""
    total, until = 0.0, -np.inf
    for begin, end in sorted(zip(calls["admitted_s"], calls["finish_s"], strict=True)):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
