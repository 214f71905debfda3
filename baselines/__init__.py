"""Fitting and training of the baselines, and the built-in policies re-exported by name.

    import baselines
    policy = baselines.resolve_policy("static:deepseek-32b:DeepThink")

The policies themselves are part of the installed package: `inframind_gym.policies`.
"""

from inframind_gym.policies import policy_names, resolve_policy

AGENTS = ("bid_price", "ppo_lagrangian", "masrouter", "inframind", "inframind_v2")


def names() -> tuple[str, ...]:
    """Return the names of the baselines: routing policies that `agents` does not train."""
    return tuple(name for name in policy_names() if name not in AGENTS)


__all__ = ["AGENTS", "names", "resolve_policy"]
