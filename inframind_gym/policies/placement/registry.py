"""The built-in policies of `InfraMind-Placement-v0` by name.

    from inframind_gym.policies.placement import registry as placement
    policy = placement.resolve("mcf_plus")
    policy = placement.resolve("threshold", high=0.6)
    policy = placement.resolve("my_module:MyPlacement")  # a policy of your own

The classes are imported when a policy is made, not before: the flows need networkx.
"""

from __future__ import annotations

from typing import Any, Final, cast

from inframind_gym.errors import ConfigError
from inframind_gym.policies.placement.protocol import PlacementPolicy
from inframind_gym.policies.registry import PolicyEntry, Registry


def _entry(name: str, where: str, description: str, arguments: tuple[str, ...] = ()) -> PolicyEntry:
    """Return the entry of a policy of this folder; `where` is module:class."""
    path = f"inframind_gym.policies.placement.{where}"
    return PolicyEntry(name, path, arguments, description)


PLACEMENTS: Final = (
    _entry("random", "heuristic:RandomPlacement", "any open choice"),
    _entry(
        "static",
        "heuristic:StaticPlacement",
        "GPUs shared out evenly among the models once, never changed",
    ),
    _entry(
        "lru",
        "heuristic:LruPlacement",
        "a model that is asked for and not awake takes the GPU used longest ago",
    ),
    _entry(
        "greedy",
        "heuristic:GreedyPlacement",
        "every GPU loads the model with most waiting calls per copy",
    ),
    _entry(
        "threshold",
        "heuristic:ThresholdPlacement",
        "autoscaler: copies go up above one use of slots, down below another",
    ),
    _entry("mcf_spec", "mcf_spec:SpecFlowPlacement", "linear min-cost flow, one path for each GPU"),
    _entry(
        "mcf_plus",
        "mcf_plus:PlusFlowPlacement",
        "min-cost flow with keep-arcs, convex relief, groups and hysteresis",
    ),
    _entry(
        "sb3_maskable_ppo",
        "maskable_ppo:MaskablePpoPlacement",
        "sb3-contrib's MaskablePPO, one network for every GPU and model",
        ("folder",),
    ),
)

# Its cluster is one that no policy has: listed with the contestants, never ranked with them.
BOUNDS: Final = (
    _entry(
        "everywhere",
        "bound:EverywherePlacement",
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


__all__ = ["BOUNDS", "PLACEMENTS", "names", "resolve"]
