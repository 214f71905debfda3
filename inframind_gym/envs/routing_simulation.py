"""`RoutingSimulation`: the batch of simulated closed loops behind every routing environment."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs.core import (
    Bools,
    Float32s,
    Floats,
    Ints,
    ObservationForm,
    Rngs,
    Simulation,
    check_actions,
    check_options,
)
from inframind_gym.envs.credit import columns_of, cost_vectors, earned_by
from inframind_gym.envs.layout import SYSTEM_FEATURES, Compact, ObservationLayout, PolicySpec
from inframind_gym.envs.routing_config import RANGES, EnvConfig, draw_tasks, tasks_of
from inframind_gym.envs.routing_kernel import drive
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.jit import ThreadPool
from inframind_gym.simulator.server.faults import Faults
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.server.state import Cluster, allocate, cards
from inframind_gym.simulator.server.telemetry import kv_use
from inframind_gym.simulator.workflow.dispatch import (
    BEGIN,
    DECISION,
    PLAN_ACTIONS,
    RESUME,
    STEP,
    STREAM_OVER,
)
from inframind_gym.simulator.workflow.roles import ROLES, roles_of
from inframind_gym.simulator.workflow.state import (
    COMPLETED,
    CONTEXT,
    EXECUTIONS,
    LEVELS,
    PLAN,
    ROUTERS,
    SCHEDULERS,
    START,
    EnvParams,
    EnvState,
    allocate_state,
    build_params,
)
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import drift_of, load_profiles, load_workload

MOST_PLACES: Final = 10_000_000  # queries of all environments of a batch, 1.5 kB each
MOST_POLLS: Final = 2e7  # of the servers in a stream: half a second of computing
MOST_ROLES: Final = max(len(roles_of(role.domain)) for role in ROLES)  # of one domain
DUE: Final = ("time_s", "query", "node")  # of the decision that waits, in `info`
RESET_OPTIONS: Final = ("arrival_rate_per_min", "budget_s")
_INTEGERS: Final = (int, np.integer)
_DECISION: Final = np.array(DECISION, np.int64)  # NumPy compares with it twice as fast


class Load(NamedTuple):
    """Load of a server."""

    running: int  # requests
    waiting: int
    kv_frac: float  # share of the KV cache in use, 0..1


class RoutingSimulation(Simulation):
    """E closed loops with the same pool, workload and settings.

    Args:
        config: arguments of the environment.
        num_envs: E.
        one_query: the agent has one query at a time and a built-in router sends the rest
            (Executor, Planner); otherwise every query is the agent's (Stream).
        controlled_router: the one of ROUTERS that routes the calls of the agent's queries at level
            "planner"; None: the `background` router.
        num_threads: threads that share the environments; results do not depend on it.

    Attributes:
        faults: faults of the servers.
        tasks: tasks that the streams' queries are drawn from.
        layout: where each quantity lies in an observation.
        status: (E,) how the last step ended: DECISION, STREAM_OVER or TAGGED_QUERY_OVER.
        decisions: (E,) CONTEXT, the decisions that wait.
        rates_per_min, budgets_s: (E,) for streams that begin next; NaN draws from the tiers.
        max_queue: upper bound of the queue feature.
        observation_size: width d of an observation; at the joint level one more than the layout's,
            for the flag that marks plans.

    Raises:
        ConfigError: the pool, the workload or the tasks cannot be used together.
    """

    config: EnvConfig

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        *,
        one_query: bool,
        controlled_router: str | None = None,
        num_threads: int = 1,
    ) -> None:
        self.config, self.num_envs, self.one_query = config, num_envs, one_query
        self.split = config.split
        self._has_credit, self._is_compact = config.credit, config.observation == "compact"
        self._num_threads = num_threads
        if config.level == "planner" and config.background == "none" and not controlled_router:
            raise ConfigError('level "planner" needs a `background` router that routes the calls')
        self.pool = load_pool(config.pool)
        if config.metrics_poll_s is not None:
            self.pool = self.pool.model_copy(update={"metrics_poll_s": config.metrics_poll_s})
        self.workload = load_workload(config.workload)
        if isinstance(config.budget_s, tuple):
            self.workload = self.workload.model_copy(update={"budget_tiers_s": config.budget_s})
        weighted = load_profiles(self.workload)
        rules = {} if config.agents is None else {"agents": config.agents}
        self.profiles = [part.profile.model_copy(update=rules) for part in weighted.values()]
        self._weights = np.array([part.weight for part in weighted.values()])
        self._drift = drift_of(self.workload)
        self.tasks, task_profile = tasks_of(config, list(weighted))
        self._members = [np.flatnonzero(task_profile == p) for p in range(len(weighted))]
        self.arrivals = make_arrivals(config.arrivals)
        self.num_queries = config.num_queries or self.workload.num_queries
        if num_envs * self.num_queries > MOST_PLACES:
            raise ConfigError(
                f"{num_envs} environments of num_queries={self.num_queries} are too many at once: "
                f"the product may be {MOST_PLACES:,} at most"
            )
        self.scheduler = config.scheduler or self.pool.scheduler
        self.execution = config.execution or self.workload.execution
        self.models_up = (1 << len(self.pool.models)) - 1
        for alias in config.down_models:
            self.models_up &= ~(1 << self.pool.index(alias))
        if not self.models_up:
            raise ConfigError("down_models names every model of the pool; one must be up")
        self.faults = Faults(config.faults, self.pool, self.models_up)
        self.layout = ObservationLayout(
            len(self.pool.models), config.embedding, config.system_features, self.pool.queue_norm
        )
        self.max_queue = self.num_queries * MAX_AGENTS / self.pool.queue_norm
        self.observation_size = self.layout.size + (config.level == "joint")
        self._has_background = not one_query or config.background != "none"
        self._allocate(task_profile, controlled_router or config.background)
        self.status = np.zeros(num_envs, np.int64)
        self.decisions = np.zeros(num_envs, CONTEXT)
        self.rates_per_min = np.full(num_envs, config.arrival_rate_per_min)
        budget_s = config.budget_s if isinstance(config.budget_s, float) else math.nan
        self.budgets_s = np.full(num_envs, budget_s)
        self._no_starts = np.zeros(0, START)
        # Step in which each node's decision was made, the plan's last; empty without credit.
        shape = num_envs, self.num_queries * config.credit, MAX_NODES + 1
        self._decision_step = np.zeros(shape, np.int32)
        self._steps = np.zeros(num_envs, np.int64)  # so far
        self._compact: Compact | None = None
        self._completed: tuple[Ints, NDArray[Any]] | None = None
        self._set_spaces()

    def _allocate(self, task_profile: NDArray[np.int32], controlled_router: str) -> None:
        """Allocate the constants and the state that compiled code works on."""
        config, plan = self.config, self.config.planner
        graph = None if plan is None else plan.graph()
        topology = -1 if plan is None else len(TOPOLOGIES)
        if plan is not None and plan.topology is not None:
            topology = TOPOLOGIES.index(plan.topology)
        most_ready = MAX_NODES * (self._open_servers() + 1)  # decisions at one instant
        self.params: EnvParams = build_params(
            self.pool,
            self.profiles,
            self.tasks,
            task_profile,
            self.workload.budget_tiers_s,
            [SYSTEM_FEATURES.index(feature) for feature in self.layout.written.system_features],
            {
                "poll_s": self.pool.metrics_poll_s,
                "queue_norm": self.pool.queue_norm,
                "queue_high": self.max_queue,
                "max_output_tokens": self.pool.max_output_tokens,
                "execution": EXECUTIONS.index(self.execution),
                "scheduler": SCHEDULERS.index(self.scheduler),
                "router": ROUTERS.index(config.background),
                "controlled_router": ROUTERS.index(controlled_router),
                "level": LEVELS.index(config.level),
                "in_time": int(config.reward == "goodput"),
                "one_query": int(self.one_query),
                "fixed_topology": topology,
                "fixed_agents": -1 if plan is None else plan.num_agents,
                "embeddings": int(config.embedding == "full"),
                "call_timeout_s": config.call_timeout_s or np.inf,
                "call_attempts": config.call_attempts,
            },
            [] if graph is None else [graph],
        )
        self.state: EnvState = allocate_state(
            self.params,
            self.num_envs,
            self.num_queries,
            1 << (most_ready - 1).bit_length(),
            config.record_calls,
        )

    def _open_servers(self) -> int:
        """Allocate the servers; return how many calls can end before the next decision."""
        card = cards(self.pool)
        slots = int(card["max_num_seqs"].sum())
        # A call that follows another is sent before that one's place is free, and a running call
        # that is aborted keeps its place until the engine's step ends.
        in_flight = self.num_queries * MAX_AGENTS + 1
        if self.config.call_timeout_s is not None:
            in_flight += slots
        self.cluster: Cluster = allocate(
            card, self.num_envs, in_flight, self.faults.size, self.faults.late_polls
        )
        done = self.cluster.done  # scratch: each thread needs its own
        others = (self.cluster._replace(done=done.copy()) for _ in range(self._num_threads - 1))
        self._threads = ThreadPool(drive, [self.cluster, *others], place=1)
        # A fault can end all calls in flight at once; they wait while no model is up.
        return max(slots, self.num_queries) if self.faults.size else slots

    def _set_spaces(self) -> None:
        """Initialise `Simulation` with the spaces by `config`, `layout` and `observation_size`.

        Actions by level are, "executor": Discrete(M·S), model a // S and strategy a % S;
        "planner": MultiDiscrete of topology, agents - 1 and a role for each of six agents;
        "joint": the same and a route; a step reads the part that its kind of decision needs.
        """
        layout = self.layout
        box, places = layout.box(len(self.tasks), self.max_queue), None
        if self.observation_size > layout.size:  # the flag of plans
            box = spaces.Box(np.append(box.low, np.float32(0)), np.append(box.high, np.float32(1)))
        if self.config.observation == "dict":
            places = layout.places(self.observation_size)
        routes: list[int] = [] if self.config.level == "planner" else [self.num_routes]
        plan = [len(TOPOLOGIES), MAX_AGENTS] + [MOST_ROLES] * MAX_AGENTS
        super().__init__(
            self.num_envs,
            ObservationForm(box, places),
            spaces.Discrete(self.num_routes)
            if self.config.level == "executor"
            else spaces.MultiDiscrete(plan + routes),
        )
        # One array for all steps: compiled code is called faster with the arguments of last time.
        self._actions = np.zeros((self.num_envs, len(self.highs)), np.int64)
        # Masks by bit mask of the models that are up: shared, so not to be written to.
        self._masks: dict[int, tuple[Bools, Any]] = {}
        self._is_single_route = self.num_envs == 1 and self.config.level == "executor"
        self._view_decisions()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._view_decisions()  # the copy's own

    def _view_decisions(self) -> None:
        """Keep views of the fields that every step reads: finding a record's field is slow."""
        self._decision_bytes = self.decisions.view(np.uint8)
        self._time_s, self._query = self.decisions["time_s"], self.decisions["query"]
        self._node, self._up = self.decisions["node"], self.decisions["models_up"]

    @property
    def title(self) -> str:
        """Name of these environments, for people."""
        return "InfraMind Executor" if self.one_query else "InfraMind Stream"

    @property
    def num_routes(self) -> int:
        """Number of routes: models times strategies."""
        return len(self.pool.models) * len(STRATEGIES)

    # Episodes

    def set_options(self, options: dict[str, Any] | None) -> None:
        """Take `arrival_rate_per_min` and `budget_s`: numbers, or one an environment, (E,).

        A budget of NaN is drawn from the workload's tiers.
        """
        chosen = {"arrival_rate_per_min": self.rates_per_min, "budget_s": self.budgets_s}
        for key, value in check_options(options, RESET_OPTIONS).items():
            low, high = RANGES[key]
            try:
                rows = np.broadcast_to(np.asarray(value), (self.num_envs,)).astype(np.float64)
                is_numeric = np.asarray(value).dtype.kind in "iuf"
            except (TypeError, ValueError, OverflowError):
                rows, is_numeric = np.full(self.num_envs, -np.inf), False
            is_drawn = np.isnan(rows) & (key == "budget_s")
            if not (is_numeric and (is_drawn | ((low <= rows) & (rows <= high))).all()):
                several = f", or {self.num_envs} of them" if self.num_envs > 1 else ""
                raise ConfigError(
                    f"{key} must be a number from {low:g} to {high:g}{several}, got {value!r:.60}"
                )
            chosen[key] = rows
        self.rates_per_min, self.budgets_s = chosen["arrival_rate_per_min"], chosen["budget_s"]

    def reset(self, rows: Ints, rngs: Rngs, observations: Float32s, *, first: bool = True) -> None:
        """Begin new episodes and run to their first decision.

        A tagged query follows another in the running stream. A new stream begins after its last
        query, after a seed or options, and where a query was abandoned.
        """
        if first:
            self._completed = None
        else:
            self.completed_batch()  # gather it: the next episodes overwrite the records
        begin, inside = rows, self.one_query  # rows that need a new stream
        self.decisions[rows] = np.zeros((), CONTEXT)
        if self.one_query and not first and (self.status[rows] != DECISION).all():
            self.drive(RESUME, rows, self._no_starts, self._actions, observations)
            over = self.status[rows] == STREAM_OVER
            rngs = [rng for rng, ended in zip(rngs, over.tolist(), strict=True) if ended]
            begin, inside = rows[over], False
        if len(begin):
            self._begin_streams(begin, rngs, observations, inside=inside)
        if self._is_compact:
            self._show_compact(rows, observations)

    def _show_compact(self, rows: Ints, observations: Float32s) -> None:
        """Replace the observations that the loops have written by compact ones."""
        if self._compact is None:
            self._compact = Compact(self.policy_spec(), self.num_envs)
        seen = observations[rows, : self.layout.written.size]
        compact = self._compact.of(seen, self._time_s[rows], self._query[rows], rows)
        observations[rows, : self.layout.size] = compact

    def _begin_streams(
        self, rows: Ints, rngs: Rngs, observations: Float32s, *, inside: bool
    ) -> None:
        """Begin new streams; `inside` puts the first tagged query at a random place in each."""
        starts = np.zeros(len(rows), START)
        queries = self.num_queries if self._has_background else 1
        for i, (e, rng) in enumerate(zip(rows.tolist(), rngs, strict=True)):
            starts[i]["key"] = rng.integers(2**64, dtype=np.uint64)
            starts[i]["tagged_from"] = rng.integers(queries) if inside else 0
            arrival_s = self.arrivals.sample(float(self.rates_per_min[e]), queries, rng)
            polls = arrival_s[-1] / self.pool.metrics_poll_s
            if not polls <= MOST_POLLS:
                raise ConfigError(
                    f"the last of {self.num_queries} queries would arrive after "
                    f"{arrival_s[-1]:g} s, and the servers be polled {polls:.1g} times, at most "
                    f"{MOST_POLLS:.0g}; raise arrival_rate_per_min or metrics_poll_s, or lower "
                    "num_queries"
                )
            self.state.arrival_s[e, :queries] = arrival_s
            self.state.task[e, :queries] = draw_tasks(
                self._members, self._weights, self._drift, queries, rng
            )
            self._set_faults(e, int(starts[i]["key"]), float(arrival_s[-1]))
        starts["budget_s"] = self.budgets_s[rows]
        starts["num_queries"] = queries
        starts["models_up"] = self.models_up
        if self._compact is not None:
            self._compact.forget(rows)
        self.drive(BEGIN, rows, starts, self._actions, observations)

    def _set_faults(self, e: int, key: int, last_s: float) -> None:
        """Write the faults of a stream whose last query arrives at `last_s`."""
        if self.faults.size:
            self.cluster.fault[e] = self.faults.changes(key, last_s)

    def checked(self, actions: Any) -> Ints:
        """Return the actions of all environments, (E, a), in an array that the next call reuses."""
        if self._is_single_route and isinstance(actions, _INTEGERS):
            route = int(actions)
            if 0 <= route < self.num_routes:
                self._actions[0, 0] = route
                return self._actions
        return check_actions(actions, self.highs, self.num_envs, self._actions)

    def step(self, rows: Ints, actions: Ints, observations: Float32s) -> None:
        """Carry out one action in each of `rows` and run to the next decision; see `Simulation`."""
        if self._has_credit:
            due = self.decisions[rows]
            place = np.where(due["kind"] == PLAN, MAX_NODES, due["node"])
            self._decision_step[rows, due["query"], place] = self._steps[rows]
            self._steps[rows] += 1
        if len(rows) == self.num_envs:
            self._decision_bytes.fill(0)  # faster than record by record
        else:
            self.decisions[rows] = np.zeros((), CONTEXT)
            self.rewards[:] = self.costs[:] = 0.0
        self._completed = None  # gathered on demand, or before the next episodes begin
        self.drive(STEP, rows, self._no_starts, actions, observations)
        np.not_equal(self.status, _DECISION, self.terminated)
        if self.config.truncate_overrun_s is not None:
            ended, records = self.completed_batch()
            overrun = records["latency_s"] - records["budget_s"] > self.config.truncate_overrun_s
            self.truncated[:] = False
            self.truncated[ended[overrun]] = True
            self.truncated &= ~self.terminated
        if self._is_compact:
            self._show_compact(rows, observations)

    def drive(
        self, mode: int, rows: Ints, starts: NDArray[Any], actions: Ints, observations: Float32s
    ) -> None:
        """Run the environments `rows` to their next decision (`routing_kernel.drive`)."""
        self._threads.run(
            len(rows),
            self.state,
            self.cluster,
            mode,
            rows,
            starts,
            actions,
            observations,
            self.decisions,
            self.rewards,
            self.costs,
            self.status,
        )

    # Results, and information for policies

    @property
    def mask(self) -> Bools:
        """Actions that are open, (E, n): routes to models that are up, and any plan."""
        return np.stack([self._mask(up)[0] for up in self._up.tolist()])

    def mask_of(self, row: int) -> Bools:
        """Return the actions that are open to an environment, (n,); not to be written to."""
        return self._mask(self._up.item(row))[0]

    def sample_mask_of(self, row: int) -> Any:
        """Return a new mask of an environment, as `action_space.sample` takes it."""
        sample = self._mask(self._up.item(row))[1]
        return tuple(map(np.copy, sample)) if type(sample) is tuple else sample.copy()

    def sample_masks(self) -> tuple[Any, ...]:
        """Return the masks of all environments; equal ones are one array, not to be written to."""
        if not self.faults.size:
            return (self._mask(self.models_up)[1],) * self.num_envs
        return tuple([self._mask(up)[1] for up in self._up.tolist()])

    def _mask(self, up: int) -> tuple[Bools, Any]:
        """Return the mask (n,) while the models of bit mask `up` are up, and its `sample_mask`."""
        if up not in self._masks:
            plan = [] if self.config.level == "executor" else self.highs[:PLAN_ACTIONS].tolist()
            parts = [np.ones(choices, np.bool_) for choices in plan]
            if self.config.level != "planner":
                is_up = np.array([up >> m & 1 for m in range(self.layout.num_models)], np.bool_)
                parts.append(np.repeat(is_up, len(STRATEGIES)))
            mask = np.concatenate(parts)
            sample = self.sample_mask(mask)
            for part in sample if isinstance(sample, tuple) else (sample,):
                part.flags.writeable = False
            self._masks[up] = mask, sample
        return self._masks[up]

    def reset_info(self) -> dict[str, Any]:
        """Return the decision that waits, the split, and models whose cards are estimates."""
        info = {name: value for name, value in self.info().items() if name in DUE}
        info["split"] = self.split
        if self.pool.estimates:
            info["estimates"] = self.pool.estimates
        return info

    def info(self) -> dict[str, Any]:
        """Return the decision that waits; with `credit` what ended, and what it cost."""
        due = {
            "time_s": self._time_s.item(),
            "query": self._query.item(),
            "node": self._node.item(),
        }
        if self._has_credit:
            return due | {"earned": columns_of(self.earned()), "costs": self.cost_vectors()[0]}
        return due

    def infos(self) -> dict[str, Any]:
        """Return, with `credit`, what ended in every environment, and what it cost."""
        if not self._has_credit:
            return {}
        earned, by_row = self.earned(), np.empty(self.num_envs, object)  # ascending by row
        ends = np.searchsorted(earned["row"], np.arange(self.num_envs + 1)).tolist()
        for row, (first, last) in enumerate(pairwise(ends)):
            by_row[row] = columns_of(earned[first:last])
        return {"earned": by_row, "costs": self.cost_vectors()}

    def earned(self) -> NDArray[Any]:
        """Return the agent's decisions of the queries that ended in the last step, (k,) EARNED.

        Raises:
            ConfigError: credit is not kept.
        """
        if not self._has_credit:
            raise ConfigError("decisions get no credit; make the environment with credit=True")
        rows, records = self.completed_batch()
        ages = self._steps[rows, None] - 1 - self._decision_step[rows, records["query"]]
        in_time = self.config.reward == "goodput"
        return earned_by(rows, records, ages, self.config.level, in_time=in_time)

    def cost_vectors(self) -> Floats:
        """Return the costs of the last step, (E, 2 + M), as `credit.cost_vectors`."""
        return cost_vectors(self.costs, *self.completed_batch(), len(self.pool.models))

    def summaries(self, rows: Ints, rewards: Floats, costs: Floats) -> dict[str, NDArray[Any]]:
        """Return the results of tagged queries, or those of streams."""
        if not self.one_query:
            queries = self.state.stream["finished"][rows].astype(np.int64)
            ends = zip(rows.tolist(), queries.tolist(), strict=True)
            solved = [self.state.completed[e, :last]["solved"].sum() for e, last in ends]
            rate = np.array(solved) / self.num_queries  # an answer that never came solves nothing
            mean_cost = costs / np.maximum(queries, 1)
            return {"queries": queries, "solve_rate": rate, "mean_cost": mean_cost}
        ended, records = self.completed_batch()
        record = records[np.searchsorted(ended, rows)]
        return {
            "solved": record["solved"].astype(np.int64),
            "latency_s": record["latency_s"],
            "budget_s": record["budget_s"],
        }

    def contexts(self, rows: Ints, *, truth: bool = False) -> NDArray[Any]:
        """Return the decisions that wait, (k,) CONTEXT (`simulator.workflow.state`)."""
        return self.decisions.take(rows)  # an index would copy field by field

    def models_up_now(self) -> int:
        """Return the bit mask of the models that can be routed to; may be called on any thread."""
        stream = self.state.stream[0]
        return int(stream["models_up"]) if stream["num_queries"] else self.models_up

    def completed(self, e: int) -> NDArray[Any]:
        """Return the agent's queries of environment `e` that ended in its last step, COMPLETED."""
        stream = self.state.stream[e]
        rows = self.state.completed[e, stream["reported"] : stream["finished"]]
        return rows[rows["is_controlled"] == 1] if self.one_query else rows.copy()

    def completed_batch(self) -> tuple[Ints, NDArray[Any]]:
        """Return `completed` of all environments: (k,) their rows, ascending, and COMPLETED."""
        if self._completed is None:
            first, last = self.state.stream["reported"], self.state.stream["finished"]
            counts = last - first
            rows = np.repeat(np.arange(self.num_envs), counts)
            starts = np.cumsum(counts) - counts  # of each environment's records among all
            position = first[rows] + np.arange(len(rows)) - starts[rows]
            records = self.state.completed[rows, position] if len(rows) else np.zeros(0, COMPLETED)
            chosen = records["is_controlled"] == 1 if self.one_query else np.s_[:]
            self._completed = rows[chosen], records[chosen]
        return self._completed

    def calls(self, e: int) -> NDArray[Any]:
        """Return all calls of environment `e`'s stream that are done, (k,) CALL.

        Raises:
            ConfigError: calls are not recorded.
        """
        if not self.config.record_calls:
            raise ConfigError("calls are not recorded; make the environment with record_calls=True")
        return self.state.call[e, : self.state.stream[e]["recorded_calls"]].copy()

    def loads(self, e: int) -> tuple[Load, ...]:
        """Return the present load of each server of environment `e`."""
        now_s = float(self.state.stream[e]["now_s"])
        return tuple(
            Load(int(server["running"]), int(server["waiting"]), kv_use(self.cluster, e, m, now_s))
            for m, server in enumerate(self.cluster.server[e])
        )

    def seen(self, e: int) -> Float32s:
        """Return the metrics that environment `e` polled last, (3, M) (`server.telemetry`)."""
        seen: Float32s = self.cluster.seen[e]
        return seen

    def policy_spec(self) -> PolicySpec:
        """Return the public facts of this run, for `Policy.reset`."""
        params, weights, config, models = self.params, self._weights, self.config, self.pool.models
        tiers_s, fixed_s = self.workload.budget_tiers_s, config.budget_s
        expected_call_s = np.zeros(len(models))
        expected_tokens = np.zeros((len(models), 2))  # of prompt and answer
        for weight, profile, members in zip(weights, self.profiles, self._members, strict=True):
            prompt = (
                float(self.tasks.prompt_tokens[members].mean()) + profile.prompt.overhead_tokens
            )
            factor = profile.output.mean_factor() * sum(
                share * profile.output.strategy_factor[s]
                for s, share in profile.strategy_mix.items()
            )
            for m, model in enumerate(models):
                tokens = profile.models[model.alias].output_tokens_median * factor
                tokens = min(tokens, float(self.pool.max_output_tokens))
                expected_call_s[m] += weight * model.server.call_s(prompt, tokens)
                expected_tokens[m] += weight * prompt, weight * tokens
        model_share, strategy_share = (
            weights @ np.diff(cdf, prepend=0.0, axis=1)
            for cdf in (params.model_cdf, params.strategy_cdf)
        )
        return PolicySpec(
            models=self.pool.aliases,
            strategies=STRATEGIES,
            layout=self.layout,
            level=config.level,
            workload=self.workload.name,
            budget_tiers_s=np.array([fixed_s] if isinstance(fixed_s, float) else tiers_s),
            model_share=model_share / model_share.sum(),
            strategy_share=strategy_share / strategy_share.sum(),
            expected_call_s=expected_call_s,
            ability=weights @ params.response.ability,
            max_num_seqs=np.array(
                [m.server.calls_at_once(*t) for m, t in zip(models, expected_tokens, strict=True)]
            ),
            gpu=np.array(self.pool.gpu_index),
            queue_norm=self.pool.queue_norm,
            scheduler=self.scheduler,
            metrics_poll_s=self.pool.metrics_poll_s,
            task_embeddings=params.task_embedding,
            role_embeddings=params.role_embedding,
        )
