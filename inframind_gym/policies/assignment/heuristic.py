"""Assignment policies that learn nothing."""

from __future__ import annotations

from typing import Final

import numpy as np

from inframind_gym.envs.assignment.context import AssignmentContext
from inframind_gym.policies.assignment.protocol import BaseAssignmentPolicy, Ints
from inframind_gym.teams.assignment import rules

DEFAULT_PROVIDER: Final = rules.PROVIDERS.index("openai")
# The agent whose role has the name of a task's type, by type.
EXPERT: Final = np.array(
    [rules.AGENTS.index(a) for a in ("analyst", "coder", "researcher", "validator")]
)


class RandomPolicy(BaseAssignmentPolicy):
    """Any of the eight actions."""

    name = "random"

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return draws, (n,)."""
        u = self.draw(rows, context.ordinal, 0)
        return np.asarray(np.floor(u * rules.NUM_ACTIONS), np.int64)


class RoundRobinPolicy(BaseAssignmentPolicy):
    """The agents in turn, on the default provider."""

    name = "round_robin"

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the turns."""
        return np.asarray(rules.in_turn(context.ordinal))


class LeastLoadedPolicy(BaseAssignmentPolicy):
    """The agent with least to do on the default provider; one of them is drawn if there are more.

    With queues that is the agent with the fewest tasks in flight, without queues the one with the
    smallest share of the window.
    """

    name = "least_loaded"

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        load = context.counts
        if self.spec.config.queues:
            shape = (len(rows), len(rules.AGENTS), len(rules.PROVIDERS))
            load = context.in_flight.reshape(shape).sum(axis=2)
        agent = self.best(-load.astype(np.float64), rows, context.ordinal)
        return np.asarray(rules.action_index(agent, DEFAULT_PROVIDER))


class LeastBusyPolicy(BaseAssignmentPolicy):
    """The deployment with fewest requests in flight, the first of equals.

    That is the rule of LiteLLM's router strategy "least-busy": it goes through the deployments and
    keeps one that has strictly fewer. Where tasks come one at a time, nothing is in flight when one
    arrives, and all of them go to the first deployment.
    """

    name = "least_busy"

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        return np.asarray(context.in_flight.argmin(axis=1))


class StaticExpertPolicy(BaseAssignmentPolicy):
    """The agent whose role has the name of the task's type, on the default provider."""

    name = "static_expert"

    def choose(self, context: AssignmentContext, rows: Ints) -> Ints:
        """Return (n,) the actions."""
        return np.asarray(rules.action_index(EXPERT[context.task_type], DEFAULT_PROVIDER))
