"""The built-in policies of `InfraMind-Coordination-v0` by name.

from inframind_gym.policies.coordination import registry as coordination
policy = coordination.resolve("seed_supervisor")
policy = coordination.resolve("my_module:MyPolicy")  # a policy of your own
"""

from __future__ import annotations

from functools import partial
from typing import Final

from inframind_gym.policies.coordination.protocol import CoordinationPolicy
from inframind_gym.policies.registry import Registry, adopter, entry_of

_entry = partial(entry_of, "coordination")

POLICIES: Final = Registry[CoordinationPolicy](
    "coordination policy",
    adopter("coordination policy", "coordination", "BaseCoordinationPolicy.choose"),
    entries=(
        _entry("random", "supervisors:RandomSupervisor", "any open action"),
        _entry("basic_rag", "supervisors:BasicRag", "one vector search, then the answer"),
        _entry("checked_rag", "supervisors:CheckedRag", "one hybrid search, validation, answer"),
        _entry(
            "seed_supervisor",
            "supervisors:SeedSupervisor",
            "the design's order: route, plan, search in parallel, merge, validate, answer",
        ),
        _entry(
            "sequential_supervisor",
            "supervisors:SequentialSupervisor",
            "the same, one search after the other",
        ),
        _entry("always_plan", "supervisors:AlwaysPlan", "the same with a plan for every question"),
        _entry("no_validate", "supervisors:NoValidate", "the same without validation"),
        _entry("sb3_maskable_ppo:folder", "ppo:MaskablePpoPolicy", "sb3-contrib's MaskablePPO"),
    ),
    bounds=(
        _entry("optimum", "oracle:OptimalPolicy", "a bound: exact optimum that knows the question"),
    ),
)
resolve, names = POLICIES.resolve, POLICIES.names

__all__ = ["POLICIES", "names", "resolve"]
