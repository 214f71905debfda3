"""InfraMind-Planner-v0: one query, one plan, one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from inframind_gym.envs.routing.base import TaggedQueryEnv, passed_on
from inframind_gym.envs.routing.config import DEFAULT_POOL, DEFAULT_WORKLOAD, planner_config
from inframind_gym.envs.routing.planner_simulation import PlannerSimulation


class PlannerEnv(TaggedQueryEnv):
    """Choose topology, number of agents and roles for one query; an executor does the rest.

    ## Description

    A query with a latency budget has arrived while other queries load the servers. The agent says
    which agents work on it, and how they work together. An executor of your choice then routes
    their calls, and the step ends with the query: it is solved or not, in time or late. Under
    another executor, or another load, another plan is best.

    `executor` names who routes the calls:

    - `"static_mix"` (default: the workload's measured oblivious mix), `"round_robin"` or
      `"least_loaded"`: built into the compiled simulation;
    - a policy by its name, also with arguments: `"lowest_expected_latency"`,
      `"static:llama-8b:Flash"`, `"inframind:runs/mine/seed0"` for a checkpoint;
    - a policy of your own: `"package.module:Class"`.

    A policy is shown what executors are shown, whatever the planner is: indices, "queue" and "e2e"
    and the `system_features`, or else what it `requires`. It learns from the agent's queries if it
    learns at all; `reset(seed=…)` resets it, and otherwise it keeps what it has learned.

    ## Action Space

    `MultiDiscrete([6, 6, 12, 12, 12, 12, 12, 12])`:

    | part | what |
    |---|---|
    | 0 | topology: IO, CoT, Chain, Debate, Reflection, FullConnected |
    | 1 | number of agents, less one |
    | 2-7 | role of each agent, taken modulo the number of roles of the query's domain |

    Roles beyond the number of agents are not read. Every plan can be carried out:
    `info["action_mask"]`, a tuple of an int8 array a part, is all ones.

    ## Observation Space

    `observe="query"` (default): `Box(384,)` float32, the embedding of the query (all-MiniLM-L6-v2,
    unit length). `observe="infra"` adds what the load is, `Box(395,)` for five models:

    | numbers | what | normalised |
    |---|---|---|
    | 384 | embedding of the query | unit length |
    | 1 | remaining budget b, s | log(max(b, 1)) / log 300 |
    | 5 | queue depth of each model, running + waiting | / 16 |
    | 5 | mean end-to-end latency of each model, s | log(1 + e2e) / log 300 |

    The last two are the `system_features`; "kv" and "in_flight" may be named too. With
    `observation="index"` the index of the query stands in place of its embedding, with "dict" the
    numbers come as a Dict with servers as rows (`inframind_gym.envs.routing.observation`).
    `env.unwrapped.policy_spec().layout` finds every number and turns it back into its unit.

    ## Rewards and costs

    Reward 1 if the query is solved, else 0. `info["cost"]` and `info["episode_cost"]`: its latency
    as a share of its budget. The constraint is an expected cost of at most 1. `info` also holds
    `solved`, `latency_s` and `budget_s`.

    ## Starting State

    The next query of the stream, with the servers as the queries before it left them.
    `reset(seed=…)` starts a new stream and puts the tagged query at a random place in it;
    `reset()` goes on in the running stream, and starts a new one when it is over.

    ## Episode End

    After every step. Never truncated.

    ## Arguments

    Those of `InfraMind-Executor-v0` without `level`, and two more:

    | argument | meaning |
    |---|---|
    | `executor` | router of the calls of the agent's workflows |
    | `observe` | "query", or "infra" with the remaining budget and the `system_features` |

    `background` routes the other queries, `planner` fixes *their* plans, and `background="none"`
    leaves the query alone on the servers. `reset(options=…)` takes `arrival_rate_per_min` and
    `budget_s`, which hold from then on and start a new stream.

    ## Version History

    * v0: first version.
    """

    simulation: PlannerSimulation

    def __init__(
        self,
        *,
        pool: str = DEFAULT_POOL,
        workload: str | dict[str, Any] = DEFAULT_WORKLOAD,
        tasks: str = "builtin",
        split: Literal["train", "val", "test", "all"] = "test",
        arrival_rate_per_min: float = 100.0,
        budget_s: float | Sequence[float] | None = None,
        num_queries: int | None = None,
        arrivals: str | dict[str, Any] = "poisson",
        scheduler: Literal["edf", "edf_late_last", "fcfs"] | None = None,
        execution: Literal["parallel", "sequential"] | None = None,
        planner: dict[str, Any] | None = None,
        agents: dict[str, Any] | None = None,
        background: Literal["static_mix", "round_robin", "least_loaded", "none"] = "static_mix",
        observation: Literal["full", "index", "dict"] = "full",
        system_features: Sequence[Literal["queue", "e2e", "kv", "in_flight"]] = ("queue", "e2e"),
        metrics_poll_s: float | None = None,
        call_timeout_s: float | None = None,
        call_attempts: int = 3,
        record_calls: bool = False,
        down_models: Sequence[str] = (),
        faults: Sequence[dict[str, Any]] = (),
        executor: str = "static_mix",
        observe: Literal["query", "infra"] = "query",
        render_mode: Literal["rgb_array"] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(**{"level": "planner"} | passed_on(locals()))

    def _simulate(self, arguments: dict[str, Any]) -> PlannerSimulation:
        return PlannerSimulation(planner_config(arguments), 1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Wait for the next query; with a seed the executor forgets what it has learned."""
        if seed is not None:
            self.simulation.reset_executor()
        return super().reset(seed=seed, options=options)
