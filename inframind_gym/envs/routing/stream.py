"""InfraMind-Stream-v0: a whole stream of queries, every decision in it the agent's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.base import InfraMindEnv
from inframind_gym.envs.routing.config import DEFAULT_POOL, DEFAULT_WORKLOAD


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

    | argument | meaning |
    |---|---|
    | `pool` | name or path of a pool of servers (`envs_configs/pools`) |
    | `workload` | name or path of a workload (`envs_configs/workloads`) |
    | `tasks` | "builtin" or a folder of JSON Lines files |
    | `split` | "train", "val", "test" or "all" of the tasks |
    | `arrival_rate_per_min` | queries a minute |
    | `budget_s` | seconds of every query; None draws each from the workload's tiers |
    | `num_queries` | queries in a stream; None: the workload's |
    | `arrivals` | arrival process, by name or as JSON (`inframind_gym.simulator.arrivals`) |
    | `scheduler` | order of the servers' queues; None: the pool's |
    | `execution` | how a workflow's calls follow one another; None: the workload's |
    | `planner` | a fixed plan, a dict; None: drawn from the workload's measured mix |
    | `agents` | rules of the agents beyond their graph; None: the workload's |
    | `background` | router of the calls that are not the agent's |
    | `level` | decisions of the agent: "executor", "planner" or "joint" |
    | `observation` | "full" (embeddings) or "index" |
    | `system_features` | observed telemetry: "queue", "e2e", "kv", "in_flight" |
    | `metrics_poll_s` | seconds between two polls of it; None: the pool's |
    | `record_calls` | keep a record of every call (`calls()`) |
    | `down_models` | aliases of models that are down |

    `reset(options=…)` takes `arrival_rate_per_min` and `budget_s` (NaN: drawn from the tiers),
    which hold from then on.

    ## Version History

    * v0: first version.
    """

    one_query = False

    def __init__(
        self,
        *,
        pool: str = DEFAULT_POOL,
        workload: str = DEFAULT_WORKLOAD,
        tasks: str = "builtin",
        split: Literal["train", "val", "test", "all"] = "test",
        arrival_rate_per_min: float = 100.0,
        budget_s: float | None = None,
        num_queries: int | None = None,
        arrivals: str | dict[str, Any] = "poisson",
        scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None,
        execution: Literal["parallel", "sequential"] | None = None,
        planner: dict[str, Any] | None = None,
        agents: dict[str, Any] | None = None,
        background: Literal["static_mix", "round_robin", "least_loaded", "none"] = "static_mix",
        level: Literal["executor", "planner", "joint"] = "executor",
        observation: Literal["full", "index"] = "full",
        system_features: Sequence[Literal["queue", "e2e", "kv", "in_flight"]] = ("queue", "e2e"),
        metrics_poll_s: float | None = None,
        record_calls: bool = False,
        down_models: Sequence[str] = (),
        render_mode: Literal["rgb_array"] | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__(
            render_mode,
            pool=pool,
            workload=workload,
            tasks=tasks,
            split=split,
            arrival_rate_per_min=arrival_rate_per_min,
            budget_s=budget_s,
            num_queries=num_queries,
            arrivals=arrivals,
            scheduler=scheduler,
            execution=execution,
            planner=planner,
            agents=agents,
            background=background,
            level=level,
            observation=observation,
            system_features=system_features,
            metrics_poll_s=metrics_poll_s,
            record_calls=record_calls,
            down_models=down_models,
            **unknown,
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new stream."""
        super().reset(seed=seed)
        self._set_options(options)
        observation = self._begin(inside=False)
        return observation, self._info(0.0)

    def _summary(self) -> dict[str, Any]:
        queries = self.simulation.num_queries
        return {
            "queries": queries,
            "solve_rate": self._episode_reward / queries,
            "mean_cost": self._episode_cost / queries,
        }
