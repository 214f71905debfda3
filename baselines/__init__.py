"""Fitting and training of the baselines, and the built-in policies re-exported by name.

    import baselines
    policy = baselines.make("static", model="deepseek-32b", strategy="DeepThink")
    policy = baselines.resolve_policy("static:deepseek-32b:DeepThink")  # the same

The policies themselves are part of the installed package: `inframind_gym.policies`.
"""

from __future__ import annotations

from inframind_gym.policies import make, resolve_policy
from inframind_gym.policies.builtin import BASELINES, BOUNDS, is_bound


def names() -> tuple[str, ...]:
    """Return the names of the baselines; the bounds are not among them."""
    return tuple(entry.name for entry in BASELINES)


__all__ = ["BASELINES", "BOUNDS", "is_bound", "make", "names", "resolve_policy"]
