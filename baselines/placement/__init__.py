"""Policies of `InfraMind-Placement-v0` behind the protocol of `inframind_gym.placement.policy`.

Importing this package registers every policy under its name:

    from baselines import placement
    policy = placement.make("mcf_plus")
    policy = placement.make("threshold", high=0.6)
    policy = placement.resolve("my_module:MyPlacement")  # a policy of your own

`inframind pool place` imports it where it is installed (the entry point in `pyproject.toml`). The
classes are imported when a policy is made, not before: the flows want networkx.
"""

from __future__ import annotations

from typing import Any, Final

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.placement.policy import PLACEMENT_POLICIES, PlacementPolicy
from inframind_gym.policy import PolicyEntry

PLACEMENTS: Final = (
    PolicyEntry("random", "baselines.placement.oblivious:RandomPlacement", (), "any open choice"),
    PolicyEntry(
        "static",
        "baselines.placement.oblivious:StaticPlacement",
        (),
        "GPUs shared out evenly among the models once, never changed",
    ),
    PolicyEntry(
        "lru",
        "baselines.placement.reactive:LruPlacement",
        (),
        "a model that is asked for and not awake takes the GPU used longest ago",
    ),
    PolicyEntry(
        "greedy",
        "baselines.placement.reactive:GreedyPlacement",
        (),
        "every GPU loads the model with most waiting calls per copy",
    ),
    PolicyEntry(
        "threshold",
        "baselines.placement.reactive:ThresholdPlacement",
        (),
        "autoscaler: copies go up above one use of slots, down below another",
    ),
    PolicyEntry(
        "mcf_spec",
        "baselines.placement.flows:SpecFlowPlacement",
        (),
        "the specification's min-cost flow, defects included",
    ),
    PolicyEntry(
        "mcf_plus",
        "baselines.placement.flows:PlusFlowPlacement",
        (),
        "min-cost flow with keep-arcs, convex relief, groups and hysteresis",
    ),
    PolicyEntry(
        "sb3_maskable_ppo",
        "baselines.placement.maskable_ppo:MaskablePpoPlacement",
        ("folder",),
        "sb3-contrib's MaskablePPO, one network for every GPU and model",
    ),
)

# It meets a cluster that no policy has: shown beside the contestants, never ranked with them.
BOUNDS: Final = (
    PolicyEntry(
        "everywhere",
        "baselines.placement.bound:EverywherePlacement",
        (),
        "a bound: every model awake everywhere, for nothing",
    ),
)

for _entry in (*PLACEMENTS, *BOUNDS):
    PLACEMENT_POLICIES.register(_entry)

resolve = PLACEMENT_POLICIES.resolve


def names() -> tuple[str, ...]:
    """The names of the policies; the bounds are not among them."""
    return tuple(entry.name for entry in PLACEMENTS)


def make(name: str, **kwargs: Any) -> PlacementPolicy:
    """Make a policy from its name, with arguments after colons or as keywords.

    Args:
        name: one of `names()`, or of a bound; for example "sb3_maskable_ppo:runs/mine".
        **kwargs: arguments of the policy's class.

    Raises:
        ConfigError: there is no policy of that name, or its class does not take these arguments.
    """
    known = tuple(entry.name for entry in PLACEMENT_POLICIES.entries())
    head = name.split(":")[0]
    if head not in known:
        raise ConfigError(unknown("placement policy", head, known))
    return resolve(name, **kwargs)


__all__ = ["BOUNDS", "PLACEMENTS", "make", "names", "resolve"]
