"""Policies of `InfraMind-Placement-v0` behind the protocol of `inframind_gym.placement.policy`.

    from baselines import placement
    policy = placement.make("mcf_plus")
    policy = placement.make("threshold", high=0.6)

The classes are imported when a policy is made, not before: the flows want networkx.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.placement.policy import PlacementPolicy


class PlacementEntry(NamedTuple):
    """A policy's name, its class as `module:class`, and one line about it."""

    name: str
    path: str
    summary: str


PLACEMENTS: Final = (
    PlacementEntry("random", "baselines.placement.oblivious:RandomPlacement", "any open choice"),
    PlacementEntry(
        "static",
        "baselines.placement.oblivious:StaticPlacement",
        "GPUs shared out evenly among the models once, never changed",
    ),
    PlacementEntry(
        "lru",
        "baselines.placement.reactive:LruPlacement",
        "a model that is asked for and not awake takes the GPU used longest ago",
    ),
    PlacementEntry(
        "greedy",
        "baselines.placement.reactive:GreedyPlacement",
        "every GPU loads the model with most waiting calls per copy",
    ),
    PlacementEntry(
        "threshold",
        "baselines.placement.reactive:ThresholdPlacement",
        "autoscaler: copies go up above one use of slots, down below another",
    ),
    PlacementEntry(
        "mcf_spec",
        "baselines.placement.flows:SpecFlowPlacement",
        "the specification's min-cost flow, defects included",
    ),
    PlacementEntry(
        "mcf_plus",
        "baselines.placement.flows:PlusFlowPlacement",
        "min-cost flow with keep-arcs, convex relief, groups and hysteresis",
    ),
)


def names() -> tuple[str, ...]:
    """The names of the policies."""
    return tuple(entry.name for entry in PLACEMENTS)


def make(name: str, **kwargs: Any) -> PlacementPolicy:
    """Make a policy from its name.

    Args:
        name: one of `names()`.
        **kwargs: arguments of the policy's class.

    Raises:
        ConfigError: there is no policy of that name, or its class does not take these arguments.
    """
    entries = {entry.name: entry for entry in PLACEMENTS}
    if name not in entries:
        raise ConfigError(unknown("placement policy", name, entries))
    module, _, attribute = entries[name].path.partition(":")
    try:
        policy: PlacementPolicy = getattr(import_module(module), attribute)(**kwargs)
    except TypeError as error:
        raise ConfigError(f"placement policy {name!r}: {error}") from None
    return policy


__all__ = ["PLACEMENTS", "PlacementEntry", "make", "names"]
