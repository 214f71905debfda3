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
        "inframind_gym.envs.executor:ExecutorEnv", "inframind_gym.envs.vector:ExecutorVectorEnv"
    ),
    "InfraMind-Planner-v0": Entry(
        "inframind_gym.envs.planner:PlannerEnv", "inframind_gym.envs.vector:PlannerVectorEnv"
    ),
    "InfraMind-Stream-v0": Entry(
        "inframind_gym.envs.stream:StreamEnv", "inframind_gym.envs.vector:StreamVectorEnv"
    ),
    "InfraMind-ExecutorLive-v0": Entry(
        "inframind_gym.envs.live:ExecutorLiveEnv", nondeterministic=True
    ),
    "InfraMind-StreamLive-v0": Entry(
        "inframind_gym.envs.live:StreamLiveEnv", nondeterministic=True
    ),
    "InfraMind-Placement-v0": Entry(
        "inframind_gym.envs.placement:PlacementEnv",
        "inframind_gym.envs.placement_vector:PlacementVectorEnv",
    ),
    "InfraMind-PlacementLive-v0": Entry(
        "inframind_gym.envs.placement_live:PlacementLiveEnv", nondeterministic=True
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
