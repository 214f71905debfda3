"""Action spaces of the routing environments, and masks of the actions that make sense now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.roles import ROLES, roles_of
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, STRATEGIES, TOPOLOGIES

if TYPE_CHECKING:
    from inframind_gym.envs.routing.simulation import Simulation

MOST_ROLES = max(len(roles_of(role.domain)) for role in ROLES)  # of one domain


def action_space(simulation: Simulation) -> spaces.Discrete | spaces.MultiDiscrete:
    """The action space at the simulation's level.

    "executor": Discrete(M·S), model a // S and strategy a % S. "planner": MultiDiscrete of
    topology, agents - 1 and a role for each of six agents. "joint": the same and a route at the
    end; a step reads the part that its kind of decision needs.
    """
    level = simulation.level
    if level == "executor":
        return spaces.Discrete(simulation.num_routes)
    plan = [len(TOPOLOGIES), MAX_AGENTS] + [MOST_ROLES] * MAX_AGENTS
    return spaces.MultiDiscrete(plan + ([simulation.num_routes] if level == "joint" else []))


def action_mask(
    simulation: Simulation, models_up: int, highs: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Actions that make sense: routes to models that are up, and any plan.

    Args:
        simulation: tells the level and the models.
        models_up: bit mask of models.
        highs: (a,) number of choices of each part of the action.

    Returns:
        The masks of all parts of the action, one after the other; at the executor level (M·S,).
    """
    up = [bool(models_up >> m & 1) for m in range(simulation.layout.num_models)]
    routes = np.repeat(np.array(up, np.bool_), len(STRATEGIES))
    level = simulation.level
    if level == "executor":
        return routes
    plan = np.ones(int(highs[:PLAN_ACTIONS].sum()), np.bool_)
    return plan if level == "planner" else np.concatenate([plan, routes])
