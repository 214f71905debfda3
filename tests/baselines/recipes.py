"""Recipes carried out in the environment, for the tests of foresight and of the bounds."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies.oracle.compiled import jit
from inframind_gym.policies.oracle.recipe import RECIPE, best_role, play
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.state import COMPLETED, PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES


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
    """Run a sweep that has just been reset; query q goes by recipe q.

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


@jit
def play_all(
    world: EnvParams,
    card: NDArray[Any],
    pace: NDArray[Any],
    keys: NDArray[np.uint64],
    ordinals: NDArray[np.int64],
    tasks: NDArray[np.int64],
    length_z: NDArray[np.float32],
    recipes: NDArray[Any],
    scratch: NDArray[np.float64],
    work_s: NDArray[np.float64],
    outcomes: NDArray[Any],
) -> None:
    """`play` every query by every recipe.

    Args:
        world: constants of the run.
        card: (M,) CARD.
        pace: (M,) PACE.
        keys: (n,) of each query's sweep; `ordinals`, `tasks` and `length_z` (n,) likewise.
        recipes: (r,) RECIPE.
        scratch: (2, MAX_NODES).
        work_s: (r, n, M) written.
        outcomes: (r, n) OUTCOME, written.
    """
    for i in range(recipes.shape[0]):
        for q in range(keys.shape[0]):
            play(
                world, card, pace, keys[q], ordinals[q], tasks[q], length_z[q], recipes[i],
                scratch, work_s[i, q], outcomes[i, q],
            )  # fmt: skip
