"""The built-in routing policies by name; their classes are imported when a policy is made."""

from __future__ import annotations

from functools import partial
from typing import Final

from inframind_gym.policies.registry import entry_of

_entry = partial(entry_of, "")

# Rules and learners that need no training, and players of shipped checkpoints.
BASELINES: Final = (
    _entry("random", "oblivious:RandomPolicy", "every model and strategy equally likely"),
    _entry("round_robin:strategy", "oblivious:RoundRobinPolicy", "one model after the other"),
    _entry("static:model:strategy", "oblivious:StaticPolicy", "always the same model and strategy"),
    _entry(
        "fixed_recipe:topology:num_agents:model:strategy",
        "fixed_recipe:FixedRecipePolicy",
        "one plan, model and strategy for a whole workload, the best on train and val",
    ),
    _entry(
        "fixed_recipe_by_rate",
        "fixed_recipe:FixedRecipeByRatePolicy",
        "the same, the best at the rate at which queries have arrived so far",
    ),
    _entry(
        "static_mix",
        "oblivious:StaticMixPolicy",
        "draws from the workload's measured oblivious mix",
    ),
    _entry(
        "least_loaded:strategy",
        "queue_aware:LeastLoadedPolicy",
        "the model with the fewest calls per slot",
    ),
    _entry(
        "lowest_expected_latency:strategy",
        "queue_aware:LowestExpectedLatencyPolicy",
        "the model expected to answer first",
    ),
    _entry(
        "budget_greedy",
        "budget:BudgetGreedyPolicy",
        "the strongest model expected to fit the remaining budget",
    ),
    _entry(
        "moa:strategy:aggregator",
        "moa:MixtureOfAgentsPolicy",
        "all models propose, the strongest aggregates",
    ),
    _entry(
        "q_learning_load_tracker",
        "q_learning_policy:QLearningLoadTrackerPolicy",
        "tabular Q-learning with a load penalty, online",
    ),
    _entry("linucb", "linucb:LinUCBPolicy", "contextual bandit over the routes, online"),
    _entry(
        "gptswarm:edges:strategy",
        "gptswarm:GPTSwarmPolicy",
        "a fixed graph of all models with learned edges",
    ),
    _entry("sb3_ppo:folder", "sb3:PpoPolicy", "Stable-Baselines3's PPO"),
    _entry("sb3_a2c:folder", "sb3:A2cPolicy", "Stable-Baselines3's A2C"),
    _entry("sb3_dqn:folder", "sb3:DqnPolicy", "Stable-Baselines3's DQN"),
    _entry(
        "sb3_maskable_ppo:folder",
        "sb3:MaskablePpoPolicy",
        "sb3-contrib's PPO that knows which models are down",
    ),
)

# Players of the checkpoints that `agents` trains.
AGENTS: Final = (
    _entry(
        "bid_price:checkpoint:mode",
        "bid_price.policy:BidPricePolicy",
        "a price on every second of every server; the default agent",
    ),
    _entry(
        "ppo_lagrangian:checkpoint:mode",
        "ppo_lagrangian:PpoLagrangianPolicy",
        "one network that plans and routes; a call pays for those it delays",
    ),
    _entry(
        "masrouter:checkpoint_folder",
        "masrouter:MasRouterPolicy",
        "plans and models by the meaning of the query alone",
    ),
    _entry(
        "inframind:checkpoint:mode",
        "inframind:InfraMindPolicy",
        "planner and PPO-Lagrangian executor as published",
    ),
    _entry(
        "inframind_pid:checkpoint:mode",
        "inframind:InfraMindPIDPolicy",
        "the same with a critic for the cost and a PID-controlled multiplier",
    ),
)

# They know what no router can know: listed beside the contestants, never ranked with them.
BOUNDS: Final = (
    _entry(
        "clairvoyant:safety",
        "clairvoyant:ClairvoyantPolicy",
        "a bound: knows all luck beforehand and plans greedily",
    ),
)


def is_bound(policy: str) -> bool:
    """Return whether a name, with or without arguments, is that of a bound."""
    return policy.split(":")[0] in {entry.name for entry in BOUNDS}
