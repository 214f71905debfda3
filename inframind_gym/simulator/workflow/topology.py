"""How agents work together: six topologies as graphs, 25 roles, three prompt strategies."""

from inframind_gym.simulator.workflow.graphs import (
    MAX_AGENTS,
    MAX_NODES,
    TOPOLOGIES,
    Graph,
    distinct_plans,
    graph,
)
from inframind_gym.simulator.workflow.roles import ROLES, Role, RoleRule, roles_of
from inframind_gym.simulator.workflow.strategies import STRATEGIES, STRATEGY_INSTRUCTIONS

__all__ = [
    "MAX_AGENTS",
    "MAX_NODES",
    "ROLES",
    "STRATEGIES",
    "STRATEGY_INSTRUCTIONS",
    "TOPOLOGIES",
    "Graph",
    "Role",
    "RoleRule",
    "distinct_plans",
    "graph",
    "roles_of",
]
