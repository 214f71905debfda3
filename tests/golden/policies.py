"""Frozen decisions of every built-in policy of every family, and what each declares of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.policies import requires_of, resolve_policy
from inframind_gym.simulator import SIMULATOR_VERSION
from inframind_gym.simulator.placement.config import PlacementConfig
from tests.golden.net import digest_of
from tests.policies import rollout

ROUTING = (
    *("random", "round_robin", "round_robin:Flash"),
    *("static", "static:llama-8b:DeepThink", "static_mix"),
    *("fixed_recipe", "fixed_recipe:Debate:3:qwen-14b:Flash", "fixed_recipe_by_rate"),
    *("jsq", "sq2", "spill", "backpressure", "adaptive", "adaptive_feedback"),
    *("least_loaded", "least_loaded:Flash", "lowest_expected_latency", "budget_greedy"),
    *("moa", "gptswarm", "q_learning_load_tracker", "linucb"),
    *("sb3_ppo", "sb3_a2c", "sb3_dqn", "sb3_maskable_ppo", "masrouter"),
    *("inframind", "inframind::sample", "inframind_v2", "ppo_lagrangian"),
    *("ppo_lagrangian::sample", "bid_price"),
)
PLACEMENT = (
    *("random", "static", "lru", "greedy", "threshold", "mcf_spec", "mcf_plus"),
    *("sb3_maskable_ppo", "everywhere"),
)
ASSIGNMENT = (
    *("random", "round_robin", "least_loaded", "least_busy", "static_expert", "q_seed"),
    *("q_random_tie", "q_bandit", "q_production", "q_production_bootstrap", "linucb"),
    *("thompson", "sb3_ppo", "myopic", "optimum"),
)
TOKEN_BUDGET = (
    *("random", "single_shot", "fixed_k", "fixed_k:3", "spend_all", "frontload"),
    *("critique_heavy", "adaptive_roi", "adaptive_roi_strict"),
    *("sb3_maskable_ppo", "optimum"),
)
COORDINATION = (
    *("random", "basic_rag", "checked_rag", "seed_supervisor", "sequential_supervisor"),
    *("always_plan", "no_validate", "sb3_maskable_ppo"),
)


def _declared(policy: Any) -> list[Any]:
    """Return what results of a policy are filed under."""
    keys = ("name", "version", "requires", "fingerprint", "bound", "multiplier", "strategy")
    defaults: dict[str, Any] = {"version": 1, "requires": {}, "bound": False}
    found = {key: getattr(policy, key, defaults.get(key)) for key in keys}
    if not isinstance(found["strategy"], str) or hasattr(policy, "choose_models"):
        del found["strategy"]
    return [f"{key}={value}" for key, value in found.items() if value is not None]


def _routing(name: str, **given: Any) -> str:
    """Play two streams beside one another; digest actions and completed queries."""
    policy = resolve_policy(name)
    arguments: dict[str, Any] = {"observation": "index", "num_queries": 40}
    arguments |= {"arrival_rate_per_min": 200.0} | given | requires_of(policy)
    env = gym.make_vec("InfraMind-Stream-v0", num_envs=2, **arguments)
    inner: Any = env.unwrapped
    observations, _ = env.reset(seed=5)
    policy.reset(inner.policy_spec(), [1, 2])
    observe, told, running = getattr(policy, "observe", None), [], np.ones(2, np.bool_)
    actions = np.zeros_like(env.action_space.sample(), dtype=np.int64)
    while running.any():
        rows = np.flatnonzero(running)
        actions[rows] = policy.act_batch(observations[rows], inner.contexts()[rows], rows)
        observations, _, terminated, _, _ = env.step(actions)
        of, records = inner.completed()
        of, records = of[running[of]], records[running[of]]
        told += [actions[rows], of, records]
        for row in np.unique(of).tolist() if observe else ():
            observe(records[of == row], row)
        running &= ~terminated
    env.close()
    return digest_of([_declared(policy), told])


def _placement(name: str, cluster: str = "h100-8gpu", demand: str = "shifting") -> str:
    """Play two clusters beside one another; digest actions and terms."""
    policy = resolve_policy(name, family="placement")
    given = {"cluster": cluster, "demand": demand, "num_decisions": 20}
    kind = getattr(policy, "simulation", PlacementSimulation)
    simulation = kind(PlacementConfig.model_validate(given), 2)
    rows, observations, told = np.arange(2), simulation.observations(), []
    simulation.reset(rows, [np.random.default_rng(seed) for seed in (1, 2)], observations)
    policy.reset(simulation.policy_spec(), [1, 2])
    for _ in range(20):
        actions = policy.act_batch(observations.copy(), simulation.contexts(rows), rows)
        simulation.step(rows, np.asarray(actions, np.int64), observations)
        told += [np.asarray(actions, np.int64), simulation.terms.copy()]
    return digest_of([_declared(policy), told])


def _assignment(name: str, **arguments: Any) -> str:
    """Play four runs; digest the tasks that ended."""
    policy = resolve_policy(name, family="assignment")
    played = rollout.play_assignment(policy, range(4), **arguments)
    told = [[np.asarray(part) for part in done] for done in played]
    return digest_of([_declared(policy), told])


def _token_budget(name: str, **arguments: Any) -> str:
    """Play 12 episodes; digest their summaries."""
    policy = resolve_policy(name, family="token_budget")
    return digest_of([_declared(policy), rollout.play_token_budget(policy, range(12), **arguments)])


def _coordination(name: str, **arguments: Any) -> str:
    """Play 12 episodes; digest their summaries."""
    policy = resolve_policy(name, family="coordination")
    return digest_of([_declared(policy), rollout.play_coordination(policy, range(12), **arguments)])


def _cases() -> Iterator[tuple[str, Callable[[], str]]]:
    for name in ROUTING:
        yield f"routing: {name}", partial(_routing, name)
    for name in ("random", "round_robin", "static_mix", "budget_greedy", "moa", "gptswarm"):
        down = partial(_routing, name, down_models=["qwen-14b", "llama-3b"])
        yield f"routing, two down: {name}", down
    for name in ("sb3_ppo", "linucb", "least_loaded"):
        yield f"routing, full: {name}", partial(_routing, name, observation="full")
    for name in PLACEMENT:
        yield f"placement: {name}", partial(_placement, name)
    yield "placement, 16: mcf_plus", partial(_placement, "mcf_plus", "h100-16gpu", "bursty")
    for name in ASSIGNMENT:
        yield f"assignment: {name}", partial(_assignment, name)
        if name != "optimum":
            yield f"assignment, queue: {name}", partial(_assignment, name, load="queue")
    for name in TOKEN_BUDGET:
        yield f"token budget: {name}", partial(_token_budget, name, budget=[3_000, 12_000])
    for name in COORDINATION:
        yield f"coordination: {name}", partial(_coordination, name)


CASES: dict[str, Callable[[], str]] = dict(_cases())


def versions() -> dict[str, int]:
    """Return the declared versions of the simulator, and of the policy of each case."""
    found = {"simulator": SIMULATOR_VERSION}
    for case in CASES:
        kind, _, name = case.partition(": ")
        family = kind.partition(",")[0].replace(" ", "_")
        found[case] = int(getattr(resolve_policy(name, family=family), "version", 1))
    return found
