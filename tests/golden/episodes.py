"""Golden episodes: short runs of every environment, rule and policy, each with a digest.

`python -m tests.golden.episodes` plays all of them and compares their digests with the committed
ones. `--write` writes new ones, and refuses to where a digest changes under the same
`SIMULATOR_VERSION` and policy `version`. `--against CHECKOUT` plays them in another checkout of
this repository too and compares the two.

A digest covers observations, rewards, costs, terminations and the records of queries, bit by bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from inframind_gym.envs import placement as placement_env
from inframind_gym.policies import (
    policy_names,
    requires_of,
    resolve_policy,
)
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.simulator.placement.config import PlacementConfig
from inframind_gym.simulator.server import open_loop, pool, state
from tests.policies import rollout

DIGESTS = Path(__file__).with_name("digests.json")

STREAM = "InfraMind-Stream-v0"
EXECUTOR = "InfraMind-Executor-v0"
PLANNER = "InfraMind-Planner-v0"
PLACEMENT = "InfraMind-Placement-v0"
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
POLICIES = (
    *("random", "round_robin", "static", "static_mix", "fixed_recipe", "fixed_recipe_by_rate"),
    *("least_loaded", "lowest_expected_latency", "budget_greedy", "moa", "gptswarm"),
    *("q_learning_load_tracker", "linucb", "sb3_ppo", "sb3_a2c", "sb3_dqn", "sb3_maskable_ppo"),
    *("masrouter", "inframind", "inframind_v2", "bid_price"),
)
PLACEMENT_POLICIES = (
    *("random", "static", "lru", "greedy", "threshold", "mcf_spec", "mcf_plus"),
    *("sb3_maskable_ppo", "everywhere"),
)
COORDINATION_POLICIES = policy_names("coordination")
CARDS: dict[str, dict[str, Any]] = {
    "server": {},
    "server kv pressure": {"num_kv_blocks": 120},
    "server few tokens": {"max_num_batched_tokens": 64},
    "server async": {"async_scheduling": True},
    "server prefix caching": {"prefix_caching": True, "num_kv_blocks": 120},
}


class Digest:
    """A running hash of arrays and numbers, with their types and shapes."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, *values: Any) -> None:
        """Add values in their order; a structured array is added field by field."""
        for value in values:
            array = np.asarray(value)
            if array.dtype.names:
                self.add(*(array[name] for name in array.dtype.names))
            else:
                self._hash.update(f"{array.dtype.str}{array.shape}".encode())
                self._hash.update(np.ascontiguousarray(array).tobytes())

    def text(self) -> str:
        """Return the first 16 hexadecimal digits."""
        return self._hash.hexdigest()[:16]


def play(name: str) -> str:
    """Play one golden episode and return its digest."""
    kind, _, rest = name.partition(": ")
    if kind == "policy":
        return _play_policy(rest)
    if kind == "placement policy":
        return _play_placement_policy(rest)
    if kind == "coordination policy":
        return _play_coordination_policy(rest)
    return _replay_server(CARDS[name]) if name in CARDS else _play_random(*EPISODES[name])


def names() -> list[str]:
    """Return the names of all golden episodes."""
    policies = [f"policy: {name}" for name in POLICIES]
    policies += [f"placement policy: {name}" for name in PLACEMENT_POLICIES]
    policies += [f"coordination policy: {name}" for name in COORDINATION_POLICIES]
    return [*EPISODES, *CARDS, *policies]


def _play_random(env_id: str, given: dict[str, Any]) -> str:
    """Digest two episodes side by side under seeded random actions."""
    short: dict[str, Any] = {PLACEMENT: {"num_decisions": 40}, COORDINATION: {}}
    arguments = short.get(env_id, {"observation": "index", "num_queries": 40}) | given
    env = gym.make_vec(env_id, num_envs=2, **arguments)
    inner: Any = env.unwrapped
    generator = np.random.default_rng(7)
    space = env.single_action_space
    highs = np.atleast_1d(space.nvec if hasattr(space, "nvec") else space.n)
    digest = Digest()
    observations, infos = env.reset(seed=11)
    digest.add(observations)
    episodes = np.zeros(2, np.int64)
    enough = 1 if env_id in (STREAM, PLACEMENT) else 12
    while episodes.min() < enough:
        draws = (generator.random((2, len(highs))) * highs).astype(np.int64)
        if env_id == PLACEMENT:
            draws[generator.random(draws.shape) < 0.8] = 0
        actions = draws if env.action_space.shape != (2,) else draws[:, 0]
        observations, rewards, terminated, truncated, infos = env.step(actions)
        digest.add(observations, rewards, terminated, truncated, infos["cost"])
        if env_id in ROUTING:
            digest.add(*inner.completed(), inner.contexts())
        episodes += terminated | truncated
    env.close()
    return digest.text()


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
    digest = Digest()
    for order in (None, priority):
        digest.add(
            open_loop.replay_requests(card, np.zeros(300, np.int64), times, prompts, outputs, order)
        )
    return digest.text()


def _play_policy(name: str) -> str:
    """Digest two episodes of a built-in routing policy."""
    policy = resolve_policy(name)
    kwargs: dict[str, Any] = {"observation": "index", "num_queries": 40}
    kwargs["arrival_rate_per_min"] = 150.0
    env = gym.make_vec(STREAM, num_envs=2, **(kwargs | requires_of(policy)))
    inner: Any = env.unwrapped
    observations, _ = env.reset(seed=5)
    policy.reset(inner.policy_spec(), [1, 2])
    observe = getattr(policy, "observe", None)
    digest, running = Digest(), np.ones(2, np.bool_)
    actions = np.zeros_like(env.action_space.sample(), dtype=np.int64)
    while running.any():
        rows = np.flatnonzero(running)
        actions[rows] = policy.act_batch(observations[rows], inner.contexts()[rows], rows)
        observations, rewards, terminated, _, _ = env.step(actions)
        of, records = inner.completed()
        of, records = of[running[of]], records[running[of]]
        digest.add(actions[rows], rewards[rows], of, records)
        if observe is not None:
            for row in np.unique(of).tolist():
                observe(records[of == row], row)
        running &= ~terminated
    env.close()
    return digest.text()


def _play_placement_policy(name: str) -> str:
    """Digest two episodes of a built-in placement policy on four GPUs."""
    policy = resolve_policy(name, family="placement")
    kwargs = {"cluster": "h100-4gpu", "demand": "shifting", "num_decisions": 30}
    kind = getattr(policy, "simulation", placement_env.PlacementSimulation)
    simulation = kind(PlacementConfig.model_validate(kwargs), 2)
    rows, observations = np.arange(2), simulation.observations()
    simulation.reset(rows, [np.random.default_rng(seed) for seed in (1, 2)], observations)
    policy.reset(simulation.policy_spec(), [1, 2])
    digest = Digest()
    for _ in range(30):
        seen = simulation.contexts(rows)
        actions = np.asarray(policy.act_batch(observations.copy(), seen, rows), np.int64)
        simulation.step(rows, actions, observations)
        digest.add(actions, observations, simulation.terms)
    return digest.text()


def _play_coordination_policy(name: str) -> str:
    """Digest 20 episodes of a built-in coordination policy."""
    digest = Digest()
    found = rollout.play_coordination(resolve_policy(name, family="coordination"), range(20))
    digest.add(*found.values())
    return digest.text()


def played_in(checkout: Path) -> dict[str, str]:
    """Play all golden episodes with the package of another checkout, by this file."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, str(Path(__file__).resolve()), "--json"]
    done = subprocess.run(
        command, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    return dict(json.loads(done.stdout))


def versions() -> dict[str, int]:
    """Declared versions: of the simulator, and of every routing policy that is played."""
    found = {"simulator": SIMULATOR_VERSION}
    for name in POLICIES:
        found[f"policy: {name}"] = int(getattr(resolve_policy(name), "version", 1))
    for name in PLACEMENT_POLICIES:
        policy = resolve_policy(name, family="placement")
        found[f"placement policy: {name}"] = int(getattr(policy, "version", 1))
    for name in COORDINATION_POLICIES:
        policy = resolve_policy(name, family="coordination")
        found[f"coordination policy: {name}"] = int(getattr(policy, "version", 1))
    return found


def undeclared(found: dict[str, str], declared: dict[str, int]) -> list[str]:
    """Return episodes whose digest differs from the committed one under the same versions."""
    before, known = committed()
    return [
        name
        for name, digest in found.items()
        if digest != before.get(name, digest)
        and declared["simulator"] == known["simulator"]
        and declared.get(name) == known.get(name)
    ]


def main() -> int:
    """Play, compare or write; the exit status is 1 if digests differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the committed digests")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with a checkout")
    parser.add_argument("--json", action="store_true", help="print the digests as JSON")
    arguments = parser.parse_args()
    found = {name: play(name) for name in names()}
    if arguments.json:
        print(json.dumps(found))
        return 0
    if arguments.write:
        declared = versions()
        if changed := undeclared(found, declared):
            print("raise SIMULATOR_VERSION or the policy's version first; differing episodes:")
            print("\n".join(changed))
            return 1
        content = {"versions": declared, "episodes": found}
        DIGESTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    expected = played_in(arguments.against.resolve()) if arguments.against else committed()[0]
    differing = [name for name in found if found[name] != expected.get(name)]
    print("\n".join(f"differs: {name}" for name in differing) or f"{len(found)} episodes are equal")
    return 1 if differing else 0


def committed() -> tuple[dict[str, str], dict[str, int]]:
    """Read the committed digests, and the versions that they were written under."""
    content = json.loads(DIGESTS.read_text(encoding="utf-8"))
    return content["episodes"], content["versions"]


if __name__ == "__main__":
    sys.exit(main())
