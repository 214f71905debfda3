"""Policies of `InfraMind-Placement-v0` behind the protocol of `inframind_gym.placement.policy`.

    from baselines import placement
    policy = placement.make("mcf_plus")
    policy = placement.make("threshold", high=0.6)
    policy = placement.resolve("my_module:MyPlacement")  # a policy of your own

The classes are imported when a policy is made, not before: the flows want networkx.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

from inframind_gym.errors import ConfigError, unknown
from inframind_gym.placement.policy import PlacementPolicy


class PlacementEntry(NamedTuple):
    """A policy's name, its class as `module:class`, one line about it, arguments after colons."""

    name: str
    path: str
    summary: str
    arguments: tuple[str, ...] = ()


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
    PlacementEntry(
        "sb3_maskable_ppo",
        "baselines.placement.maskable_ppo:MaskablePpoPlacement",
        "sb3-contrib's MaskablePPO, one network for every GPU and model",
        ("folder",),
    ),
)

# It meets a cluster that no policy has: shown beside the contestants, never ranked with them.
BOUNDS: Final = (
    PlacementEntry(
        "everywhere",
        "baselines.placement.bound:EverywherePlacement",
        "a bound: every model awake everywhere, for nothing",
    ),
)


def names() -> tuple[str, ...]:
    """The names of the policies; the bounds are not among them."""
    return tuple(entry.name for entry in PLACEMENTS)


def make(name: str, **kwargs: Any) -> PlacementPolicy:
    """Make a policy from its name.

    Args:
        name: one of `names()`, or of a bound.
        **kwargs: arguments of the policy's class.

    Raises:
        ConfigError: there is no policy of that name, or its class does not take these arguments.
    """
    if name not in _ENTRIES:
        raise ConfigError(unknown("placement policy", name, _ENTRIES))
    return _made(name, _ENTRIES[name].path, kwargs)


def resolve(name_or_path: str) -> PlacementPolicy:
    """Make a policy from its name, with arguments after colons, or `package.module:Class`.

    Raises:
        ConfigError: it is unknown, its module cannot be imported, or its class has no `reset` and
            `act_batch`.
    """
    head, *rest = name_or_path.strip().split(":")
    entry = _ENTRIES.get(head)
    if entry is not None:
        if len(rest) > len(entry.arguments):
            usage = ":".join((head, *(argument.upper() for argument in entry.arguments)))
            raise ConfigError(
                f"placement policy {name_or_path!r} has too many arguments; write {usage}"
            )
        return make(head, **dict(zip(entry.arguments, rest, strict=False)))
    if len(rest) != 1 or not all(part.isidentifier() for part in (*head.split("."), *rest)):
        message = unknown("placement policy", head, _ENTRIES)
        raise ConfigError(f"{message} A policy of your own is written package.module:Class.")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return _made(name_or_path, name_or_path, {})


def _made(name: str, path: str, kwargs: dict[str, Any]) -> PlacementPolicy:
    module, _, attribute = path.partition(":")
    try:
        policy = getattr(import_module(module), attribute)(**kwargs)
    except (TypeError, AttributeError, ImportError) as error:
        raise ConfigError(f"placement policy {name!r}: {error}") from None
    missing = [part for part in ("reset", "act_batch") if not hasattr(policy, part)]
    if missing:
        raise ConfigError(
            f"placement policy {name!r} has no {' and no '.join(missing)}; see "
            "inframind_gym.placement.policy, whose BasePlacementPolicy wants only `decide`"
        )
    return cast(PlacementPolicy, policy)


_ENTRIES: Final = {entry.name: entry for entry in (*PLACEMENTS, *BOUNDS)}

__all__ = ["BOUNDS", "PLACEMENTS", "PlacementEntry", "make", "names", "resolve"]
