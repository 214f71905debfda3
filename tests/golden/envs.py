"""Episodes of every environment: single, in a batch, and as SB3's `VecEnv`.

The digests hold every observation, reward, flag and info, the contexts that policies see, and the
records of what was completed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import gymnasium as gym
import numpy as np

import inframind_gym  # noqa: F401  (registers the ids)
from tests.golden.net import digest_of

_SHORT: Final = {"num_queries": 12, "arrival_rate_per_min": 120.0}
# Name: id, arguments.
VARIANTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "executor": ("Executor", {"num_queries": 40}),
    "executor, index, all features": (
        "Executor",
        {
            "num_queries": 40,
            "observation": "index",
            "system_features": ["queue", "e2e", "kv", "in_flight"],
            "record_calls": True,
        },
    ),
    "executor, dict, alone": ("Executor", {"observation": "dict", "background": "none"}),
    "executor, sequential": ("Executor", {"num_queries": 40, "execution": "sequential"}),
    "planner": ("Planner", {"num_queries": 40}),
    "planner, infra, dict": (
        "Planner",
        {"num_queries": 40, "observe": "infra", "observation": "dict"},
    ),
    "planner, policy": (
        "Planner",
        {"num_queries": 40, "observe": "infra", "executor": "lowest_expected_latency"},
    ),
    "stream": ("Stream", _SHORT),
    "stream, joint, dict": (
        "Stream",
        _SHORT | {"level": "joint", "observation": "dict", "workload": "math"},
    ),
    "stream, planner": ("Stream", _SHORT | {"level": "planner", "observation": "index"}),
    "stream, one agent": (
        "Stream",
        _SHORT | {"planner": {"topology": "IO", "num_agents": 1}, "budget_s": [5.0, 30.0]},
    ),
    "stream, own graph, timeouts": (
        "Stream",
        _SHORT
        | {
            "planner": {"num_agents": 3, "edges": [[0, 2], [1, 2]]},
            "call_timeout_s": 8.0,
            "call_attempts": 2,
            "record_calls": True,
            "down_models": ["llama-3b"],
        },
    ),
    "stream, fcfs, diurnal, faults": (
        "Stream",
        _SHORT
        | {
            "scheduler": "fcfs",
            "arrivals": "diurnal",
            "faults": [
                {"kind": "down", "model": "llama-8b", "from_s": 1.0, "to_s": 20.0},
                {"kind": "slow", "model": "qwen-14b", "from_s": 0.0, "to_s": 9.0, "factor": 2.0},
            ],
        },
    ),
    "placement": ("Placement", {"num_decisions": 8}),
    "placement, dict, foreign": (
        "Placement",
        {
            "num_decisions": 8,
            "observation": "dict",
            "initial": "empty",
            "load": 1.5,
            "foreign_memory": {"max_MB": 30000.0, "every_s": 10.0},
        },
    ),
    "assignment": ("Assignment", {"num_tasks": 12}),
    "assignment, queue, flat": (
        "Assignment",
        {"num_tasks": 12, "load": "queue", "observation": "flat", "arrivals": "bursty"},
    ),
    "assignment, request, tabular": (
        "Assignment",
        {"num_tasks": 12, "episode": "request", "observation": "tabular", "arrivals": "drifting"},
    ),
    "token budget": ("TokenBudget", {"max_steps": 8}),
    "token budget, continuous": (
        "TokenBudget",
        {"action": "continuous", "budget": [3000, 30000], "strategy": "frontload"},
    ),
    "coordination": ("Coordination", {}),
    "coordination, conversation, model": (
        "Coordination",
        {"conversation": 0.5, "supervisor": "model", "fallback": False},
    ),
}
STEPS: Final = 40
ROWS: Final = 3


def _without_split(info: dict[str, Any]) -> dict[str, Any]:
    """Return the info of a reset as it was before it named the split."""
    return {name: value for name, value in info.items() if name not in ("split", "_split")}


# What policies saw of a team, in this order, when the digests were made.
_SEEN: Final = {
    "AssignmentContext": "ordinal task task_type complexity priority load_state counts window "
    "in_flight time_s",
    "TeamState": "budget remaining free left used cut limits max_tokens estimates mask calls "
    "last_tokens last_delta last_roi score flags_open flags_resolved seen has_draft steps truth",
    "CoordinationState": "mask hint refers routed strategy complexity needs_planning confidence "
    "planned subtasks pending searched searches docs duplicates score rewritten merged drafted "
    "judged valid verdict issues severity regenerations retries failed context trimmed elapsed_ms "
    "iteration setup_ms agent_ms total_tokens truth",
}


def _plain(context: Any) -> Any:
    """Return a context as digests have it."""
    names = _SEEN.get(type(context).__name__, "").split()
    return tuple(getattr(context, name, None) for name in names) if names else context


def _choose(space: gym.Space[Any], infos: dict[str, Any], *, batch: bool = False) -> Any:
    """Sample an action that the mask allows, or one of every row."""
    mask = infos.get("action_mask")
    if mask is None or isinstance(space, gym.spaces.Box):
        return space.sample()
    rows = batch and not isinstance(mask[0], tuple)  # a space of rows wants a tuple of masks
    return space.sample(mask=tuple(mask) if rows else mask)


def single(name: str) -> str:
    """Play one environment; the second episode follows without a seed."""
    family, arguments = VARIANTS[name]
    env = gym.make(f"InfraMind-{family}-v0", **arguments)
    inner: Any = env.unwrapped
    env.action_space.seed(7)
    seen: list[Any] = [repr(env.observation_space), repr(env.action_space)]
    observation, info = env.reset(seed=3)
    seen += [observation, _without_split(info)]
    for _ in range(STEPS):
        *step, info = env.step(_choose(env.action_space, info))
        seen += [*step, info, _plain(inner.context()), inner.action_masks()]
        if hasattr(inner, "completed"):
            seen.append(list(inner.completed()))
        if step[2] or step[3]:
            observation, info = env.reset()
            seen += [observation, _without_split(info)]
    if arguments.get("record_calls"):
        seen.append(inner.calls())
    return digest_of(seen)


def batch(name: str) -> str:
    """Play a batch; rows begin anew by themselves."""
    family, arguments = VARIANTS[name]
    envs = gym.make_vec(f"InfraMind-{family}-v0", num_envs=ROWS, **arguments)
    inner: Any = envs.unwrapped
    envs.action_space.seed(7)
    seen: list[Any] = [repr(envs.observation_space), repr(envs.action_space)]
    observations, infos = envs.reset(seed=3)
    seen += [observations, _without_split(infos)]
    for _ in range(STEPS):
        *step, infos = envs.step(_choose(envs.action_space, infos, batch=True))
        seen += [*step, infos, _plain(inner.contexts()), inner.action_masks()]
        if hasattr(inner, "completed"):
            seen.append(list(inner.completed()))
    return digest_of(seen)


def sb3(name: str) -> str:
    """Play a batch as Stable-Baselines3's `VecEnv`."""
    from inframind_gym.envs.sb3 import SB3VecEnv

    family, arguments = VARIANTS[name]
    envs = SB3VecEnv(gym.make_vec(f"InfraMind-{family}-v0", num_envs=ROWS, **arguments))
    envs.action_space.seed(7)
    envs.seed(3)
    seen: list[Any] = [envs.reset()]
    for _ in range(STEPS // 2):
        seen += envs.step(np.stack([envs.action_space.sample() for _ in range(ROWS)]))
    return digest_of(seen)


CASES: Final[dict[str, Callable[[], str]]] = {
    f"{name}: {how}": partial(play, name)
    for name in VARIANTS
    for how, play in (("single", single), ("SameStep", batch), ("sb3", sb3))
}
