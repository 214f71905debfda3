"""The built-in policies of `InfraMind-TokenBudget-v0` by name.

from inframind_gym.policies.token_budget import registry as token_budget
policy = token_budget.resolve("adaptive_roi")
policy = token_budget.resolve("fixed_k:4")
policy = token_budget.resolve("my_module:MyPolicy")  # a policy of your own
"""

from __future__ import annotations

from functools import partial
from typing import Final

from inframind_gym.policies.registry import Registry, adopter, entry_of
from inframind_gym.policies.token_budget.protocol import TokenBudgetPolicy

_entry = partial(entry_of, "token_budget")

POLICIES: Final = Registry[TokenBudgetPolicy](
    "token-budget policy",
    adopter("token-budget policy", "token_budget", "BaseTokenBudgetPolicy.choose"),
    entries=(
        _entry("random", "modes:RandomPolicy", "any open action"),
        _entry("single_shot", "modes:SingleShotPolicy", "one long call of the executor"),
        _entry("fixed_k:k", "modes:FixedCallsPolicy", "a limit of k calls (6), as frameworks"),
        _entry("spend_all", "modes:SpendAllPolicy", "long calls until the budget is spent"),
        _entry(
            "frontload", "modes:FrontloadPolicy", "long plans, little review; fixed allocations"
        ),
        _entry(
            "critique_heavy",
            "modes:CritiqueHeavyPolicy",
            "short plan, then review and revise; fixed allocations",
        ),
        _entry(
            "adaptive_roi:threshold",
            "adaptive:AdaptiveRoiPolicy",
            "cuts the critic off below a threshold of ROI, then one closing revision",
        ),
        _entry(
            "adaptive_roi_strict:threshold",
            "adaptive:AdaptiveRoiStrictPolicy",
            "cuts every agent off below a threshold of ROI",
        ),
        _entry("sb3_maskable_ppo:folder", "ppo:MaskablePpoPolicy", "sb3-contrib's MaskablePPO"),
    ),
    bounds=(
        _entry(
            "optimum", "oracle:OptimalPolicy", "a bound: exact optimum that knows the latent state"
        ),
    ),
)
resolve, names = POLICIES.resolve, POLICIES.names

__all__ = ["POLICIES", "names", "resolve"]
