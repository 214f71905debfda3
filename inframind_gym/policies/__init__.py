"""Policies: the protocol (`base`), built-in policies by name (`registry`), a file for each kind.

A router returns one number per call, `spec.action(model, strategy)`. A planner requires level
"planner" and returns eight numbers per query: topology, number of agents less one, and six roles
(one per agent, further ones are ignored; modulo the number of roles of the query's domain).

    class DebateIfThereIsTime(BasePolicy):
        name = "debate_if_there_is_time"
        requires = {"level": "planner"}

        def act_batch(self, observations, contexts, rows):
            plans = np.zeros((len(rows), 8), np.int64)
            plans[:, 0] = np.where(contexts["budget_s"] > 100.0, TOPOLOGIES.index("Debate"), 0)
            plans[:, 1] = 2  # three agents
            plans[:, 2:] = np.arange(6)
            return plans

At level "joint" a policy (`JointPolicy`) does both: nine numbers, a plan and a route. Where
`contexts["kind"]` is PLAN (`inframind_gym.simulator.workflow.state`) a query has arrived and the
first eight are read; where it is ROUTE a call is ready and the last one is read. Such a policy
can also be the `executor` of `InfraMind-Planner-v0`, which asks it for routes only.

The other families have base classes beside their rules: `placement.BasePlacementPolicy`,
`assignment.BaseAssignmentPolicy`, `token_budget.BaseTokenBudgetPolicy` and
`coordination.BaseCoordinationPolicy`.
"""

from inframind_gym.envs.layout import ObservationLayout, PolicySpec
from inframind_gym.policies.base import (
    REQUIRABLE,
    Action,
    BasePolicy,
    Completed,
    Context,
    Contexts,
    JointPolicy,
    Policy,
    models_up,
    multiplier_of,
    requires_of,
)
from inframind_gym.policies.registry import (
    POLICIES,
    PolicyEntry,
    check_policy,
    policy_names,
    resolve_policy,
)

__all__ = [
    "POLICIES",
    "REQUIRABLE",
    "Action",
    "BasePolicy",
    "Completed",
    "Context",
    "Contexts",
    "JointPolicy",
    "ObservationLayout",
    "Policy",
    "PolicyEntry",
    "PolicySpec",
    "check_policy",
    "models_up",
    "multiplier_of",
    "policy_names",
    "requires_of",
    "resolve_policy",
]
