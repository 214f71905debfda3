"""A batch of closed loops on the surrogate: what every environment, single or vector, runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.config import EnvConfig, FixedPlan
from inframind_gym.envs.routing.entry import drive
from inframind_gym.envs.routing.layout import SYSTEM_FEATURES, ObservationLayout
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.drift import drift_of
from inframind_gym.simulator.faults import Faults
from inframind_gym.simulator.server.evidence import has_evidence, warn_outside
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.server.state import Cluster, allocate, cards
from inframind_gym.simulator.server.telemetry import kv_use
from inframind_gym.simulator.threads import Crew
from inframind_gym.simulator.workflow.dispatch import (
    BEGIN,
    DECISION,
    PLAN_ACTIONS,
    RESUME,
    STEP,
    STREAM_OVER,
    TAGGED_QUERY_OVER,
)
from inframind_gym.simulator.workflow.params import (
    EXECUTIONS,
    LEVELS,
    ROUTERS,
    SCHEDULERS,
    EnvParams,
    build_params,
)
from inframind_gym.simulator.workflow.state import (
    COMPLETED,
    CONTEXT,
    START,
    EnvState,
    allocate_state,
)
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, STRATEGIES, TOPOLOGIES
from inframind_gym.simulator.workload import load_profiles, load_workload
from inframind_gym.tasks import DOMAINS, TaskSet, load_tasks

if TYPE_CHECKING:
    from inframind_gym.envs.routing.spec import PolicySpec

MOST_PLACES: Final = 10_000_000  # queries of all environments of a batch, 1.5 kB each
MOST_POLLS: Final = 2e7  # of the servers in a stream: half a second of computing

__all__ = ["DECISION", "STREAM_OVER", "TAGGED_QUERY_OVER", "Simulation"]


class Load(NamedTuple):
    """Load of a server."""

    running: int  # requests
    waiting: int
    kv_frac: float  # share of the KV cache in use, 0..1


class Leg(NamedTuple):
    """Arguments of `drive` beside the state; empty where a mode does not need them."""

    mode: int
    rows: NDArray[np.int64]  # (k,) environments
    starts: NDArray[Any]  # (k,) START
    actions: NDArray[np.int64]  # (E, a)
    observations: NDArray[np.float32]  # (E, d), like the next three written at `rows`
    contexts: NDArray[Any]  # (E,)
    rewards: NDArray[np.float64]  # (E,)
    costs: NDArray[np.float64]  # (E,)


class Simulation:
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
        max_queue: upper bound of the queue feature.
        observation_size: width d of an observation; at the joint level one more than the layout's,
            for the flag that marks plans.

    Raises:
        ConfigError: the pool, the workload or the tasks cannot be used together.
    """

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        *,
        one_query: bool,
        controlled_router: str | None = None,
        num_threads: int = 1,
    ) -> None:
        self.config = config
        self.num_envs = num_envs
        self.one_query = one_query
        self.pool = load_pool(config.pool)
        if config.metrics_poll_s is not None:
            self.pool = self.pool.model_copy(update={"metrics_poll_s": config.metrics_poll_s})
        self._watched = has_evidence(self.pool)
        self.workload = load_workload(config.workload)
        if isinstance(config.budget_s, tuple):
            tiers = {"budget_tiers_s": config.budget_s}
            self.workload = self.workload.model_copy(update=tiers)
        weighted = load_profiles(self.workload)
        rules = {} if config.agents is None else {"agents": config.agents}
        self.profiles = [part.profile.model_copy(update=rules) for part in weighted.values()]
        self._weights = np.array([part.weight for part in weighted.values()])
        self._drift = drift_of(self.workload)
        self.tasks, task_profile = _draw_from(config, list(weighted))
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
        self.models_up = self._models_up(config.down_models)
        self.faults = Faults(config.faults, self.pool, self.models_up)
        self.layout = ObservationLayout(
            len(self.pool.models), config.embedding, config.system_features, self.pool.queue_norm
        )
        self.max_queue = self.num_queries * MAX_AGENTS / self.pool.queue_norm
        self.observation_size = self.layout.size + (config.level == "joint")
        self._alone = one_query and config.background == "none"

        self._num_threads = num_threads
        ready = MAX_NODES * (self._open_servers() + 1)
        own_graph = config.planner.graph() if config.planner else None
        self.params: EnvParams = build_params(
            self.pool,
            self.profiles,
            self.tasks,
            task_profile,
            self.workload.budget_tiers_s,
            [SYSTEM_FEATURES.index(feature) for feature in config.system_features],
            {
                "poll_s": self.pool.metrics_poll_s,
                "queue_norm": self.pool.queue_norm,
                "queue_high": self.max_queue,
                "max_output_tokens": self.pool.max_output_tokens,
                "execution": EXECUTIONS.index(self.execution),
                "scheduler": SCHEDULERS.index(self.scheduler),
                "router": ROUTERS.index(config.background),
                "controlled_router": ROUTERS.index(controlled_router or config.background),
                "level": LEVELS.index(config.level),
                "one_query": int(one_query),
                "fixed_topology": _topology_of(config.planner),
                "fixed_agents": config.planner.num_agents if config.planner else -1,
                "embeddings": int(config.embedding == "full"),
                "call_timeout_s": config.call_timeout_s or np.inf,
                "call_attempts": config.call_attempts,
            },
            [] if own_graph is None else [own_graph],
        )
        self.state: EnvState = allocate_state(
            num_envs,
            len(self.pool.models),
            self.num_queries,
            1 << (ready - 1).bit_length(),
            config.record_calls,
        )
        self.status = np.zeros(num_envs, np.int64)
        no_actions, unread = np.zeros((0, self.action_size), np.int64), np.zeros(num_envs)
        self._leg = Leg(
            *(STEP, np.arange(num_envs), np.zeros(0, START), no_actions),
            *self.buffers(),
            *(unread, unread),
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
        self._crew = Crew(drive, [self.cluster, *others], place=2)
        # All that is in flight can be lost at once, and waits while no model is up.
        return max(slots, self.num_queries) if self.faults.size else slots

    @property
    def level(self) -> str:
        """Decisions of the agent: "executor", "planner" or "joint"."""
        return self.config.level

    @property
    def title(self) -> str:
        """Name of these environments, for people."""
        return "InfraMind Executor" if self.one_query else "InfraMind Stream"

    @property
    def action_size(self) -> int:
        """Numbers in an action: 1 (route), 8 (plan) or 9 (plan and route)."""
        return {"executor": 1, "planner": PLAN_ACTIONS, "joint": PLAN_ACTIONS + 1}[
            self.config.level
        ]

    @property
    def num_routes(self) -> int:
        """Number of routes: models times strategies."""
        return len(self.pool.models) * len(STRATEGIES)

    def buffers(self) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Fresh arrays for observations (E, d) and contexts (E,)."""
        observations = np.empty((self.num_envs, self.observation_size), np.float32)
        return observations, np.zeros(self.num_envs, CONTEXT)

    def start(
        self,
        rows: NDArray[np.int64],
        generators: list[np.random.Generator],
        rates_per_min: NDArray[np.float64],
        budgets_s: NDArray[np.float64],
        observations: NDArray[np.float32],
        contexts: NDArray[Any],
        *,
        inside: bool = False,
    ) -> None:
        """Start a new stream in some environments and run to its first decision.

        Args:
            rows: (k,) environments.
            generators: k sources of randomness, one an environment.
            rates_per_min: (k,) arrival rates.
            budgets_s: (k,) budgets in s; NaN draws each query's from the tiers.
            observations: (E, d), written at `rows`; `contexts` (E,) likewise.
            inside: tagged-query mode: let the agent's first query be a random one of the stream, so
                that it meets the traffic that came before.
        """
        starts = np.zeros(len(rows), START)
        queries = 1 if self._alone else self.num_queries
        for i, e in enumerate(rows.tolist()):
            rng = generators[i]
            starts[i]["key"] = rng.integers(2**64, dtype=np.uint64)
            starts[i]["tagged_from"] = rng.integers(queries) if inside else 0
            arrival_s = self.arrivals.sample(float(rates_per_min[i]), queries, rng)
            self._check_length(arrival_s[-1])
            self.state.arrival_s[e, :queries] = arrival_s
            self.state.task[e, :queries] = self._draw_tasks(queries, rng)
            self._set_faults(e, int(starts[i]["key"]), float(arrival_s[-1]))
        starts["budget_s"] = budgets_s
        starts["num_queries"] = queries
        starts["models_up"] = self.models_up
        self._drive(self._toward(BEGIN, rows, observations, contexts)._replace(starts=starts))

    def resume(
        self, rows: NDArray[np.int64], observations: NDArray[np.float32], contexts: NDArray[Any]
    ) -> None:
        """Go on to the next tagged query; `status` says which streams are over."""
        self._drive(self._toward(RESUME, rows, observations, contexts))

    def step(
        self,
        actions: NDArray[np.int64],
        observations: NDArray[np.float32],
        contexts: NDArray[Any],
        rewards: NDArray[np.float64],
        costs: NDArray[np.float64],
        rows: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Carry out one action an environment and run to the next decision.

        Args:
            actions: (E, a) with a = `action_size`, in range (not checked here).
            observations: (E, d), contexts (E,), rewards (E,), costs (E,): written at `rows`.
            rows: (k,) environments; None: all.

        Returns:
            (E,) DECISION, STREAM_OVER or TAGGED_QUERY_OVER; valid until the next call.
        """
        rows, starts = self._leg.rows if rows is None else rows, self._leg.starts
        self._drive(Leg(STEP, rows, starts, actions, observations, contexts, rewards, costs))
        return self.status

    def _set_faults(self, e: int, key: int, last_s: float) -> None:
        """Write the faults of a stream whose last query arrives at `last_s`."""
        if self.faults.size:
            self.cluster.fault[e] = self.faults.changes(key, last_s)

    def _check_length(self, last_s: float) -> None:
        """Refuse a stream in which the servers would be polled for minutes of computing."""
        polls = last_s / self.pool.metrics_poll_s
        if not polls <= MOST_POLLS:
            raise ConfigError(
                f"the last of {self.num_queries} queries would arrive after {last_s:g} s, and the "
                f"servers be polled {polls:.1g} times, at most {MOST_POLLS:.0g}; raise "
                "arrival_rate_per_min or metrics_poll_s, or lower num_queries"
            )

    def _toward(
        self,
        mode: int,
        rows: NDArray[np.int64],
        observations: NDArray[np.float32],
        contexts: NDArray[Any],
    ) -> Leg:
        return self._leg._replace(
            mode=mode, rows=rows, observations=observations, contexts=contexts
        )

    def _drive(self, leg: Leg) -> None:
        self._crew.run(len(leg.rows), self.params, self.state, self.cluster, *leg, self.status)
        if self._watched and np.count_nonzero(self.status):  # something is over
            over = bool((self.status == STREAM_OVER).any())
            warn_outside(self.pool, self.cluster.reached, over=over)

    def completed(self, e: int) -> NDArray[Any]:
        """The agent's queries of environment `e` that ended in its last step, (k,) COMPLETED."""
        stream = self.state.stream[e]
        rows = self.state.completed[e, stream["reported"] : stream["finished"]]
        return rows[rows["is_controlled"] == 1] if self.one_query else rows.copy()

    def completed_batch(self) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The same for all environments: (k,) environments and (k,) COMPLETED, in their order."""
        first, last = self.state.stream["reported"], self.state.stream["finished"]
        counts = last - first
        rows = np.repeat(np.arange(self.num_envs), counts)
        if not len(rows):
            return rows, np.zeros(0, COMPLETED)
        ends = np.cumsum(counts)
        position = np.arange(len(rows)) - np.repeat(ends - counts, counts) + first[rows]
        records = self.state.completed[rows, position]
        if self.one_query:
            own = records["is_controlled"] == 1
            return rows[own], records[own]
        return rows, records

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

    def seen(self, e: int) -> NDArray[np.float32]:
        """The metrics that environment `e` polled last, (3, M); see `server/telemetry.py`."""
        seen: NDArray[np.float32] = self.cluster.seen[e]
        return seen

    def policy_spec(self) -> PolicySpec:
        """The public facts of this run, for `Policy.reset`."""
        from inframind_gym.envs.routing.spec import PolicySpec

        params, weights = self.params, self._weights
        budgets = self.workload.budget_tiers_s
        if isinstance(self.config.budget_s, float):
            budgets = (self.config.budget_s,)
        return PolicySpec(
            models=self.pool.aliases,
            strategies=STRATEGIES,
            layout=self.layout,
            level=self.config.level,
            workload=self.workload.name,
            budget_tiers_s=np.asarray(budgets),
            model_share=_shares(weights @ np.diff(params.model_cdf, prepend=0.0, axis=1)),
            strategy_share=_shares(weights @ np.diff(params.strategy_cdf, prepend=0.0, axis=1)),
            expected_call_s=self._expected_call_s(),
            ability=weights @ params.response.ability,
            max_num_seqs=np.array([m.server.slots for m in self.pool.models]),
            queue_norm=self.pool.queue_norm,
            scheduler=self.scheduler,
            metrics_poll_s=self.pool.metrics_poll_s,
            task_embeddings=params.task_embedding,
            role_embeddings=params.role_embedding,
        )

    def _expected_call_s(self) -> NDArray[np.float64]:
        out = np.zeros(len(self.pool.models))
        for weight, profile, members in zip(
            self._weights, self.profiles, self._members, strict=True
        ):
            prompt = (
                float(self.tasks.prompt_tokens[members].mean()) + profile.prompt.overhead_tokens
            )
            factor = profile.output.mean_factor() * sum(
                share * profile.output.strategy_factor[s]
                for s, share in profile.strategy_mix.items()
            )
            for m, model in enumerate(self.pool.models):
                tokens = profile.models[model.alias].output_tokens_median * factor
                tokens = min(tokens, float(self.pool.max_output_tokens))
                out[m] += weight * model.server.call_s(prompt, tokens)
        return out

    def _models_up(self, down: tuple[str, ...]) -> int:
        up = (1 << len(self.pool.models)) - 1
        for alias in down:
            up &= ~(1 << self.pool.index(alias))
        if not up:
            raise ConfigError("down_models names every model of the pool; one must be up")
        return up

    def _draw_tasks(self, count: int, rng: np.random.Generator) -> NDArray[np.int32]:
        """`count` tasks: datasets by weight, within one all of its tasks before any returns."""
        out = np.empty(count, np.int32)
        if self._drift is None:
            which = rng.choice(len(self._members), count, p=self._weights)
        else:
            shares = np.cumsum(self._drift.weights(np.arange(count)), axis=1)
            which = (rng.random(count)[:, None] > shares[:, :-1]).sum(axis=1)
        for p, members in enumerate(self._members):
            wanted = int((which == p).sum())
            rounds = -(-wanted // len(members))
            order = [rng.permutation(members) for _ in range(rounds)]
            if order:
                out[which == p] = np.concatenate(order)[:wanted]
        return out


def _topology_of(plan: FixedPlan | None) -> int:
    """Index of the topology that every query has; -1 where they differ."""
    if plan is None:
        return -1
    return len(TOPOLOGIES) if plan.topology is None else TOPOLOGIES.index(plan.topology)


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    total: np.float64 = values.sum()
    out: NDArray[np.float64] = values / total
    return out


def _draw_from(config: EnvConfig, datasets: list[str]) -> tuple[TaskSet, NDArray[np.int32]]:
    """The tasks of each dataset; built-in tasks stand in for a dataset by its domain.

    Returns:
        The tasks, dataset after dataset, and (T,) which dataset each belongs to.
    """
    if config.tasks == "builtin":
        tasks = load_tasks("builtin", split=config.split)
        profiles = load_profiles(load_workload(config.workload))
        groups = [
            np.flatnonzero(tasks.domain == DOMAINS.index(profiles[name].profile.domain))
            for name in datasets
        ]
    else:
        tasks = load_tasks(config.tasks, datasets=datasets, split=config.split)
        of = np.asarray(tasks.datasets)
        groups = [np.flatnonzero(of == name) for name in datasets]
    for name, group in zip(datasets, groups, strict=True):
        if not len(group):
            raise ConfigError(
                f"{config.tasks}: no task of dataset {name!r} in split {config.split!r}; "
                'use another split (split="all" takes every task) or another folder'
            )
    owner = np.repeat(np.arange(len(datasets), dtype=np.int32), [len(g) for g in groups])
    return tasks.select(np.concatenate(groups)), owner
