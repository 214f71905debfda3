"""The built-in policies of `InfraMind-Placement-v0` by name.

    from inframind_gym.policies.placement import registry as placement
    policy = placement.resolve("mcf_plus")
    policy = placement.resolve("threshold", high=0.6)
    policy = placement.resolve("my_module:MyPlacement")  # a policy of your own

The classes are imported when a policy is made, not before: the flows need networkx.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from inframind_gym.policies.placement.protocol import PlacementPolicy
from inframind_gym.policies.registry import Registry, adopter, entry_of

_entry = partial(entry_of, "placement")

POLICIES: Final = Registry[PlacementPolicy](
    "placement policy",
    adopter("placement policy", "placement", "BasePlacementPolicy.decide"),
    entries=(
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
        _entry(
            "mcf_spec", "mcf_spec:SpecFlowPlacement", "linear min-cost flow, one path for each GPU"
        ),
        _entry(
            "mcf_plus",
            "mcf_plus:PlusFlowPlacement",
            "min-cost flow with keep-arcs, convex relief, groups and hysteresis",
        ),
        _entry(
            "sb3_maskable_ppo:folder",
            "maskable_ppo:MaskablePpoPlacement",
            "sb3-contrib's MaskablePPO, one network for every GPU and model",
        ),
    ),
    bounds=(
        _entry(
            "everywhere",
            "bound:EverywherePlacement",
            "a bound: every model awake on all GPUs, without switching",
        ),
    ),
)
resolve, names = POLICIES.resolve, POLICIES.names

__all__ = ["POLICIES", "names", "resolve"]
