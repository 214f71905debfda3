"""Policies: the protocol, what a policy is told and sees, and how one is found by name or path."""

from inframind_gym.policy.base import (
    REQUIRABLE,
    Action,
    BasePolicy,
    Completed,
    Context,
    Contexts,
    Policy,
    feedback_of,
    models_up,
    requires_of,
)
from inframind_gym.policy.layout import ObservationLayout
from inframind_gym.policy.loading import (
    PerRowPolicy,
    PolicyEntry,
    check_policy,
    load_policy,
    register_policy,
    registered_policies,
    resolve_policy,
)
from inframind_gym.policy.spec import PolicySpec

__all__ = [
    "REQUIRABLE",
    "Action",
    "BasePolicy",
    "Completed",
    "Context",
    "Contexts",
    "ObservationLayout",
    "PerRowPolicy",
    "Policy",
    "PolicyEntry",
    "PolicySpec",
    "check_policy",
    "feedback_of",
    "load_policy",
    "models_up",
    "register_policy",
    "registered_policies",
    "requires_of",
    "resolve_policy",
]
