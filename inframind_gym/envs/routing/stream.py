"""InfraMind-Stream-v0: a whole stream of queries, every decision in it the agent's."""

from __future__ import annotations

from typing import Any

from inframind_gym.envs.routing.base import InfraMindEnv


class StreamEnv(InfraMindEnv):
    """The closed loop: the agent's own choices make the queues that its later choices meet.

    ## Description

    `num_queries` queries arrive at a rate. One step is the next decision that is due anywhere in
    the cluster, whichever query it belongs to; several can be due at one instant. Time runs only
    between decisions. An episode is the whole stream.

    ## Action Space

    | `level` | plans | routes | action |
    |---|---|---|---|
    | "executor" (default) | the workload's mix, or `planner` | the agent | `Discrete(M·3)` |
    | "planner" | the agent | the `background` router | `MultiDiscrete([6, 6, 12 × 6])` |
    | "joint" | the agent | the agent | `MultiDiscrete([6, 6, 12 × 6, M·3])` |

    A route is an action of `InfraMind-Executor-v0`, a plan one of `InfraMind-Planner-v0`: the
    topology, the number of agents less one, and the role of each agent, taken modulo the number of
    roles of the query's domain. At the joint level a query's plan is due when it arrives and its
    routes follow; each step reads the part of the action that its decision needs.
    `env.unwrapped.context()["kind"]` tells which it is, PLAN or ROUTE
    (`inframind_gym.simulator.workflow.state`).

    ## Observation Space

    As in `InfraMind-Executor-v0`, at every level; where a plan is due the part of the role is 0
    (index -1). At the joint level one more number follows: 1 where a plan is due, 0 where a route
    is.

    ## Rewards and costs

    The reward of a step is the number of queries that were solved since the last decision,
    `info["cost"]` the sum of their latency / budget. `env.unwrapped.completed()` gives the records
    of these queries (their ordinal, every decision by node and its latency), `info["query"]` and
    `info["node"]` say which query and node the next decision is for: together they give credit per
    query.

    ## Starting State

    Empty servers and the first query.

    ## Episode End

    When the last query is done. Never truncated.

    ## Arguments

    Those of `InfraMind-Executor-v0`.

    `reset(options=…)` takes `arrival_rate_per_min` and `budget_s` (NaN: drawn from the tiers),
    which hold from then on.

    ## Version History

    * v0: first version.
    """

    one_query = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new stream."""
        super().reset(seed=seed)
        self._set_options(options)
        observation = self._begin(inside=False)
        return observation, self._first_info()

    def _summary(self) -> dict[str, Any]:
        queries = self.simulation.num_queries
        return {
            "queries": queries,
            "solve_rate": self._episode_reward / queries,
            "mean_cost": self._episode_cost / queries,
        }
