"""Golden episodes: short runs of every environment and every rule of a server, to the bit.

A digest covers observations, rewards, costs, terminations and the records of queries. One that
changes needs a new `SIMULATOR_VERSION`; policies are in `policies.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

import inframind_gym  # noqa: F401  (registers the ids)
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.simulator.server import open_loop, pool, state
from tests.envs.streams import EXECUTOR, PLACEMENT, PLANNER, STREAM

COORDINATION = "InfraMind-Coordination-v0"
ROUTING = (STREAM, EXECUTOR, PLANNER)
DEBATE = {"topology": "Debate", "num_agents": 4}
GRAPH = {"num_agents": 4, "edges": [[0, 1], [0, 2], [1, 3], [2, 3]]}
FAULTS = [
    {"kind": "down", "model": "qwen-14b", "from_s": 5.0, "to_s": 20.0},
    {"kind": "down", "every_s": 10.0, "lasts_s": 10.0},
    {"kind": "slow", "every_s": 10.0, "lasts_s": 10.0, "factor": 2.0},
    {"kind": "telemetry", "every_s": 10.0, "lasts_s": 10.0, "delay_s": 12.0},
    {"kind": "telemetry", "model": "llama-8b", "from_s": 10.0, "to_s": 25.0},
]
AGENTS = {"role_calls": True, "visible_tests": 0.5}

# Arguments of `gym.make_vec`; `down_models` and the like are those of the environments.
EPISODES: dict[str, tuple[str, dict[str, Any]]] = {
    # pools and workloads
    "stream": (STREAM, {}),
    "stream h100-5gpu": (STREAM, {"pool": "h100-5gpu"}),
    "stream single-gpu": (STREAM, {"pool": "single-gpu"}),
    "stream math": (STREAM, {"workload": "math"}),
    "stream mbpp": (STREAM, {"workload": "mbpp"}),
    "stream gsm_hard": (STREAM, {"workload": "gsm_hard"}),
    "stream humaneval": (STREAM, {"workload": "humaneval"}),
    "stream mmlu_pro": (STREAM, {"workload": "mmlu_pro"}),
    "stream all": (STREAM, {"workload": "all"}),
    # load, arrivals, budgets
    "stream light": (STREAM, {"arrival_rate_per_min": 10.0}),
    "stream overload": (STREAM, {"arrival_rate_per_min": 600.0}),
    "stream burst": (STREAM, {"arrivals": "burst"}),
    "stream budget": (STREAM, {"budget_s": 30.0}),
    # scheduling, execution, plans
    "stream fcfs": (STREAM, {"scheduler": "fcfs"}),
    "stream edf_late_last": (STREAM, {"scheduler": "edf_late_last", "arrival_rate_per_min": 300.0}),
    "stream sequential": (STREAM, {"execution": "sequential"}),
    "stream sequential fcfs": (STREAM, {"execution": "sequential", "scheduler": "fcfs"}),
    "stream debate": (STREAM, {"planner": DEBATE}),
    "stream reflection": (STREAM, {"planner": {"topology": "Reflection", "num_agents": 3}}),
    "stream graph": (STREAM, {"planner": GRAPH}),
    "stream agents": (STREAM, {"agents": AGENTS, "workload": "mbpp"}),
    "stream down": (STREAM, {"down_models": ["qwen-14b", "llama-3b"]}),
    # levels and observations
    "stream planner level": (STREAM, {"level": "planner"}),
    "stream planner least_loaded": (STREAM, {"level": "planner", "background": "least_loaded"}),
    "stream joint": (STREAM, {"level": "joint"}),
    "stream joint sequential": (STREAM, {"level": "joint", "execution": "sequential"}),
    "stream full": (STREAM, {"observation": "full", "num_queries": 8}),
    "stream features": (STREAM, {"system_features": ["queue", "e2e", "kv", "in_flight"]}),
    "stream fresh": (STREAM, {"metrics_poll_s": 0.5}),
    "stream train": (STREAM, {"split": "train"}),
    "stream faults": (STREAM, {"faults": FAULTS}),
    "stream joint faults": (STREAM, {"level": "joint", "faults": FAULTS, "call_timeout_s": 9.0}),
    # one tagged query in background traffic
    "executor": (EXECUTOR, {}),
    "executor sequential": (EXECUTOR, {"execution": "sequential"}),
    "executor round_robin": (EXECUTOR, {"background": "round_robin"}),
    "executor least_loaded": (EXECUTOR, {"background": "least_loaded"}),
    "executor none": (EXECUTOR, {"background": "none"}),
    "executor faults": (EXECUTOR, {"faults": FAULTS, "background": "least_loaded"}),
    "executor h100-5gpu": (EXECUTOR, {"pool": "h100-5gpu", "arrival_rate_per_min": 200.0}),
    "planner": (PLANNER, {}),
    "planner round_robin": (PLANNER, {"executor": "round_robin"}),
    "planner infra": (PLANNER, {"observe": "infra", "executor": "least_loaded"}),
    # placement
    "placement": (PLACEMENT, {}),
    "placement 4 shifting": (PLACEMENT, {"cluster": "h100-4gpu", "demand": "shifting"}),
    "placement 16 bursty": (PLACEMENT, {"cluster": "h100-16gpu", "demand": "bursty"}),
    "placement 64 diurnal": (PLACEMENT, {"cluster": "h100-64gpu", "demand": "diurnal"}),
    "placement empty": (PLACEMENT, {"initial": "empty", "load": 2.0}),
    "placement trickle": (PLACEMENT, {"demand": "trickle", "timing_spread": 0.0}),
    # a supervisor of five agents
    "coordination": (COORDINATION, {}),
    "coordination conversation": (COORDINATION, {"conversation": True, "supervisor": "model"}),
    "coordination without noise": (COORDINATION, {"noise": False, "max_num_seqs": 1}),
}
CARDS: dict[str, dict[str, Any]] = {
    "server": {},
    "server kv pressure": {"num_kv_blocks": 120},
    "server few tokens": {"max_num_batched_tokens": 64},
    "server async": {"async_scheduling": True},
    "server prefix caching": {"prefix_caching": True, "num_kv_blocks": 120},
}


def _digest_of(*values: Any) -> str:
    """Return 16 hexadecimal digits of arrays and numbers to the bit, with types and shapes."""
    state = hashlib.sha256()

    def add(value: Any) -> None:
        array = np.asarray(value)
        if array.dtype.names:
            for name in array.dtype.names:
                add(array[name])
        else:
            state.update(f"{array.dtype.str}{array.shape}".encode())
            state.update(np.ascontiguousarray(array).tobytes())

    for value in values:
        add(value)
    return state.hexdigest()[:16]


def _play_random(env_id: str, given: dict[str, Any]) -> str:
    """Digest two episodes side by side under seeded random actions."""
    short: dict[str, Any] = {PLACEMENT: {"num_decisions": 40}, COORDINATION: {}}
    arguments = short.get(env_id, {"observation": "index", "num_queries": 40}) | given
    env = gym.make_vec(env_id, num_envs=2, **arguments)
    inner: Any = env.unwrapped
    generator = np.random.default_rng(7)
    space = env.single_action_space
    highs = np.atleast_1d(space.nvec if hasattr(space, "nvec") else space.n)
    observations, infos = env.reset(seed=11)
    seen = [observations]
    episodes = np.zeros(2, np.int64)
    enough = 1 if env_id in (STREAM, PLACEMENT) else 12
    while episodes.min() < enough:
        draws = (generator.random((2, len(highs))) * highs).astype(np.int64)
        if env_id == PLACEMENT:
            draws[generator.random(draws.shape) < 0.8] = 0
        actions = draws if env.action_space.shape != (2,) else draws[:, 0]
        observations, rewards, terminated, truncated, infos = env.step(actions)
        seen += [observations, rewards, terminated, truncated, infos["cost"]]
        if env_id in ROUTING:
            seen += [*inner.completed(), inner.contexts()]
        episodes += terminated | truncated
    env.close()
    return _digest_of(*seen)


def _replay_server(changes: dict[str, Any]) -> str:
    """Digest 300 requests at one server of a given card."""
    step = pool.StepCost(
        base_s=0.01,
        per_seq_s=1e-4,
        per_kv_token_s=1e-7,
        per_new_token_s=5e-5,
        per_attention_unit_s=1e-9,
    )
    fields: dict[str, Any] = {
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "num_kv_blocks": 4000,
        "max_model_len": 1024,
        "step": step,
    }
    card = state.card_record(pool.ServerCard(**(fields | changes)))
    generator = np.random.default_rng(3)
    times = np.cumsum(generator.exponential(0.05, 300))
    prompts, outputs = generator.integers(1, 400, 300), generator.integers(1, 200, 300)
    priority = generator.integers(0, 50, 300).astype(np.float64)
    server = np.zeros(300, np.int64)
    return _digest_of(
        *(
            open_loop.replay_requests(card, server, times, prompts, outputs, order)
            for order in (None, priority)
        )
    )


CASES: dict[str, Callable[[], str]] = {
    **{name: partial(_play_random, *episode) for name, episode in EPISODES.items()},
    **{name: partial(_replay_server, changes) for name, changes in CARDS.items()},
}


def versions() -> dict[str, int]:
    """Return the declared version of the simulator."""
    return {"simulator": SIMULATOR_VERSION}
