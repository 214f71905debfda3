"""The table of environment ids, registered when `inframind_gym` is imported."""

from __future__ import annotations

from typing import Final, NamedTuple

import gymnasium as gym


class Entry(NamedTuple):
    """One id and the classes behind it, as `module:class` so that they load when first made."""

    single: str
    vector: str | None = None
    nondeterministic: bool = False


_MODULES: Final = {  # of `inframind_gym.envs`; those of "live" play on live servers
    "Executor": "routing",
    "Planner": "planner",
    "Stream": "routing",
    "ExecutorLive": "live",
    "PlannerLive": "live",
    "StreamLive": "live",
    "Placement": "placement",
    "PlacementLive": "live",
    "Assignment": "assignment",
    "TokenBudget": "token_budget",
    "Coordination": "coordination",
}
ENVIRONMENTS: Final = {
    f"InfraMind-{name}-v0": Entry(
        f"inframind_gym.envs.{module}:{name}Env",
        None if module == "live" else f"inframind_gym.envs.{module}:{name}VectorEnv",
        nondeterministic=module == "live",
    )
    for name, module in _MODULES.items()
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
