"""Learned policies and what trains them; runs from a checkout.

Importing this package registers every policy under its name; `inframind:runs/x/best` is the policy
of a checkpoint of one's own. The classes are imported when a policy is made, and need no torch.
"""

from __future__ import annotations

from typing import Final

from inframind_gym.policy import PolicyEntry, register_policy

AGENTS: Final = (
    PolicyEntry(
        "headway",
        "agents.headway.agent:HeadwayPolicy",
        ("checkpoint", "mode"),
        "a price on every second of every server; the default agent",
    ),
    PolicyEntry(
        "masrouter",
        "agents.masrouter.policy:MasRouterPolicy",
        ("checkpoint_folder",),
        "plans and models by the meaning of the query alone",
    ),
    PolicyEntry(
        "inframind",
        "agents.inframind.policy:InfraMindPolicy",
        ("checkpoint", "mode"),
        "planner and PPO-Lagrangian executor as published",
    ),
    PolicyEntry(
        "inframind_dual_critic",
        "agents.inframind.policy:InfraMindDualCriticPolicy",
        ("checkpoint", "mode"),
        "the same with a critic for the cost",
    ),
    PolicyEntry(
        "inframind_pid",
        "agents.inframind.policy:InfraMindPIDPolicy",
        ("checkpoint", "mode"),
        "the same with a PID-controlled multiplier",
    ),
)

for _entry in AGENTS:
    register_policy(_entry)

__all__ = ["AGENTS"]
