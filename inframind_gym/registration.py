"""The table of environment ids, registered when `inframind_gym` is imported."""

from __future__ import annotations

from typing import Final, NamedTuple

import gymnasium as gym


class Entry(NamedTuple):
    """One id and the classes behind it, as `module:class` so that they load when first made."""

    single: str
    vector: str | None = None
    nondeterministic: bool = False


ENVIRONMENTS: Final = {
    "InfraMind-Executor-v0": Entry(
        "inframind_gym.envs.routing.executor:ExecutorEnv",
        "inframind_gym.envs.routing.vector:ExecutorVectorEnv",
    ),
    "InfraMind-Planner-v0": Entry(
        "inframind_gym.envs.routing.planner:PlannerEnv",
        "inframind_gym.envs.routing.vector:PlannerVectorEnv",
    ),
    "InfraMind-Stream-v0": Entry(
        "inframind_gym.envs.routing.stream:StreamEnv",
        "inframind_gym.envs.routing.vector:StreamVectorEnv",
    ),
    "InfraMind-ExecutorLive-v0": Entry(
        "inframind_gym.envs.routing.live:ExecutorLiveEnv", nondeterministic=True
    ),
    "InfraMind-StreamLive-v0": Entry(
        "inframind_gym.envs.routing.live:StreamLiveEnv", nondeterministic=True
    ),
    "InfraMind-Placement-v0": Entry(
        "inframind_gym.envs.placement.env:PlacementEnv",
        "inframind_gym.envs.placement.vector:PlacementVectorEnv",
    ),
    "InfraMind-PlacementLive-v0": Entry(
        "inframind_gym.envs.placement.live:PlacementLiveEnv", nondeterministic=True
    ),
    "InfraMind-Assignment-v0": Entry(
        "inframind_gym.envs.assignment.env:AssignmentEnv",
        "inframind_gym.envs.assignment.vector:AssignmentVectorEnv",
    ),
    "InfraMind-TokenBudget-v0": Entry(
        "inframind_gym.envs.token_budget.env:TokenBudgetEnv",
        "inframind_gym.envs.token_budget.vector:TokenBudgetVectorEnv",
    ),
    "InfraMind-Coordination-v0": Entry(
        "inframind_gym.envs.coordination.env:CoordinationEnv",
        "inframind_gym.envs.coordination.vector:CoordinationVectorEnv",
    ),
}


def register_all() -> None:
    """Register every id that is not registered yet."""
    for name, entry in ENVIRONMENTS.items():
        if name not in gym.registry:
            gym.register(
                name,
                entry_point=entry.single,
                vector_entry_point=entry.vector,
                nondeterministic=entry.nondeterministic,
            )
