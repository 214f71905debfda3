"""InfraMind-Planner-v0: one query, one plan, one step; an executor carries the plan out.

A built-in router carries plans out inside the compiled loop (level "planner" of the simulation).
Any other executor is a policy in Python: the simulation then stops at every call too (level
"joint"), and the policy routes the calls until the query is over. Both look the same from outside.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.core import Float32s, Ints, check_actions
from inframind_gym.envs.layout import COMPACT_SEEN, Compact, PolicySpec
from inframind_gym.envs.routing import ARGUMENTS, RoutingEnv, RoutingVectorEnv
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.policies import Policy, requires_of, resolve_policy
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, PLAN_ACTIONS, STEP
from inframind_gym.simulator.workflow.state import CONTEXT, IS_DUE, ROUTERS
from inframind_gym.tasks import EMBED_DIM

BUILT_IN: Final = ROUTERS[:-1]  # all but "none"
USUAL_FEATURES: Final = ("queue", "e2e")  # an executor that requires nothing sees these at least
_NO_CONTEXT: Final = np.zeros((), CONTEXT)
# Mixed with a stream's key into the executor's seed, which reveals nothing of the stream.
_SEED_OF_EXECUTOR: Final = 1


class PlannerConfig(EnvConfig):
    """Keyword arguments of `InfraMind-Planner-v0` (see `PlannerEnv`)."""

    level: Literal["planner"] = "planner"
    observation: Literal["full", "index", "dict"] = "full"
    executor: str = "static_mix"
    observe: Literal["query", "infra"] = "query"


class PlannerSimulation(RoutingSimulation):
    """E closed loops in which a step is one plan, carried out to the end of its query.

    Attributes:
        config: arguments of the environment; the loops below have others (`loops`).
        layout: layout of the planner's observation.

    Raises:
        ConfigError: as of `RoutingSimulation`; or there is no such executor, or it cannot carry out
            the plans of another.
    """

    config: PlannerConfig
    built_in: ClassVar[tuple[str, ...]] = BUILT_IN  # executors inside the compiled loop
    loops: ClassVar[type[EnvConfig]] = EnvConfig  # arguments of the loops that carry plans out

    def __init__(self, config: PlannerConfig, num_envs: int, num_threads: int = 1) -> None:
        self._policy: Policy | None = None
        requires: dict[str, Any] = {}
        infra = config.system_features if config.observe == "infra" else ()
        shown: tuple[str, ...] = ()  # telemetry that the executor's observations are made from
        if config.executor not in self.built_in:
            self._policy, requires = self._resolve_executor(config)
            usual = tuple(dict.fromkeys((*USUAL_FEATURES, *config.system_features)))
            shown = tuple(requires.get("system_features", usual))
        form = requires.get("observation", "index")
        if form == "compact":
            shown = COMPACT_SEEN
        changes = {
            "level": "planner" if self._policy is None else "joint",
            "observation": "index" if form == "compact" else form,
            "system_features": shown + tuple(f for f in infra if f not in shown),
            "scheduler": requires.get("scheduler", config.scheduler),
        }
        inner = config.model_dump(include=set(self.loops.model_fields)) | changes
        super().__init__(
            self.loops.model_validate(inner),
            num_envs,
            one_query=True,
            controlled_router=config.executor if self._policy is None else None,
            num_threads=num_threads,
        )
        # The loops write wide observations, of which executor and planner are shown some columns.
        wide, self.config = self.layout, config
        self._wide = np.zeros((num_envs, self.observation_size), np.float32)
        self._executor_level = requires.get("level", "executor")
        self._executor_layout = replace(wide, system_features=shown)
        self._executor_columns = np.arange(self._executor_layout.size)
        if form == "compact":
            self._executor_layout = replace(wide, embedding="compact")
            self._compact = Compact(self.executor_spec(), num_envs)
        if self._executor_level == "joint":  # with the flag of plans, which stands at the end
            self._executor_columns = np.append(self._executor_columns, self._wide.shape[1] - 1)
        self._feedback = None if self._policy is None else getattr(self._policy, "observe", None)
        self._joint_actions = np.zeros((num_envs, PLAN_ACTIONS + 1), np.int64)  # plan and route
        self._executor_is_stale = True
        self.layout = replace(
            wide,
            embedding=config.embedding,
            system_features=infra,
            scope="plan" if config.observe == "infra" else "query",
        )
        self.observation_size = self.layout.size
        columns = [wide.budget] if config.observe == "infra" else []
        for feature in infra:
            columns += range(wide.system(feature).start, wide.system(feature).stop)
        self._infra_columns = np.array(columns, np.int64)
        # Zeros at the end, for index -1: the query is over.
        nothing = np.zeros((1, EMBED_DIM), np.float32)
        self._task_embedding = np.concatenate([self.params.task_embedding, nothing])
        self._set_spaces()

    @property
    def title(self) -> str:
        """Name of these environments, for people."""
        return "InfraMind Planner"

    def executor_spec(self) -> PolicySpec:
        """Return the facts of the run as the executor sees them."""
        return replace(
            super().policy_spec(), layout=self._executor_layout, level=self._executor_level
        )

    def seeded(self) -> None:
        """Reset the executor when the next streams begin."""
        self._executor_is_stale = True

    def drive(
        self, mode: int, rows: Ints, starts: NDArray[Any], actions: Ints, observations: Float32s
    ) -> None:
        """Run to the next decision; see `RoutingSimulation.drive`."""
        if mode == BEGIN and self._policy is not None and self._executor_is_stale:
            self._executor_is_stale = False
            seeds = []
            for key in starts["key"].tolist():
                sequence = np.random.SeedSequence((key, _SEED_OF_EXECUTOR))
                seeds.append(int(sequence.generate_state(1, np.uint64)[0]))
            self._policy.reset(self.executor_spec(), seeds)
        if self._policy is None or mode != STEP:
            super().drive(mode, rows, starts, actions, self._wide)
        else:
            self._carry_out(self._policy, rows, actions)
        due = self.state.stream["live"][rows] == IS_DUE
        task = np.where(due, self.decisions["task"][rows], -1)
        query = self.layout.query
        if self.layout.embedding == "full":
            observations[rows, query] = self._task_embedding[task]
        else:
            observations[rows, 0] = task
        if len(self._infra_columns):
            observations[rows, query.stop :] = self._wide[np.ix_(rows, self._infra_columns)]

    def _carry_out(self, policy: Policy, rows: Ints, actions: Ints) -> None:
        """Carry out the plans of `rows`: let the policy route calls until the queries are over."""
        self._joint_actions[:, :PLAN_ACTIONS] = actions
        rewards, costs = np.zeros((2, self.num_envs))
        running = rows
        while len(running):
            super().drive(STEP, running, self._no_starts, self._joint_actions, self._wide)
            rewards[running] += self.rewards[running]
            costs[running] += self.costs[running]
            running = running[self.status[running] == DECISION]
            if len(running):
                seen = self._wide[np.ix_(running, self._executor_columns)]
                due = self.decisions[running]
                if self._compact is not None:
                    seen = self._compact.of(seen, due["time_s"], due["query"], running)
                routes = np.asarray(policy.act_batch(seen, due, running))
                if self._executor_level == "joint":
                    routes = routes[:, PLAN_ACTIONS]
                checked = check_actions(routes, np.array([self.num_routes]), len(running))
                self._joint_actions[running, PLAN_ACTIONS] = checked[:, 0]
                self.decisions[running] = _NO_CONTEXT  # an episode that is over leaves no decision
        self.rewards[rows], self.costs[rows] = rewards[rows], costs[rows]
        if self._feedback is not None:
            for row in rows.tolist():
                self._feedback(self.completed(row), row)

    def _resolve_executor(self, config: PlannerConfig) -> tuple[Policy, dict[str, Any]]:
        """Return the executor and the arguments that it requires, which agree with the config."""
        name = f"executor {config.executor!r}"
        try:
            policy = resolve_policy(config.executor)
        except ConfigError as error:
            built_in = f" Built in: {', '.join(self.built_in)}." if self.built_in else ""
            raise ConfigError(f"executor: {error}{built_in}") from error
        requires = requires_of(policy)
        if "planner" in requires or not getattr(policy, "carries_out_any_plan", True):
            raise ConfigError(
                f"{name} insists on plans of its own, {requires.get('planner', 'query by query')}, "
                "and cannot carry out those of another; choose one that routes the calls of any "
                "plan"
            )
        if requires.get("level") == "planner":
            raise ConfigError(f"{name} plans and does not route; choose one that routes calls")
        scheduler = requires.get("scheduler", config.scheduler)
        if config.scheduler not in (None, scheduler):
            raise ConfigError(
                f"{name} insists on scheduler={scheduler!r}, the environment was made with "
                f"scheduler={config.scheduler!r}; leave it out or give the same"
            )
        return policy, requires


class PlannerEnv(RoutingEnv):
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

    A policy sees an executor's observation, whatever the planner sees: indices, "queue", "e2e" and
    the `system_features`, or what it `requires`. If it learns, it learns from the agent's queries;
    `reset(seed=…)` resets it, other resets keep what it has learned.

    ## Action Space

    `MultiDiscrete([6, 6, 12, 12, 12, 12, 12, 12])`:

    | part | what |
    |---|---|
    | 0 | topology: IO, CoT, Chain, Debate, Reflection, FullConnected |
    | 1 | number of agents, less one |
    | 2-7 | role of each agent, taken modulo the number of roles of the query's domain |

    Roles beyond the number of agents are not read. Every plan can be carried out:
    `info["action_mask"]`, a tuple of one int8 array for each part, is all ones.

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
    `observation="index"` the index of the query replaces its embedding, with "dict" the numbers
    come as a Dict of `query`, `budget` and `servers`, with a row for each model.
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

    arguments = PlannerConfig
    simulate = PlannerSimulation


PlannerEnv.__doc__ = (PlannerEnv.__doc__ or "").replace(
    "    | argument | meaning |\n    |---|---|",
    "\n".join(line for line in ARGUMENTS.splitlines() if "| `level` |" not in line),
)


class PlannerVectorEnv(RoutingVectorEnv):
    """`InfraMind-Planner-v0` in a batch; arguments as of `PlannerEnv`.

    The calls of all rows are routed together.
    """

    single = PlannerEnv
