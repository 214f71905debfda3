"""InfraMind-Placement-v0: which model is awake on which GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from inframind_gym.envs import placement_kernel as kernel
from inframind_gym.envs.core import (
    Bools,
    Env,
    Float32s,
    Floats,
    Ints,
    ObservationForm,
    Rngs,
    Simulation,
    VectorEnv,
)
from inframind_gym.envs.render import BAD, CACHE, GOOD, WAITING, Bar, Cell, Frame, Table
from inframind_gym.errors import ConfigError
from inframind_gym.simulator.jit import ThreadPool
from inframind_gym.simulator.placement.config import (
    JobArrivals,
    PlacementConfig,
    build_params,
    jobs_per_min,
    load_cluster,
    load_demand,
)
from inframind_gym.simulator.placement.state import (
    ABSENT,
    ACTIVE,
    COUNTERS,
    LOAD,
    NONE,
    OFFLOAD,
    SLEEP,
    STATE_NAMES,
    WAKE,
    ClusterParams,
    ClusterState,
    allocate,
    first_gpu,
    is_coming,
)

MOST_JOBS: Final = 2_000_000  # expected in an episode of all environments of a batch, 1 kB each


class PlacementSpec(NamedTuple):
    """Facts of a run; G GPUs, M models."""

    models: tuple[str, ...]  # (M,) aliases, in the order of the actions
    tp: Ints  # (M,) GPUs of an instance
    slots: Ints  # (M,) calls that run at once
    queue: Ints  # (M,) calls that may wait in a server
    active_mb: Floats  # (M,) per GPU
    slept_mb: Floats  # (M,) per GPU, at the model's own tp
    slept_tp1_mb: Floats  # (M,) the cards' slept_mem_tp1_MB
    base_s: Floats  # (M,) of an engine step
    per_seq_s: Floats  # (M,) added by each running call
    vram_mb: Floats  # (G,)
    slept_limit_mb: Floats  # (G,) alpha times vram
    decision_interval_s: float
    routing_interval_s: float

    @property
    def num_gpus(self) -> int:
        """G."""
        return len(self.vram_mb)

    @property
    def num_models(self) -> int:
        """M."""
        return len(self.models)


class PlacementContext(NamedTuple):
    """One decision in each of n rows. The arrays are the caller's own."""

    time_s: Floats  # (n,)
    state: NDArray[np.int8]  # (n, G, M) of each model on each GPU (ABSENT, ACTIVE, …)
    stable: Bools  # (n, G)
    active: Ints  # (n, G) model that is ACTIVE, or -1
    drain_s: Floats  # (n, G) from the last interval's latencies; 0 without a server
    drain_total_s: Floats  # (n, G) from all latencies since the server woke up
    in_flight: Ints  # (n, G) calls running and queued in the server on the GPU
    free_mb: Floats  # (n, G)
    foreign_mb: Floats  # (n, G) held by other processes
    waiting: Ints  # (n, M) calls in waiting_for_scheduling
    age_sum_s: Floats  # (n, M) their summed ages
    outstanding: Ints  # (n, M) calls in potential and in waiting_for_scheduling
    arrived: Ints  # (n, M) calls that became ready in the last interval
    loading: Bools  # (n, M) an instance is QUEUED, WAKING or LOADING
    latency_s: Floats  # (n, M) observed latency of a call in a server
    wake_s: Floats  # (n, M) observed times
    sleep_s: Floats  # (n, M)
    load_s: Floats  # (n, M)
    offload_s: Floats  # (n, M)
    mask: Bools  # (n, G, M + 1) choices that are open to each GPU


class PlacementSimulation(Simulation):
    """E clusters with the same GPUs, models, demand and settings.

    Attributes:
        cluster_config: the GPUs.
        cards: (M,) cards of the models, in the order of the actions.
        demand: demand on the cluster.
        world, state: the arrays of the compiled code.
        num_gpus, num_models: G and M.

    Raises:
        ConfigError: the cluster, the demand or the trace cannot be used.
    """

    config: PlacementConfig
    term_names = kernel.TERMS

    def __init__(self, config: PlacementConfig, num_envs: int, num_threads: int = 1) -> None:
        self.config, self.num_envs = config, num_envs
        self.cluster_config, self.cards = load_cluster(config.cluster)
        self.demand = load_demand(config.demand)
        rate = jobs_per_min(config, self.cluster_config, self.demand)
        jobs = num_envs * rate * config.horizon_s / 60.0
        if jobs > MOST_JOBS:
            raise ConfigError(
                f"{jobs:.1g} jobs would come in an episode of all {num_envs} environments, at most "
                f"{MOST_JOBS:,} can; lower load, num_decisions, decision_interval_s or num_envs"
            )
        self.arrivals = JobArrivals(self.demand, rate, config.horizon_s, config.trace)
        self.world = self._build_world()
        self.state: ClusterState = allocate(self.world, num_envs, self.arrivals.capacity)
        scratch = ("path_s", "prompt", "output", "target")  # each thread needs its own
        others = [
            self.state._replace(**{name: getattr(self.state, name).copy() for name in scratch})
            for _ in range(num_threads - 1)
        ]
        self._threads = ThreadPool(kernel.drive, [self.state, *others], place=0)
        gpus, models = len(self.world.gpu), len(self.world.model)
        self.num_gpus, self.num_models = gpus, models
        size, places = kernel.observation_size(gpus, models), None
        if config.observation == "dict":
            of_gpus, of_models = np.split(np.arange(size), [size - models * kernel.MODEL_FEATURES])
            places = {"gpus": of_gpus.reshape(gpus, -1), "models": of_models.reshape(models, -1)}
        box = spaces.Box(0.0, kernel.HIGHEST, (size,), np.float32)
        choices = spaces.MultiDiscrete([models + 1] * gpus)
        super().__init__(num_envs, ObservationForm(box, places), choices)
        self._no_actions = np.zeros((num_envs, gpus), np.int64)

    def _build_world(self) -> ClusterParams:
        return build_params(
            self.config, self.cluster_config, self.cards, self.demand, self.arrivals
        )

    def reset(self, rows: Ints, rngs: Rngs, observations: Float32s, *, first: bool = True) -> None:
        """Begin new episodes; see `Simulation`."""
        state = self.state
        for e, rng in zip(rows.tolist(), rngs, strict=True):
            state.episode[e]["key"] = rng.integers(2**64, dtype=np.uint64)
            ranking = np.arange(self.num_models, dtype=np.int32)
            state.rank[e] = rng.permutation(ranking) if self.demand.shuffle else ranking
            self.arrivals.draw(rng, state.arrival_s[e], state.trace_row[e])
        self.truncated[rows] = False
        self._drive(kernel.BEGIN, rows, self._no_actions, observations)

    def step(self, rows: Ints, actions: Ints, observations: Float32s) -> None:
        """Carry out a decision in the environments `rows`; see `Simulation`."""
        if len(rows) < self.num_envs:
            self.terms[:] = 0.0
        self._drive(kernel.STEP, rows, actions, observations)
        self._report()

    def _report(self) -> None:
        """Set the step's rewards, costs and truncations."""
        self.rewards = self.terms[:, 0] + self.terms[:, 1] + self.terms[:, 2]
        self.costs = self.state.episode["late"].astype(np.float64)
        self.truncated = self.state.episode["decision"] >= self.config.num_decisions

    def _drive(self, mode: int, rows: Ints, actions: Ints, observations: Float32s) -> None:
        self._threads.run(len(rows), self.state, mode, rows, actions, observations, self.terms)

    @property
    def mask(self) -> Bools:
        """Choices that are open to each GPU, (E, G·(M + 1))."""
        return self.state.mask.reshape(self.num_envs, -1)

    def infos(self) -> dict[str, Any]:
        """Return the numbers of illegal choices."""
        return {"illegal": self.state.episode["illegal"].copy()}

    def reset_info(self) -> dict[str, Any]:
        """Return the time."""
        return {"time_s": 0.0}

    def info(self) -> dict[str, Any]:
        """Return the number of illegal choices and the time."""
        return {"illegal": int(self.state.episode[0]["illegal"]), "time_s": float(self.now_s()[0])}

    def summaries(self, rows: Ints, *_: Any) -> dict[str, NDArray[Any]]:
        """Return `summary` of each of `rows`, by name, (k,) each."""
        summaries = [self.summary(row) for row in rows.tolist()]
        return {name: np.array([row[name] for row in summaries]) for name in summaries[0]}

    def now_s(self) -> Floats:
        """Return the virtual time of each environment, (E,)."""
        now: Floats = self.state.episode["tick"] * self.config.routing_interval_s
        return now

    def completed(self, e: int) -> NDArray[Any]:
        """Return the jobs of environment `e` that ended in the last step, (k,) JOB_DONE."""
        episode = self.state.episode[e]
        return self.state.done[e, episode["jobs_done_before"] : episode["jobs_done"]].copy()

    def finished(self, e: int) -> NDArray[Any]:
        """Return the jobs of environment `e`'s episode that ended so far, (k,) JOB_DONE."""
        return self.state.done[e, : int(self.state.episode[e]["jobs_done"])].copy()

    def held_mb(self, rows: Ints) -> Floats:
        """Return the memory in MB that models hold on each GPU of `rows`, (n, G)."""
        held = np.empty((len(rows), self.num_gpus))
        kernel.write_held(self.state, rows, held)
        return held

    def state_on_gpus(self, rows: Ints) -> NDArray[np.int8]:
        """Return the state of each model on each GPU of `rows`, (n, G, M)."""
        tp = self.world.model["tp"].astype(np.int64)
        leader = first_gpu(np.arange(self.num_gpus)[:, None], tp)
        instances = self.state.instance["state"][rows][:, leader, np.arange(self.num_models)]
        return np.where(leader + tp <= self.num_gpus, instances, ABSENT).astype(np.int8)

    def summary(self, e: int) -> dict[str, float | int]:
        """Return jobs, latency, lateness and transitions of environment `e`'s episode.

        `mean_latency_s` is of the jobs that ended, which favours a policy that never serves some;
        `mean_call_latency_s`, request-seconds over calls that became ready, counts all.
        """
        done, episode = self.finished(e), self.state.episode[e]
        arrived, calls = int(episode["next_job"]), max(int(episode["requests_made"]), 1)
        return {
            "jobs": len(done),
            "jobs_arrived": arrived,
            "mean_latency_s": float(done["latency_s"].mean()) if len(done) else 0.0,
            "mean_call_latency_s": float(episode["spent_s"]) / calls,
            "late_share": int(episode["jobs_late"]) / max(arrived, 1),
            **self.counters(e),
        }

    def counters(self, e: int) -> dict[str, int]:
        """Return the transitions of environment `e`'s episode, by `state.COUNTERS`."""
        counts = self.state.episode[e]["counter"].tolist()
        return dict(zip(COUNTERS, counts, strict=True))

    def policy_spec(self) -> PlacementSpec:
        """Return the facts of the run that a policy is reset with."""
        model, gpu = self.world.model, self.world.gpu
        floats = ("active_mb", "slept_mb", "base_s", "per_seq_s")
        facts: dict[str, Any] = {name: model[name].copy() for name in floats}
        facts |= {name: model[name].astype(np.int64) for name in ("tp", "slots", "queue")}
        return PlacementSpec(
            models=tuple(card.alias for card in self.cards),
            **facts,
            **{name: gpu[name].copy() for name in ("vram_mb", "slept_limit_mb")},
            slept_tp1_mb=np.array([card.slept_mem_tp1_MB for card in self.cards]),
            decision_interval_s=self.config.ticks * self.config.routing_interval_s,
            routing_interval_s=self.config.routing_interval_s,
        )

    def contexts(self, rows: Ints, *, truth: bool = False) -> PlacementContext:
        """Return the state of `rows` at the decisions that they wait for."""
        state, on_gpu = self.state, self.state_on_gpus(rows)
        host = state.host[rows]  # (n, G) server on each GPU, or NONE
        waiting = state.waiting.take(rows, axis=0)  # an index would copy records field by field
        served = host != NONE
        server = np.take_along_axis(
            state.server.take(rows, axis=0), np.where(served, host, 0), axis=1
        )
        is_active = on_gpu == ACTIVE
        in_flight = np.where(served, server["running"] + server["queued"], 0)
        counted = np.where(served, server["latency_count"], 0)
        total_mean = server["latency_sum_s"] / np.maximum(counted, 1)
        total_mean = np.where(counted > 0, total_mean, server["mean_s"])
        now_s, count = self.now_s()[rows], waiting["count"].astype(np.int64)
        ages = np.maximum(count * now_s[:, None] - waiting["stamp_sum_s"], 0.0)
        foreign, seen_s = state.foreign_mb[rows], state.seen_s[rows]
        return PlacementContext(
            time_s=now_s,
            state=on_gpu,
            stable=state.moving[rows] == 0,
            active=np.where(is_active.any(-1), is_active.argmax(-1), NONE).astype(np.int64),
            drain_s=np.where(served, in_flight * server["mean_s"], 0.0),
            drain_total_s=np.where(served, in_flight * total_mean, 0.0),
            in_flight=in_flight.astype(np.int64),
            free_mb=self.world.gpu["vram_mb"] - self.held_mb(rows) - foreign,
            foreign_mb=foreign,
            waiting=count,
            age_sum_s=np.where(count > 0, ages, 0.0),
            outstanding=count + waiting["potential"],
            arrived=waiting["arrived"].astype(np.int64),
            loading=waiting["loading"] > 0,
            latency_s=waiting["latency_s"].copy(),
            wake_s=seen_s[..., WAKE],
            sleep_s=seen_s[..., SLEEP],
            load_s=seen_s[..., LOAD],
            offload_s=seen_s[..., OFFLOAD],
            mask=state.mask[rows],
        )

    # Pictures

    def describe(self, action: Ints) -> tuple[str, str]:
        """Return the models that GPUs are to hold."""
        models = [card.alias for card in self.cards]
        wanted = [f"GPU {g}: {models[m - 1]}" for g, m in enumerate(action.tolist()) if m]
        return ", ".join(wanted) or "leave all", f"{self.now_s()[0]:.0f} s"

    def frame(self) -> Frame:
        """Return a table with a row for each GPU, and one with a row for each model."""
        config, state, episode = self.config, self.state, self.state.episode[0]
        gpus: list[tuple[Cell, ...]] = []
        models: list[tuple[Cell, ...]] = []
        row = np.zeros(1, np.int64)
        held = self.held_mb(row)[0] / self.world.gpu["vram_mb"]
        for g, states in enumerate(self.state_on_gpus(row)[0]):
            m = int(states.argmax())  # states are in order: at rest, leaving, coming
            kind, host, calls = int(states[m]), int(state.host[0, g]), Bar(0.0)
            if host != NONE:
                server = state.server[0, host]
                slots = int(self.world.model["slots"][server["model"]])
                colour = WAITING if is_coming(kind) else GOOD if kind == ACTIVE else BAD
                calls = Bar(server["running"] / slots, f"{server['running']}/{slots}", colour)
            name = f"{g}  {'empty' if kind == ABSENT else self.cards[m].alias}"
            memory = Bar(float(held[g]), f"{held[g]:.0%}", CACHE)
            gpus.append((name, "" if kind == ABSENT else STATE_NAMES[kind], calls, memory))
        full = max(20, int(state.waiting[0]["count"].max()))
        for card, waiting in zip(self.cards, state.waiting[0], strict=True):
            bar = Bar(waiting["count"] / full, str(waiting["count"]), WAITING)
            models.append(
                (card.alias, str(waiting["active"] or "-"), bar, str(waiting["potential"]))
            )
        decided = f"decision {episode['decision']} of {config.num_decisions}"
        return Frame(
            "InfraMind Placement",
            (self.cluster_config.name, self.demand.name, f"load {config.load:g}"),
            f"{self.now_s()[0]:.0f} s",
            f"{episode['next_job']} jobs arrived, {episode['jobs_done']} done",
            (
                Table("GPUs", ("state", "calls running", "memory"), gpus),
                Table("Models", ("awake", "calls waiting", "to come"), models),
            ),
            results=f"{decided}, {episode['illegal']} illegal choices",
        )


class PlacementEnv(Env):
    """Decide every five seconds which model each GPU of a cluster holds awake.

    ## Description

    Jobs of several agent calls arrive; each call needs one model of a catalogue and is answered
    only where that model is awake. A GPU holds one awake model at a time. Switching it takes time:
    the one that is there drains and falls asleep (seconds, the first time longer) or is offloaded,
    the one that comes wakes up (seconds) or is loaded (half a minute and more). Models of tensor
    parallelism k span k neighbouring GPUs. Calls that are ready are routed every second to the
    awake instance with the least drain latency. The rules are in
    `inframind_gym.simulator.placement`.

    ## Action Space

    `MultiDiscrete([M + 1] * G)`: per GPU 0, leave it alone, or 1 + the model to make active.
    `info["action_mask"]`, a tuple of G int8 arrays (M + 1,), marks the choices that are open to
    each GPU, and so does `action_masks()`, (G·(M + 1),) of bool: the GPU is STABLE, the model fits,
    is not loading anywhere and its block of GPUs is free. A mask cannot express that all GPUs of a
    block choose the same model; a choice of only some of them is illegal. Illegal choices do
    nothing and cost reward; the rule is in `inframind_gym.simulator.placement.instances`. No legal
    action is masked out.

    ## Observation Space

    `Box(0, 5, (G·(4·M + 7) + 12·M,))`: first the numbers of each GPU, then of each model. With
    `observation="dict"` a Dict of the same numbers: `gpus` (G, 4·M + 7) and `models` (M, 12).

    | of a GPU | | normalised |
    |---|---|---|
    | 4·M | per model: ACTIVE; SLEPT; it comes; it leaves (see `instances`) | 0, 1 |
    | 1 | STABLE | 0, 1 |
    | 1 | drain latency of the server on it, s | log |
    | 1 | free memory, other processes counted | / vram_total_MB |
    | 1 | memory that sleepers hold | / (alpha · vram_total_MB) |
    | 1 | running calls of the server on it | / slots |
    | 1 | queued calls of the server on it | / queue places |
    | 1 | time since its latest phase began, s; 0 on a STABLE GPU | log |

    | of a model | | normalised |
    |---|---|---|
    | 1 | calls in waiting_for_scheduling | count |
    | 1 | sum of their ages, s | log |
    | 1 | age of the oldest, s | log |
    | 1 | outstanding demand: calls in potential and in waiting_for_scheduling | count |
    | 1 | calls that became ready in the last interval | count |
    | 1 | whether an instance is QUEUED, WAKING or LOADING | 0, 1 |
    | 1 | GPUs on which it is ACTIVE | / G |
    | 1 | latency of its calls in their servers, averaged over polls, s | log |
    | 4 | observed times to wake, sleep, load and offload, s | log |

    `log` is log(1 + x) / log(301), `count` is log(1 + n) / log(101).

    ## Rewards and costs

    The reward of an interval is the sum of three terms, which `info["rewards"]` holds:

    | term | |
    |---|---|
    | `waiting` | minus the request-seconds that calls were ready and not running, normalised |
    | `service` | minus the request-seconds that calls were running, normalised |
    | `illegal` | minus `illegal_penalty` times the share of GPUs whose choice was illegal |

    Request-seconds are the integral over the interval of the number of calls. They are divided by
    the calls that come in an interval on average, a constant of the demand, times
    `latency_scale_s`. By Little's law the mean reward of an episode is then minus the mean latency
    of a call over `latency_scale_s`; dividing by the calls that happen to be there would reward a
    policy that lets them pile up. `info["cost"]`: jobs whose deadline passed in the interval.

    ## Starting State

    Time 0, no jobs; with `initial="spread"` one model awake on each block of GPUs, from a random
    model on.

    ## Episode End

    Truncated after `num_decisions` decisions. Never terminated. Jobs that are in the cluster then
    are not counted by `info["jobs"]` and `info["mean_latency_s"]`; the reward, the cost,
    `info["late_share"]` and `info["mean_call_latency_s"]` count theirs too.

    ## Arguments

    All are JSON types.

    * `cluster`: name or path of a cluster (`envs_configs/placement/clusters`).
    * `demand`: name or path of a demand (`envs_configs/placement/demands`).
    * `trace`: CSV file that a demand of kind "trace" replays.
    * `load`: factor on the demand's rate.
    * `routing_interval_s`: δt1, between two times of routing.
    * `decision_interval_s`: δt2, of a step; a whole multiple of δt1.
    * `num_decisions`: length of an episode.
    * `initial`: "spread": every block of GPUs begins with a model awake, in the order of the
      cluster's list from a random one on; "empty": no model is on any GPU.
    * `illegal_penalty`: reward lost when all choices of a decision are illegal; a share of them
      loses that share.
    * `latency_scale_s`: seconds in a call that cost a reward of 1.
    * `ema`: weight of a new observation in the times that the agent sees.
    * `timing_spread`: log-normal spread of each model's true times around its card, per episode.
    * `timing_noise`: log-normal spread of each single transition around that.
    * `foreign_memory`: memory that other processes take, which makes starts fail: every `every_s`
      seconds (30) uniform in 0..`max_MB` (12,000), at most what is free.
    * `observation`: "flat" or "dict".
    * `render_mode`: None, "ansi" (text) or "rgb_array".

    ## Version History

    * v0: first version.
    """

    arguments = PlacementConfig
    simulation: PlacementSimulation
    simulate: ClassVar[Callable[..., Simulation]] = PlacementSimulation

    def completed(self) -> NDArray[Any]:
        """Return the jobs that ended in the last step, (k,) JOB_DONE."""
        return self.simulation.completed(0)


class PlacementVectorEnv(VectorEnv):
    """`InfraMind-Placement-v0` in a batch (`VectorEnv`); arguments as of `PlacementEnv`."""

    single = PlacementEnv
