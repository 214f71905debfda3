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
