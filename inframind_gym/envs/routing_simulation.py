"""A batch of closed loops on the surrogate: what every routing environment runs on."""

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
_DECISION: Final = np.array(DECISION, np.int64)  # NumPy compares two arrays twice as fast


class Load(NamedTuple):
    """Load of a server."""

    running: int  # requests
    waiting: int
    kv_frac: float  # share of the KV cache in use, 0..1


class RoutingSimulation(Simulation):
    """E closed loops with the same pool, workload and settings.

    Args:
        config: what to simulate.
        num_envs: E.
        one_query: the agent has one query at a time and a built-in router sends the rest
            (Executor, Planner); otherwise every query is the agent's (Stream).
        controlled_router: one of ROUTERS, of the calls of the agent's queries at level "planner";
            None: the `background` router does.
        num_threads: threads that share the environments; results do not depend on it.

    Attributes:
        faults: of the servers.
        tasks: the queries that streams draw from.
        layout: where each quantity lies in an observation.
        rates_per_min, budgets_s: (E,) of the streams that begin next; a budget of NaN is drawn from
            the tiers.
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
        self._credit, self._is_compact = config.credit, config.observation == "compact"
        self._num_threads = num_threads
        if config.level == "planner" and config.background == "none" and not controlled_router:
            raise ConfigError('level "planner" needs a `background` router that routes the calls')
        self.pool = load_pool(config.pool)
        if config.metrics_poll_s is not None:
            self.pool = self.pool.model_copy(update={"metrics_poll_s": config.metrics_poll_s})
        self.workload = load_workload(config.workload)
        if isinstance(config.budget_s, tuple):
            tiers = {"budget_tiers_s": config.budget_s}
            self.workload = self.workload.model_copy(update=tiers)
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
        self._alone = one_query and config.background == "none"
        self._allocate(task_profile, controlled_router or config.background)
        self.status = np.zeros(num_envs, np.int64)
        self.decisions = np.zeros(num_envs, CONTEXT)
        self.rates_per_min = np.full(num_envs, config.arrival_rate_per_min)
        drawn = not isinstance(config.budget_s, float)
        self.budgets_s = np.full(num_envs, math.nan if drawn else config.budget_s)
        self._no_starts = np.zeros(0, START)
        # Of every decision the step in which it was made, plans last; only where credit is wanted.
        self._decided = np.zeros(
            (num_envs, self.num_queries * config.credit, MAX_NODES + 1), np.int32
        )
        self._steps = np.zeros(num_envs, np.int64)
        self._compact: Compact | None = None
        self._completed: tuple[Ints, NDArray[Any]] | None = None
        self._set_spaces()

    def _allocate(self, task_profile: NDArray[np.int32], controlled_router: str) -> None:
        """Make the constants and the state that compiled code reads."""
        config, plan = self.config, self.config.planner
        graph = None if plan is None else plan.graph()
        topology = -1 if plan is None else len(TOPOLOGIES)
        if plan is not None and plan.topology is not None:
            topology = TOPOLOGIES.index(plan.topology)
        ready = MAX_NODES * (self._open_servers() + 1)
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
            1 << (ready - 1).bit_length(),
            config.record_calls,
        )

    def _open_servers(self) -> int:
        """Make the servers; says how many calls can end before the next decision is made."""
        card = cards(self.pool)
        slots = int(card["max_num_seqs"].sum())
        # A call that follows another is sent before that one's place is free, and what is aborted
        # while it runs keeps its place until the step ends.
        in_flight = self.num_queries * MAX_AGENTS + 1
        if self.config.call_timeout_s is not None:
            in_flight += slots
        self.cluster: Cluster = allocate(
            card, self.num_envs, in_flight, self.faults.size, self.faults.late_polls
        )
        done = self.cluster.done  # scratch: each thread needs its own
        others = (self.cluster._replace(done=done.copy()) for _ in range(self._num_threads - 1))
        self._threads = ThreadPool(drive, [self.cluster, *others], place=1)
        # All that is in flight can be lost at once, and waits while no model is up.
        return max(slots, self.num_queries) if self.faults.size else slots

    def _set_spaces(self) -> None:
        """Set what an environment shows and takes, by `config`, `layout` and `observation_size`.

        Actions are, by level, "executor": Discrete(M·S), model a // S and strategy a % S.
        "planner": MultiDiscrete of topology, agents - 1 and a role for each of six agents.
        "joint": the same and a route at the end; a step reads the part that its kind of decision
        needs.
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
        # Compiled code reads the same array at every step: it need not be told again.
        self._actions = np.zeros((self.num_envs, len(self.highs)), np.int64)
        self._masks: dict[int, tuple[Bools, Any]] = {}  # by the models that are up
        self._view_decisions()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._view_decisions()  # the copy's own

    def _view_decisions(self) -> None:
        """Take views of what a step reads of its decisions: fields of records are slow to find."""
        self._decision_bytes = self.decisions.view(np.uint8)
        names = ("time_s", "query", "node", "models_up")
        self._time_s, self._query, self._node, self._up = (self.decisions[name] for name in names)
        self._is_single = self.num_envs == 1 and self.config.level == "executor"

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
                numbers = np.asarray(value).dtype.kind in "iuf"
            except (TypeError, ValueError, OverflowError):
                rows, numbers = np.full(self.num_envs, -np.inf), False
            drawn = np.isnan(rows) & (key == "budget_s")
            if not (numbers and (drawn | ((low <= rows) & (rows <= high))).all()):
                several = f", or {self.num_envs} of them" if self.num_envs > 1 else ""
                raise ConfigError(
                    f"{key} must be a number from {low:g} to {high:g}{several}, got {value!r:.60}"
                )
            chosen[key] = rows
        self.rates_per_min, self.budgets_s = chosen["arrival_rate_per_min"], chosen["budget_s"]

    def reset(self, rows: Ints, rngs: Rngs, observations: Float32s, *, first: bool = True) -> None:
        """Begin new episodes and run to their first decision.

        A tagged query follows another in the running stream; a new stream begins after the last,
        after a seed or options, and where a query is abandoned.
        """
        if first:
            self._completed = None
        else:
            self.completed_batch()  # which the next episodes would overwrite
        inside, every = self.one_query, rows
        self.decisions[rows] = np.zeros((), CONTEXT)
        if self.one_query and not first and (self.status[rows] != DECISION).all():
            self.drive(RESUME, rows, self._no_starts, self._actions, observations)
            over = self.status[rows] == STREAM_OVER
            rngs = [rng for rng, ended in zip(rngs, over.tolist(), strict=True) if ended]
            rows, inside = rows[over], False
        if len(rows):
            self._begin_streams(rows, rngs, observations, inside=inside)
        if self._is_compact:
            self._show_compact(every, observations)

    def _show_compact(self, rows: Ints, observations: Float32s) -> None:
        """Turn what the loops have written into compact observations."""
        if self._compact is None:
            self._compact = Compact(self.policy_spec(), self.num_envs)
        seen = observations[rows, : self.layout.written.size]
        compact = self._compact.of(seen, self._time_s[rows], self._query[rows], rows)
        observations[rows, : self.layout.size] = compact

    def _begin_streams(
        self, rows: Ints, rngs: Rngs, observations: Float32s, *, inside: bool
    ) -> None:
        """Begin new streams; `inside` puts the first tagged query at a random place of them."""
        starts = np.zeros(len(rows), START)
        queries = 1 if self._alone else self.num_queries
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
        """Return the actions of all environments, (E, a), until the next step."""
        if self._is_single and isinstance(actions, _INTEGERS):
            route = int(actions)
            if 0 <= route < self.num_routes:
                self._actions[0, 0] = route
                return self._actions
        return check_actions(actions, self.highs, self.num_envs, self._actions)

    def step(self, rows: Ints, actions: Ints, observations: Float32s) -> None:
        """Carry out one action an environment and run to the next decision; see `Simulation`."""
        if self._credit:
            due = self.decisions[rows]
            place = np.where(due["kind"] == PLAN, MAX_NODES, due["node"])
            self._decided[rows, due["query"], place] = self._steps[rows]
            self._steps[rows] += 1
        if len(rows) == self.num_envs:
            self._decision_bytes.fill(0)
        else:
            self.decisions[rows] = np.zeros((), CONTEXT)
            self.rewards[:] = self.costs[:] = 0.0
        self._completed = None  # gathered when asked for, or before the next episodes begin
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
        """Actions that make sense, (E, n): routes to models that are up, and any plan."""
        return np.stack([self._mask(up)[0] for up in self._up.tolist()])

    def mask_of(self, row: int) -> Bools:
        """Return the actions that make sense in an environment, (n,)."""
        return self._mask(self._up.item(row))[0]

    def sample_mask_of(self, row: int) -> Any:
        """Return the mask of an environment as `action_space.sample` takes it, new."""
        sample = self._mask(self._up.item(row))[1]
        return tuple(map(np.copy, sample)) if type(sample) is tuple else sample.copy()

    def sample_masks(self) -> tuple[Any, ...]:
        """Return the masks of all environments; equal ones are one array, not to be written to."""
        if not self.faults.size:
            return (self._mask(self.models_up)[1],) * self.num_envs
        return tuple([self._mask(up)[1] for up in self._up.tolist()])

    def _mask(self, up: int) -> tuple[Bools, Any]:
        """Return the mask while the models of the bit mask `up` are up, and its form for `sample`.

        Both are kept, and not to be written to.
        """
        if up not in self._masks:
            models = [bool(up >> m & 1) for m in range(self.layout.num_models)]
            routes = np.repeat(np.array(models, np.bool_), len(STRATEGIES))
            plans = [] if self.config.level == "executor" else self.highs[:PLAN_ACTIONS].tolist()
            parts = [np.ones(choices, np.bool_) for choices in plans]
            mask = np.concatenate([*parts, *([] if self.config.level == "planner" else [routes])])
            sample = self.sample_mask(mask)
            for part in sample if isinstance(sample, tuple) else (sample,):
                part.flags.writeable = False
            self._masks[up] = mask, sample
        return self._masks[up]

    def reset_info(self) -> dict[str, Any]:
        """Return the info of a reset, which names models whose server cards are estimates."""
        estimates = self.pool.estimates
        info = {name: value for name, value in self.info().items() if name in DUE}
        estimated = {"estimates": estimates} if estimates else {}
        return info | {"split": self.split} | estimated

    def info(self) -> dict[str, Any]:
        """Return the decision that waits; with `credit` what ended, and what it cost."""
        due = {
            "time_s": self._time_s.item(),
            "query": self._query.item(),
            "node": self._node.item(),
        }
        if self._credit:
            return due | {"earned": columns_of(self.earned()), "costs": self.cost_vectors()[0]}
        return due

    def infos(self) -> dict[str, Any]:
        """Return, with `credit`, what ended in every environment, and what it cost."""
        if not self._credit:
            return {}
        earned, by_row = self.earned(), np.empty(self.num_envs, object)
        ends = np.searchsorted(earned["row"], np.arange(self.num_envs + 1)).tolist()
        for row, (first, last) in enumerate(pairwise(ends)):
            by_row[row] = columns_of(earned[first:last])
        return {"earned": by_row, "costs": self.cost_vectors()}

    def earned(self) -> NDArray[Any]:
        """Return the agent's decisions of the queries that ended in the last step, (k,) EARNED.

        Raises:
            ConfigError: credit is not kept.
        """
        if not self._credit:
            raise ConfigError("decisions get no credit; make the environment with credit=True")
        config, (rows, records) = self.config, self.completed_batch()
        ages = self._steps[rows, None] - 1 - self._decided[rows, records["query"]]
        return earned_by(rows, records, ages, config.level, in_time=config.reward == "goodput")

    def cost_vectors(self) -> Floats:
        """Return the costs of the last step, (E, 2 + M), as `credit.cost_vectors`."""
        return cost_vectors(self.costs, *self.completed_batch(), len(self.pool.models))

    def summaries(self, rows: Ints, rewards: Floats, costs: Floats) -> dict[str, NDArray[Any]]:
        """Return the outcome of tagged queries, or means over the queries of streams."""
        if not self.one_query:
            return {
                "queries": np.full(len(rows), self.num_queries),
                "solve_rate": rewards / self.num_queries,
                "mean_cost": costs / self.num_queries,
            }
        environments, records = self.completed_batch()
        record = records[np.searchsorted(environments, rows)]
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
        """The agent's queries of environment `e` that ended in its last step, (k,) COMPLETED."""
        stream = self.state.stream[e]
        rows = self.state.completed[e, stream["reported"] : stream["finished"]]
        return rows[rows["is_controlled"] == 1] if self.one_query else rows.copy()

    def completed_batch(self) -> tuple[Ints, NDArray[Any]]:
        """The same for all environments: (k,) environments and (k,) COMPLETED, in their order."""
        if self._completed is None:
            first, last = self.state.stream["reported"], self.state.stream["finished"]
            counts = last - first
            rows = np.repeat(np.arange(self.num_envs), counts)
            ends = np.cumsum(counts)
            position = np.arange(len(rows)) - np.repeat(ends - counts, counts) + first[rows]
            records = self.state.completed[rows, position] if len(rows) else np.zeros(0, COMPLETED)
            agents = records["is_controlled"] == 1 if self.one_query else np.s_[:]
            self._completed = rows[agents], records[agents]
        return self._completed

    def calls(self, e: int) -> NDArray[Any]:
        """All calls of environment `e`'s stream that are done, (k,) CALL.

        Raises:
            ConfigError: calls are not recorded.
        """
        if not self.config.record_calls:
            raise ConfigError("calls are not recorded; make the environment with record_calls=True")
        return self.state.call[e, : self.state.stream[e]["recorded_calls"]].copy()

    def loads(self, e: int) -> tuple[Load, ...]:
        """Present load of the servers of environment `e`."""
        now_s = float(self.state.stream[e]["now_s"])
        return tuple(
            Load(int(server["running"]), int(server["waiting"]), kv_use(self.cluster, e, m, now_s))
            for m, server in enumerate(self.cluster.server[e])
        )

    def seen(self, e: int) -> Float32s:
        """The metrics that environment `e` polled last, (3, M); see `server/telemetry.py`."""
        seen: Float32s = self.cluster.seen[e]
        return seen

    def policy_spec(self) -> PolicySpec:
        """The public facts of this run, for `Policy.reset`."""
        params, weights, config, models = self.params, self._weights, self.config, self.pool.models
        fixed = (config.budget_s,) if isinstance(config.budget_s, float) else None
        expected_call_s, expected_tokens = np.zeros(len(models)), np.zeros((len(models), 2))
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
            budget_tiers_s=np.asarray(fixed or self.workload.budget_tiers_s),
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
