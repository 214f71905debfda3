"""The built-in policies of `InfraMind-Assignment-v0` by name.

from inframind_gym.policies.assignment import registry as assignment
policy = assignment.resolve("q_seed")
policy = assignment.resolve("linucb", alpha=0.2)
policy = assignment.resolve("my_module:MyAssignment")  # a policy of your own
"""

from __future__ import annotations

from functools import partial
from typing import Final

from inframind_gym.policies.assignment.protocol import AssignmentPolicy
from inframind_gym.policies.registry import Registry, adopter, entry_of

_entry = partial(entry_of, "assignment")

POLICIES: Final = Registry[AssignmentPolicy](
    "assignment policy",
    adopter("assignment policy", "assignment", "BaseAssignmentPolicy.choose"),
    entries=(
        _entry("random", "heuristic:RandomPolicy", "any agent and provider"),
        _entry("round_robin", "heuristic:RoundRobinPolicy", "the agents in turn"),
        _entry(
            "least_loaded", "heuristic:LeastLoadedPolicy", "the agent with least to do, ties drawn"
        ),
        _entry(
            "least_busy",
            "heuristic:LeastBusyPolicy",
            "fewest requests in flight, the first of equals, as LiteLLM's least-busy",
        ),
        _entry("static_expert", "heuristic:StaticExpertPolicy", "the agent of the task's type"),
        _entry(
            "q_seed",
            "q_learning:QSeedPolicy",
            "load-aware Q-learning, online, to the letter of its source",
        ),
        _entry("q_random_tie", "q_learning:QRandomTiePolicy", "q_seed that draws among equals"),
        _entry("q_bandit", "q_learning:QBanditPolicy", "q_random_tie with a discount of 0"),
        _entry(
            "q_production",
            "q_learning:QProductionPolicy",
            "q_seed for 50 tasks, then greedy updates without a next state",
        ),
        _entry(
            "q_production_bootstrap",
            "q_learning:QProductionBootstrapPolicy",
            "q_seed for 50 tasks, then greedy updates as before",
        ),
        _entry("linucb", "bandits:LinUcbPolicy", "disjoint LinUCB, online"),
        _entry("thompson", "bandits:ThompsonPolicy", "Thompson sampling, online"),
        _entry("sb3_ppo:folder", "ppo:PpoPolicy", "Stable-Baselines3's PPO, trained beforehand"),
    ),
    bounds=(
        _entry(
            "myopic", "oracle:MyopicPolicy", "knows the skills; best expected reward of the task"
        ),
        _entry("optimum", "oracle:OptimalPolicy", "a bound: exact optimum, knows the skills"),
    ),
)
resolve, names = POLICIES.resolve, POLICIES.names

__all__ = ["POLICIES", "names", "resolve"]
