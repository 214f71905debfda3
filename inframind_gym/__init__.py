"""InfraMind as Gymnasium environments: routing multi-agent LLM calls over servers that queue.

Importing the package registers

    routing          InfraMind-Executor-v0, InfraMind-Planner-v0, InfraMind-Stream-v0
    models on GPUs   InfraMind-Placement-v0
    teams            InfraMind-Assignment-v0, InfraMind-TokenBudget-v0, InfraMind-Coordination-v0
    live servers     InfraMind-ExecutorLive-v0, InfraMind-PlannerLive-v0, InfraMind-StreamLive-v0,
                     InfraMind-PlacementLive-v0

    import gymnasium as gym
    import inframind_gym

    env = gym.make("InfraMind-Executor-v0", arrival_rate_per_min=100)
"""

from __future__ import annotations

from typing import Final, NamedTuple

import gymnasium as gym

__version__ = "0.2.0"
__all__ = ["ENVIRONMENTS", "__version__", "register_all"]


class Entry(NamedTuple):
    """Classes behind an id, as `module:class`: they are imported when the first is made."""

    single: str
    vector: str | None = None
    nondeterministic: bool = False


_MODULES: Final = {  # name in the id -> module of `inframind_gym.envs`
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


register_all()
