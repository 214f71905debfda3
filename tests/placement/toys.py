"""Small clusters and demands, as files, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import yaml
from gymnasium.utils import seeding
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.policies import Policy
from inframind_gym.simulator.placement.config import PlacementConfig

PLACEMENT = "InfraMind-Placement-v0"
ROW = np.zeros(1, np.int64)
DEMAND: dict[str, Any] = {
    "name": "toy",
    "jobs_per_gpu_per_min": 20,
    "topologies": {"Chain": 1, "Debate": 1, "Reflection": 1, "FullConnected": 1},
    "num_agents": {1: 1, 2: 1, 3: 1},
    "prompt_tokens": {"median": 300, "sigma": 0.5},
    "output_tokens": {"median": 150, "sigma": 0.5},
}


def card(alias: str, **changes: Any) -> dict[str, Any]:
    """A model card whose transitions take whole seconds."""
    return {
        "model_id": f"toy/{alias}",
        "alias": alias,
        "tp_min": 1,
        "t_wake_s": 2.0,
        "t_sleep_s": 1.0,
        "t_first_sleep_s": 4.0,
        "t_load_s": 10.0,
        "t_offload_s": 3.0,
        "active_mem_MB": 60_000,
        "slept_mem_tp1_MB": 2_000,
        "slept_mem_tpg1_MB": 2_000,
        "slots": 4,
        "queue": 2,
        "base_s": 0.01,
        "per_seq_s": 0.001,
        "prefill_tokens_per_s": 10_000,
        **changes,
    }


def write_cluster(folder: Path, cards: list[dict[str, Any]], gpus: int = 2, **group: Any) -> str:
    """A cluster file; its path."""
    catalogue = folder / "catalogue.yaml"
    catalogue.write_text(yaml.safe_dump({"name": "toys", "models": cards}))
    cluster = folder / "cluster.yaml"
    groups = [{"count": gpus, "vram_total_MB": 80_000, "alpha": 0.06, **group}]
    models = [c["alias"] for c in cards]
    content = {"name": "toy", "catalogue": str(catalogue), "models": models, "gpus": groups}
    cluster.write_text(yaml.safe_dump(content))
    return str(cluster)


def write_demand(folder: Path, **changes: Any) -> str:
    """A demand file; its path."""
    path = folder / "demand.yaml"
    path.write_text(yaml.safe_dump({**DEMAND, **changes}))
    return str(path)


def tight_cluster(folder: Path, alpha: float = 0.06) -> str:
    """Four GPUs, models of TP 1, 2 and 4, of which at most two sleep beside one that is awake."""
    cards = [
        card("one"),
        card("two", active_mem_MB=70_000, slots=2, queue=0),
        card("pair", tp_min=2, active_mem_MB=72_000, slept_mem_tpg1_MB=2_500),
        card("four", tp_min=4, active_mem_MB=40_000, slept_mem_tpg1_MB=3_000),
        card("big", active_mem_MB=76_000, slept_mem_tp1_MB=4_500),
    ]
    return write_cluster(folder, cards, gpus=4, alpha=alpha)


def make(num_envs: int, **arguments: Any) -> Any:
    return gym.make_vec(PLACEMENT, num_envs=num_envs, **arguments)


def decisions(
    env: Any, policy: Policy[Any, Any], seeds: list[int], steps: int | None = None
) -> Iterator[tuple[Any, NDArray[np.int64], NDArray[np.float64], dict[str, Any]]]:
    """Play a policy for an episode or `steps`: contexts, actions, rewards and infos of each."""
    observations, _ = env.reset(seed=seeds)
    policy.reset(env.policy_spec(), seeds)
    for _ in range(steps or env.config.num_decisions):
        contexts = env.contexts()
        actions = policy.act_batch(observations, contexts, np.arange(env.num_envs))
        observations, rewards, _, _, infos = env.step(actions)
        yield contexts, actions, rewards, infos


def started(
    arguments: dict[str, Any], *seeds: int, of: type[PlacementSimulation] = PlacementSimulation
) -> tuple[PlacementSimulation, NDArray[np.float32]]:
    """Clusters whose episodes of some seeds have begun, and their observations (E, d)."""
    rngs = [seeding.np_random(seed)[0] for seed in seeds or (0,)]
    simulation = of(PlacementConfig.model_validate(arguments), len(rngs))
    observations = simulation.observations()
    simulation.reset(np.arange(len(rngs)), rngs, observations)
    return simulation, observations


def some_action(
    rng: np.random.Generator, simulation: PlacementSimulation, wild: bool = False
) -> NDArray[np.int64]:
    """A random action (G,): any where it is wild, else whole blocks that the mask leaves open."""
    gpus, table = simulation.num_gpus, simulation.state.mask[0]
    if wild:
        return rng.integers(0, simulation.num_models + 1, gpus)
    tp = simulation.world.model["tp"].astype(np.int64)
    action = np.zeros(gpus, np.int64)
    taken = np.zeros(gpus, np.bool_)
    for g in rng.permutation(gpus).tolist():
        if taken[g] or rng.random() < 0.4:
            continue
        m = int(rng.choice(np.flatnonzero(table[g])))
        if m == 0:
            continue
        first = g // tp[m - 1] * tp[m - 1]
        block = slice(first, first + tp[m - 1])
        if not taken[block].any():
            action[block] = m
            taken[block] = True
    return action
