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

TOKEN_BUDGET: Final = (
    _entry("random", "modes:RandomPolicy", "any open action"),
    _entry("single_shot", "modes:SingleShotPolicy", "one long call of the executor"),
    _entry("fixed_k", "modes:FixedCallsPolicy", "a limit of k calls (6), as frameworks", ("k",)),
    _entry("spend_all", "modes:SpendAllPolicy", "long calls until the budget is spent"),
    _entry("frontload", "modes:FrontloadPolicy", "long plans, little review; fixed allocations"),
    _entry(
        "critique_heavy",
        "modes:CritiqueHeavyPolicy",
        "short plan, then review and revise; fixed allocations",
    ),
    _entry(
        "adaptive_roi",
        "adaptive:AdaptiveRoiPolicy",
        "cuts the critic off below a threshold of ROI, then one closing revision",
        ("threshold",),
    ),
    _entry(
        "adaptive_roi_strict",
        "adaptive:AdaptiveRoiStrictPolicy",
        "cuts every agent off below a threshold of ROI",
        ("threshold",),
    ),
    _entry("sb3_maskable_ppo", "ppo:MaskablePpoPolicy", "sb3-contrib's MaskablePPO", ("folder",)),
)

# It knows what no policy knows: listed with the contestants, never ranked with them.
BOUNDS: Final = (
    _entry("optimum", "oracle:OptimalPolicy", "a bound: exact optimum that knows the latent state"),
)


_adopt = adopter(
    "token-budget policy", "inframind_gym.policies.token_budget.protocol", "BaseTokenBudgetPolicy"
)
TOKEN_BUDGET_POLICIES: Final = Registry[TokenBudgetPolicy](
    "token-budget policy", _adopt, (*TOKEN_BUDGET, *BOUNDS)
)
resolve = TOKEN_BUDGET_POLICIES.resolve


def names() -> tuple[str, ...]:
    """Return the names of the policies, without the bounds."""
    return tuple(entry.name for entry in TOKEN_BUDGET)


__all__ = ["BOUNDS", "TOKEN_BUDGET", "names", "resolve"]
