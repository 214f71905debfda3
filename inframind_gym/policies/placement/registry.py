"""The built-in policies of `InfraMind-Placement-v0` by name.

    from inframind_gym.policies.placement import registry as placement
    policy = placement.make("mcf_plus")
    policy = placement.make("threshold", high=0.6)
    policy = placement.resolve("my_module:MyPlacement")  # a policy of your own

The classes are imported when a policy is made, not before: the flows need networkx.
"""

from __future__ import annotations

from typing import Any, Final, cast

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.policies.placement.protocol import PlacementPolicy
from inframind_gym.policies.registry import PolicyEntry, Registry

PLACEMENTS: Final = (
    PolicyEntry(
        "random",
        "inframind_gym.policies.placement.heuristic:RandomPlacement",
        (),
        "any open choice",
    ),
    PolicyEntry(
        "static",
        "inframind_gym.policies.placement.heuristic:StaticPlacement",
        (),
        "GPUs shared out evenly among the models once, never changed",
    ),
    PolicyEntry(
        "lru",
        "inframind_gym.policies.placement.heuristic:LruPlacement",
        (),
        "a model that is asked for and not awake takes the GPU used longest ago",
    ),
    PolicyEntry(
        "greedy",
        "inframind_gym.policies.placement.heuristic:GreedyPlacement",
        (),
        "every GPU loads the model with most waiting calls per copy",
    ),
    PolicyEntry(
        "threshold",
        "inframind_gym.policies.placement.heuristic:ThresholdPlacement",
        (),
        "autoscaler: copies go up above one use of slots, down below another",
    ),
    PolicyEntry(
        "mcf_spec",
        "inframind_gym.policies.placement.mcf_spec:SpecFlowPlacement",
        (),
        "linear min-cost flow, one path for each GPU",
    ),
    PolicyEntry(
        "mcf_plus",
        "inframind_gym.policies.placement.mcf_plus:PlusFlowPlacement",
        (),
        "min-cost flow with keep-arcs, convex relief, groups and hysteresis",
    ),
    PolicyEntry(
        "sb3_maskable_ppo",
        "inframind_gym.policies.placement.maskable_ppo:MaskablePpoPlacement",
        ("folder",),
        "sb3-contrib's MaskablePPO, one network for every GPU and model",
    ),
)

# Its cluster is one that no policy has: listed with the contestants, never ranked with them.
BOUNDS: Final = (
    PolicyEntry(
        "everywhere",
        "inframind_gym.policies.placement.bound:EverywherePlacement",
        (),
        "a bound: every model awake on all GPUs, without switching",
    ),
)


def _adopt(policy: Any, cls: type[Any], kwargs: dict[str, Any], path: str) -> PlacementPolicy:
    missing = [verb for verb in ("reset", "act_batch") if not callable(getattr(policy, verb, None))]
    if missing:
        raise ConfigError(
            f"placement policy {path!r} has no {' and no '.join(missing)}; see "
            "inframind_gym.policies.placement.protocol: BasePlacementPolicy needs only `decide`"
        )
    return cast(PlacementPolicy, policy)


PLACEMENT_POLICIES: Final = Registry[PlacementPolicy](
    "placement policy", _adopt, (*PLACEMENTS, *BOUNDS)
)
resolve = PLACEMENT_POLICIES.resolve


def names() -> tuple[str, ...]:
    """Return the names of the policies, without the bounds."""
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
