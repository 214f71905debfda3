"""Heuristic and learned baselines behind the `Policy` protocol of `inframind_gym.policy`.

Importing this package registers every baseline under its name:

    import baselines
    policy = baselines.make("static", model="deepseek-32b", strategy="DeepThink")
    policy = baselines.resolve_policy("static:deepseek-32b:DeepThink")  # the same
    policy = baselines.resolve_policy("my_module:MyPolicy")  # a policy of your own

The classes are imported when a policy is made, not before.
"""

from __future__ import annotations

from typing import Any, Final

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policy import (
    Policy,
    PolicyEntry,
    register_policy,
    registered_policies,
    resolve_policy,
)

BASELINES: Final = (
    PolicyEntry(
        "random", "baselines.oblivious:RandomPolicy", (), "every model and strategy equally likely"
    ),
    PolicyEntry(
        "round_robin",
        "baselines.oblivious:RoundRobinPolicy",
        ("strategy",),
        "one model after the other",
    ),
    PolicyEntry(
        "static",
        "baselines.oblivious:StaticPolicy",
        ("model", "strategy"),
        "always the same model and strategy",
    ),
    PolicyEntry(
        "fixed_recipe",
        "baselines.fixed_recipe:FixedRecipePolicy",
        ("topology", "num_agents", "model", "strategy"),
        "one plan, model and strategy for a whole workload, the best on train and val",
    ),
    PolicyEntry(
        "fixed_recipe_by_rate",
        "baselines.fixed_recipe:FixedRecipeByRatePolicy",
        (),
        "the same, the best at the rate at which queries have arrived so far",
    ),
    PolicyEntry(
        "static_mix",
        "baselines.oblivious:StaticMixPolicy",
        (),
        "draws from the workload's measured oblivious mix",
    ),
    PolicyEntry(
        "least_loaded",
        "baselines.queue_aware:LeastLoadedPolicy",
        ("strategy",),
        "the model with the fewest calls per slot",
    ),
    PolicyEntry(
        "lowest_expected_latency",
        "baselines.queue_aware:LowestExpectedLatencyPolicy",
        ("strategy",),
        "the model expected to answer first",
    ),
    PolicyEntry(
        "budget_greedy",
        "baselines.budget:BudgetGreedyPolicy",
        (),
        "the strongest model expected to fit the remaining budget",
    ),
    PolicyEntry(
        "moa",
        "baselines.moa:MixtureOfAgentsPolicy",
        ("strategy", "aggregator"),
        "all models propose, the strongest aggregates",
    ),
    PolicyEntry(
        "q_learning_load_tracker",
        "baselines.q_learning_policy:QLearningLoadTrackerPolicy",
        (),
        "tabular Q-learning with a load penalty, online",
    ),
    PolicyEntry(
        "linucb",
        "baselines.linucb:LinUCBPolicy",
        (),
        "contextual bandit over the routes, online",
    ),
    PolicyEntry(
        "gptswarm",
        "baselines.gptswarm:GPTSwarmPolicy",
        ("edges", "strategy"),
        "a fixed graph of all models with learned edges",
    ),
    PolicyEntry(
        "sb3_ppo", "baselines.sb3.policy:PpoPolicy", ("folder",), "Stable-Baselines3's PPO"
    ),
    PolicyEntry(
        "sb3_a2c", "baselines.sb3.policy:A2cPolicy", ("folder",), "Stable-Baselines3's A2C"
    ),
    PolicyEntry(
        "sb3_dqn", "baselines.sb3.policy:DqnPolicy", ("folder",), "Stable-Baselines3's DQN"
    ),
    PolicyEntry(
        "sb3_maskable_ppo",
        "baselines.sb3.policy:MaskablePpoPolicy",
        ("folder",),
        "sb3-contrib's PPO that knows which models are down",
    ),
)

# They know what no router can know: shown beside the contestants, never ranked with them.
BOUNDS: Final = (
    PolicyEntry(
        "clairvoyant",
        "baselines.clairvoyant:ClairvoyantPolicy",
        ("safety",),
        "a bound: knows all luck beforehand and plans greedily",
    ),
)

for _entry in (*BASELINES, *BOUNDS):
    register_policy(_entry)


def names() -> tuple[str, ...]:
    """The names of the baselines; the bounds are not among them."""
    return tuple(entry.name for entry in BASELINES)


def is_bound(policy: str) -> bool:
    """Whether a name, with or without arguments, is that of a bound."""
    return policy.split(":")[0] in {entry.name for entry in BOUNDS}


def make(name: str, **kwargs: Any) -> Policy:
    """Make a registered policy from its name, with arguments after colons or as keywords.

    Args:
        name: for example "least_loaded" or "static:llama-8b:Flash".
        **kwargs: arguments of the policy's class.

    Raises:
        ConfigError: no policy of that name is registered (the nearest is suggested), or its class
            does not take these arguments.
    """
    known = tuple(entry.name for entry in registered_policies())
    head = name.split(":")[0]
    if head not in known:
        raise ConfigError(unknown("policy", head, known))
    return resolve_policy(name, **kwargs)


__all__ = ["BASELINES", "BOUNDS", "is_bound", "make", "names", "resolve_policy"]
