"""Observation and action spaces, shared by the single and the vector environments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.errors import ConfigError
from inframind_gym.policies.layout import LOG_SCALE_S
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    ROLES,
    STRATEGIES,
    TOPOLOGIES,
    roles_of,
)

MOST_ROLES = max(len(roles_of(role.domain)) for role in ROLES)  # of one domain
LONGEST_S = 1e6  # bound of the time features: nothing observed lasts longer


def observation_space(simulation: Simulation) -> spaces.Box:
    """Box (d,) float32 with the bounds of every feature; `ObservationLayout` says where each is."""
    layout = simulation.layout
    low = np.zeros(simulation.observation_size, np.float32)
    high = np.ones(simulation.observation_size, np.float32)
    low[layout.query] = low[layout.role] = -1.0
    if layout.embedding == "index":
        high[layout.query] = len(simulation.tasks) - 1
        high[layout.role] = len(ROLES) - 1
    longest = np.log(LONGEST_S) / np.log(LOG_SCALE_S)
    if layout.scope != "query":
        high[layout.budget] = longest
    for counted in ("queue", "in_flight"):
        if layout.has(counted):
            high[layout.system(counted)] = simulation.max_queue
    if layout.has("e2e"):
        high[layout.system("e2e")] = longest
    return spaces.Box(low, high, dtype=np.float32)


def action_space(simulation: Simulation) -> spaces.Discrete | spaces.MultiDiscrete:
    """What the agent decides at the simulation's level.

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


def row_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """The seed of every row of a batch: row i takes seed + i, or its own of a list.

    Raises:
        ConfigError: a list of the wrong length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(num_envs)]
    if len(seed) != num_envs:
        raise ConfigError(f"{len(seed)} seeds for {num_envs} environments")
    return list(seed)
