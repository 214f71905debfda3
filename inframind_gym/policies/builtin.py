"""The built-in routing policies by name; their classes are imported when a policy is made."""

from __future__ import annotations

from typing import Final

from inframind_gym.policies.registry import PolicyEntry

# Rules and learners that need no training, and players of shipped checkpoints.
BASELINES: Final = (
    PolicyEntry(
        "random",
        "inframind_gym.policies.oblivious:RandomPolicy",
        (),
        "every model and strategy equally likely",
    ),
    PolicyEntry(
        "round_robin",
        "inframind_gym.policies.oblivious:RoundRobinPolicy",
        ("strategy",),
        "one model after the other",
    ),
    PolicyEntry(
        "static",
        "inframind_gym.policies.oblivious:StaticPolicy",
        ("model", "strategy"),
        "always the same model and strategy",
    ),
    PolicyEntry(
        "fixed_recipe",
        "inframind_gym.policies.fixed_recipe:FixedRecipePolicy",
        ("topology", "num_agents", "model", "strategy"),
        "one plan, model and strategy for a whole workload, the best on train and val",
    ),
    PolicyEntry(
        "fixed_recipe_by_rate",
        "inframind_gym.policies.fixed_recipe:FixedRecipeByRatePolicy",
        (),
        "the same, the best at the rate at which queries have arrived so far",
    ),
    PolicyEntry(
        "static_mix",
        "inframind_gym.policies.oblivious:StaticMixPolicy",
        (),
        "draws from the workload's measured oblivious mix",
    ),
    PolicyEntry(
        "least_loaded",
        "inframind_gym.policies.queue_aware:LeastLoadedPolicy",
        ("strategy",),
        "the model with the fewest calls per slot",
    ),
    PolicyEntry(
        "lowest_expected_latency",
        "inframind_gym.policies.queue_aware:LowestExpectedLatencyPolicy",
        ("strategy",),
        "the model expected to answer first",
    ),
    PolicyEntry(
        "budget_greedy",
        "inframind_gym.policies.budget:BudgetGreedyPolicy",
        (),
        "the strongest model expected to fit the remaining budget",
    ),
    PolicyEntry(
        "moa",
        "inframind_gym.policies.moa:MixtureOfAgentsPolicy",
        ("strategy", "aggregator"),
        "all models propose, the strongest aggregates",
    ),
    PolicyEntry(
        "q_learning_load_tracker",
        "inframind_gym.policies.q_learning_policy:QLearningLoadTrackerPolicy",
        (),
        "tabular Q-learning with a load penalty, online",
    ),
    PolicyEntry(
        "linucb",
        "inframind_gym.policies.linucb:LinUCBPolicy",
        (),
        "contextual bandit over the routes, online",
    ),
    PolicyEntry(
        "gptswarm",
        "inframind_gym.policies.gptswarm:GPTSwarmPolicy",
        ("edges", "strategy"),
        "a fixed graph of all models with learned edges",
    ),
    PolicyEntry(
        "sb3_ppo", "inframind_gym.policies.sb3:PpoPolicy", ("folder",), "Stable-Baselines3's PPO"
    ),
    PolicyEntry(
        "sb3_a2c", "inframind_gym.policies.sb3:A2cPolicy", ("folder",), "Stable-Baselines3's A2C"
    ),
    PolicyEntry(
        "sb3_dqn", "inframind_gym.policies.sb3:DqnPolicy", ("folder",), "Stable-Baselines3's DQN"
    ),
    PolicyEntry(
        "sb3_maskable_ppo",
        "inframind_gym.policies.sb3:MaskablePpoPolicy",
        ("folder",),
        "sb3-contrib's PPO that knows which models are down",
    ),
)

# Players of the checkpoints that `agents` trains.
AGENTS: Final = (
    PolicyEntry(
        "bid_price",
        "inframind_gym.policies.bid_price.policy:BidPricePolicy",
        ("checkpoint", "mode"),
        "a price on every second of every server; the default agent",
    ),
    PolicyEntry(
        "masrouter",
        "inframind_gym.policies.masrouter:MasRouterPolicy",
        ("checkpoint_folder",),
        "plans and models by the meaning of the query alone",
    ),
    PolicyEntry(
        "inframind",
        "inframind_gym.policies.inframind:InfraMindPolicy",
        ("checkpoint", "mode"),
        "planner and PPO-Lagrangian executor as published",
    ),
    PolicyEntry(
        "inframind_dual_critic",
        "inframind_gym.policies.inframind:InfraMindDualCriticPolicy",
        ("checkpoint", "mode"),
        "the same with a critic for the cost",
    ),
    PolicyEntry(
        "inframind_pid",
        "inframind_gym.policies.inframind:InfraMindPIDPolicy",
        ("checkpoint", "mode"),
        "the same with a PID-controlled multiplier",
    ),
)

# They know what no router can know: listed beside the contestants, never ranked with them.
BOUNDS: Final = (
    PolicyEntry(
        "clairvoyant",
        "inframind_gym.policies.clairvoyant:ClairvoyantPolicy",
        ("safety",),
        "a bound: knows all luck beforehand and plans greedily",
    ),
)


def is_bound(policy: str) -> bool:
    """Return whether a name, with or without arguments, is that of a bound."""
    return policy.split(":")[0] in {entry.name for entry in BOUNDS}
