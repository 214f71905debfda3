"""Recipes carried out in the environment and played by the oracle, for the tests of both."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing import StreamVectorEnv
from inframind_gym.policies.oracle import RECIPE, best_role, make_oracle, outcomes_of
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
