"""The oracle's outcome of a recipe is what the environment then does."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.evaluation.oracle import RECIPE, best_role, make_oracle, outcomes_of
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.state import COMPLETED, PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES

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


def random_recipes(count: int, routes: int, seed: int) -> NDArray[Any]:
    """(count,) RECIPE."""
    rng = np.random.default_rng(seed)
    recipes = np.zeros(count, RECIPE)
    recipes["topology"] = rng.integers(len(TOPOLOGIES), size=count)
    recipes["num_agents"] = rng.integers(1, MAX_AGENTS + 1, size=count)
    recipes["role_kind"] = rng.integers(len(RoleRule), size=count)
    recipes["route"] = rng.integers(routes, size=(count, MAX_NODES))
    return recipes


def carry_out(env: StreamVectorEnv, recipes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run an episode that has just been reset; query q goes by recipe q.

    Returns:
        (N,) COMPLETED by ordinal, and all CALL records.
    """
    world = env.simulation.params
    done = np.zeros(len(recipes), COMPLETED)
    action = np.zeros((1, 9), np.int64)
    calls: NDArray[Any] | None = None
    while calls is None:
        context = env.contexts()[0]
        recipe = recipes[context["query"]]
        if context["kind"] == PLAN:
            role = best_role(world, int(context["task"]), int(recipe["role_kind"]))
            action[0, :2] = recipe["topology"], recipe["num_agents"] - 1
            action[0, 2:8] = role - world.role_start[context["domain"]]
        else:
            action[0, 8] = recipe["route"][context["node"]]
        recorded = env.simulation.state.call[0]
        _, _, over, _, _ = env.step(action)
        _, records = env.completed()
        done[records["query"]] = records
        if over[0]:
            count = int((done["calls"]).sum())
            calls = recorded[:count].copy()
    return done, calls


def foreseen(
    env: StreamVectorEnv, recipes: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Outcome (N,) and work (N, M) of every query by its own recipe, on idle servers."""
    simulation = env.simulation
    env.reset(seed=3)
    key, tasks = simulation.state.stream[0]["key"], simulation.state.task[0]
    oracle = make_oracle(simulation.params, cards(simulation.pool))
    found = [
        outcomes_of(oracle, key, tasks[q : q + 1], recipes[q : q + 1], first=q)
        for q in range(len(recipes))
    ]
    outcomes, work_s = (np.concatenate(part)[:, 0] for part in zip(*found, strict=True))
    return outcomes, work_s


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
