"""Recipes carried out in the environment, for the tests of foresight and of the bounds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines.foresight.recipe import RECIPE, ROLE_KINDS, best_role
from inframind_gym.envs.vector import StreamVectorEnv
from inframind_gym.orchestration.state import COMPLETED, PLAN
from inframind_gym.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES


def random_recipes(count: int, routes: int, seed: int) -> NDArray[Any]:
    """(count,) RECIPE."""
    rng = np.random.default_rng(seed)
    recipes = np.zeros(count, RECIPE)
    recipes["topology"] = rng.integers(len(TOPOLOGIES), size=count)
    recipes["num_agents"] = rng.integers(1, MAX_AGENTS + 1, size=count)
    recipes["role_kind"] = rng.integers(ROLE_KINDS, size=count)
    recipes["route"] = rng.integers(routes, size=(count, MAX_NODES))
    return recipes


def carry_out(env: StreamVectorEnv, recipes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Run a sweep that has just been reset; query q goes by recipe q.

    Returns:
        (N,) COMPLETED by ordinal, and all CALL records.
    """
    world = env.simulation.world
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
        recorded = env.simulation.flows.call[0]
        _, _, over, _, _ = env.step(action)
        _, records = env.completed()
        done[records["query"]] = records
        if over[0]:
            count = int((done["calls"]).sum())
            calls = recorded[:count].copy()
    return done, calls
