"""Environments on live servers: the same spaces, records and costs, on the wall clock.

`BackendSimulation` is one closed loop on any `Backend`; `LiveSimulation` is one on a pool of live
servers, with real prompts and graded answers. Environments, policies and records are those of the
compiled loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.core import Float32s, Ints
from inframind_gym.envs.placement import PlacementEnv
from inframind_gym.envs.planner import PlannerConfig, PlannerEnv, PlannerSimulation
from inframind_gym.envs.routing import RoutingEnv
from inframind_gym.envs.routing_config import EnvConfig
from inframind_gym.envs.routing_kernel import show
from inframind_gym.envs.routing_simulation import Load, RoutingSimulation
from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import VllmServers
from inframind_gym.live.config import LiveConfig, PlacementLiveConfig, addresses
from inframind_gym.live.placement.cluster import LivePlacement
from inframind_gym.live.prompts import Prompts
from inframind_gym.simulator.jit import Bound
from inframind_gym.simulator.workflow.backend import Backend, Reply, ScriptedBackend
from inframind_gym.simulator.workflow.backend_loop import BackendLoop
from inframind_gym.simulator.workflow.dispatch import BEGIN, DECISION, STEP
from inframind_gym.tasks.grading import judge
from inframind_gym.tasks.sandbox import Sandbox, SandboxError

_log = logging.getLogger(__name__)

# Opens the backend of a stream; takes the simulation and the key of the stream's random numbers.
OpenBackend = Callable[["BackendSimulation", int], Backend]


class BackendSimulation(RoutingSimulation):
    """One closed loop; every stream has a backend of its own.

    Args:
        config: arguments of the environment.
        open_backend: called at the start of a stream, just before its clock begins to run.
        one_query: as of `RoutingSimulation`.
        retries: how often a call that failed is sent again; with `call_timeout_s` or `faults` in
            the config its `call_attempts` counts instead.
        patience_s: how long to wait for a model while all are down.

    Raises:
        ConfigError: as of `RoutingSimulation`.
    """

    def __init__(
        self,
        config: EnvConfig,
        open_backend: OpenBackend,
        *,
        one_query: bool,
        retries: int = 0,
        patience_s: float = 600.0,
    ) -> None:
        self._open_backend = open_backend
        aborts = config.call_timeout_s is not None or config.faults
        self._retries = config.call_attempts - 1 if aborts else retries
        self._patience_s = patience_s
        self._loop: BackendLoop | None = None
        self._show = Bound(show)
        super().__init__(config, 1, one_query=one_query)

    def close(self) -> None:
        """End the stream and close its backend."""
        if self._loop is not None:
            self._loop.backend.close()
            self._loop = None

    def loads(self, e: int) -> tuple[Load, ...]:
        """Return the load of the servers at the last poll."""
        if self._loop is None:
            return (Load(0, 0, 0.0),) * len(self.pool.models)
        read, loads = self._loop.backend.telemetry(), []
        for model, depth, kv in zip(self.pool.models, read.depth_req, read.kv_frac, strict=True):
            running = min(int(depth), model.server.slots)
            loads.append(Load(running, int(depth) - running, float(kv)))
        return tuple(loads)

    def seen(self, e: int) -> Float32s:
        """Return the metrics as they were polled last, (3, M)."""
        unpolled = np.zeros((3, len(self.pool.models)), np.float32)
        return unpolled if self._loop is None else self._loop.seen[0]

    def _open_servers(self) -> int:
        """Allocate none, as the backend has servers; all queries may wait while these are down."""
        return self.num_queries

    def _set_faults(self, e: int, key: int, last_s: float) -> None:
        """Do nothing: the backend has its own faults."""

    def drive(
        self, mode: int, rows: Ints, starts: NDArray[Any], actions: Ints, observations: Float32s
    ) -> None:
        """Run to the next decision; see `RoutingSimulation.drive`."""
        if mode == BEGIN:
            BackendSimulation.close(self)  # the old stream alone; subclasses close more
            self._loop = BackendLoop(
                self.state,
                starts,
                self._open_backend(self, int(starts[0]["key"])),
                retries=self._retries,
                patience_s=self._patience_s,
            )
        if self._loop is None:
            raise RuntimeError("no stream was started")
        action = actions[0] if mode == STEP else np.zeros(1, np.int64)
        self.status[0] = status = self._loop.enter(mode, action)
        charged = mode == STEP and status == DECISION and self.one_query
        self.show(self._loop.read_metrics(), observations, charged=charged)

    def show(self, seen: Float32s, observations: Float32s, *, charged: bool = False) -> None:
        """Write what a step ends with: observation, decision, reward and cost.

        Args:
            seen: (1, 3, M) normalised metrics.
            observations: (1, d), written.
            charged: the tagged query still runs and pays for its latency so far.
        """
        written = observations[0], self.decisions, self.rewards, self.costs
        self._show(self.state, seen, charged, *written)


def scripted(simulation: RoutingSimulation, latency_s: float) -> ScriptedBackend:
    """Return servers on which every call takes `latency_s` of virtual time and is right."""
    pool, reply = simulation.pool, Reply(latency_s)
    return ScriptedBackend(len(pool.models), lambda _: reply, poll_s=pool.metrics_poll_s)


def compile_loop(config: EnvConfig) -> None:
    """Play a few queries on scripted servers, so that no live query waits for the compiler."""
    short = config.model_copy(update={"num_queries": 4})
    simulation = BackendSimulation(short, lambda loop, _: scripted(loop, 1.0), one_query=False)
    observations, row = simulation.observations(), np.zeros(1, np.int64)
    simulation.reset(row, [np.random.default_rng(0)], observations)
    actions = np.zeros((1, len(simulation.highs)), np.int64)
    while simulation.status[0] == DECISION:
        simulation.step(row, actions, observations)
    simulation.close()


class LiveSimulation(BackendSimulation):
    """A closed loop on a pool of live servers, whose answers are graded.

    Args:
        config: arguments of the environment.
        num_envs, num_threads: 1.
        one_query: as of `RoutingSimulation`.
        controlled_router: no other than None, the agent.

    Raises:
        ConfigError: as of `RoutingSimulation`; a server of the pool has no address.
    """

    def __init__(
        self,
        config: LiveConfig,
        num_envs: int = 1,
        *,
        one_query: bool,
        controlled_router: str | None = None,
        num_threads: int = 1,
    ) -> None:
        # None before the first episode, and where answers are scripted.
        self.servers: VllmServers | None = None
        self._live = config
        self._sandbox: Sandbox | None = None
        super().__init__(
            config,
            lambda _, __: self._open(),
            one_query=one_query,
            retries=config.retries,
            patience_s=config.patience_s,
        )
        addresses(self.pool)

    @property
    def title(self) -> str:
        """Name of these environments, for people."""
        return f"{super().title} (live)"

    def close(self) -> None:
        """End the episode; close sandbox and connections. May be called twice."""
        super().close()
        for resource in (self.servers, self._sandbox):
            if resource is not None:
                resource.close()
        self.servers = self._sandbox = None

    def _open(self) -> Backend:
        """Return the backend of an episode, its clock at 0."""
        if self._live.scripted_s is not None:
            return scripted(self, self._live.scripted_s)
        if self._sandbox is None:
            compile_loop(self._live)
            self._sandbox = self._make_sandbox()
        if self.servers is None:
            self.servers = self._connect()
        return self.servers.open(
            Prompts(self.tasks),
            self._judge,
            scheduler=self.scheduler,
            call_timeout_s=self.config.call_timeout_s,
        )

    def _make_sandbox(self) -> Sandbox:
        """Return a sandbox in which the run's answers can be judged, or raise an InfraMindError."""
        kinds = {answer.kind for answer in self.tasks.answers}
        code, formulas = "tests" in kinds, bool(kinds & {"expression", "number"})
        sandbox = Sandbox(packages=self._live.live.packages)
        try:
            sandbox.check(code=code, formulas=formulas)
        except SandboxError as error:
            sandbox.close()
            what = " and ".join(["code"] * code + ["formulas"] * formulas)
            raise InfraMindError(
                f"answers that are {what} cannot be judged here: {error}\n"
                "Nothing was asked: every such answer would count as a wrong one. Run where the "
                "sandbox can be had, or choose a workload of multiple choice: workload='mmlu_pro'"
            ) from None
        return sandbox

    def _connect(self) -> VllmServers:
        """Connect to the servers; at least one has to answer."""
        servers = VllmServers(self.pool, self._live.live, log=self._live.log)
        with ExitStack() as on_error:
            on_error.callback(servers.close)
            try:
                servers.watcher.wait_up(self._live.reach_s)
            except InfraMindError as error:
                if not servers.watcher.up:
                    raise InfraMindError(
                        f"no server of pool {self.pool.name!r} answers; {error}\n"
                        f"Start them: inframind pool up --pool {self.config.pool}"
                    ) from None
                _log.warning("pool %s: going on without those that are %s", self.pool.name, error)
            on_error.pop_all()
        return servers

    def models_up_now(self) -> int:
        """Return the bit mask of the models whose servers are up at this moment."""
        if self.servers is None:
            return super().models_up_now()
        return self.servers.watcher.up & self.models_up

    @property
    def ungraded(self) -> int:
        """Number of answers so far that could not be graded; they count as wrong."""
        return 0 if self.servers is None else self.servers.ungraded

    def _judge(self, task: int, text: str) -> bool:
        """Return whether a response solves a task; called by several threads at once."""
        if self._sandbox is None:
            raise InfraMindError("the environment is closed")
        tasks = self.tasks
        return judge(
            tasks.answers[task], text, self._sandbox, tasks.texts[task], task=tasks.ids[task]
        )


class ExecutorLiveEnv(RoutingEnv):
    """`InfraMind-Executor-v0` on live servers: route every agent call of one query.

    ## Description

    Spaces, rewards, costs and records are those of `InfraMind-Executor-v0`; see there. The calls go
    to the vLLM servers of a pool (`inframind pool up --pool FILE` starts them), their answers are
    graded, and time is the wall clock's: it goes on while the agent thinks. Background queries are
    routed by the `background` router as they arrive, but only during `step` and `reset`.

    A server that is down or asleep is masked out (`action_masks()`), and used again when it comes
    back. A call that fails is sent again, to another server if need be, and counts as a wrong
    answer after the last attempt. Call `close()` at the end: it aborts calls in flight.

    ## Arguments

    See `inframind_gym.live.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """

    arguments = LiveConfig
    simulate = staticmethod(partial(LiveSimulation, one_query=True))


class StreamLiveEnv(RoutingEnv):
    """`InfraMind-Stream-v0` on live servers: a whole stream of queries, every decision the agent's.

    ## Description

    As `InfraMind-ExecutorLive-v0` is to `InfraMind-Executor-v0`. Queries arrive on the wall clock;
    a policy that is slow to decide makes all of them wait.

    ## Arguments

    See `inframind_gym.live.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """

    arguments = LiveConfig
    simulate = staticmethod(partial(LiveSimulation, one_query=False))


class PlannerLiveConfig(PlannerConfig, LiveConfig):
    """Keyword arguments of `InfraMind-PlannerLive-v0`: of `PlannerConfig` and `LiveConfig`."""


class LivePlanner(PlannerSimulation, LiveSimulation):
    """A closed loop on live servers in which a step is a plan; every executor is a policy."""

    built_in = ()
    loops = LiveConfig

    @property
    def title(self) -> str:
        """Name of these environments, for people."""
        return "InfraMind Planner (live)"


class PlannerLiveEnv(PlannerEnv):
    """`InfraMind-Planner-v0` on live servers: one plan for one query, an executor carries it out.

    ## Description

    As `InfraMind-ExecutorLive-v0` is to `InfraMind-Executor-v0`. A step lasts as long as the
    query's workflow, on the wall clock; in between the `executor` routes its calls, and the
    background traffic goes on.

    ## Arguments

    `executor` and `observe` as of `InfraMind-Planner-v0`, and those of
    `inframind_gym.live.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """

    arguments = PlannerLiveConfig
    simulate = LivePlanner


class PlacementLiveEnv(PlacementEnv):
    """`InfraMind-Placement-v0` on live vLLM servers: wake, put to sleep, start and stop them.

    ## Description

    Spaces, masks, rewards, costs, records and `context()` are those of `InfraMind-Placement-v0`;
    see there. Every instance is a vLLM process that this environment starts: an awake one serves,
    switching is `POST /sleep` and `POST /wake_up`, offloading ends the process, loading starts one.
    The demand's jobs come when their time has come, their calls are sent as chat completions of the
    drawn lengths, and time is the wall clock's: it goes on while the agent thinks, and a step takes
    `decision_interval_s`. Calls are routed, and answers taken, inside `step` alone: an agent that
    thinks for longer than a routing interval keeps them waiting.
    `inframind_gym.live.placement` describes the failures of sleeping servers that it handles.

    Memory is computed from the cards of the cluster; on CPUs a GPU is a slot of that account alone.
    A start that fails is rolled back and counted; the mask closes it for `live.backoff_s`.

    The last `info` holds, besides those of `InfraMind-Placement-v0`, `failed_calls`, whose answers
    did not come or were cut and which were sent again, and `lost_calls`, which failed at every
    attempt; a job with a lost call is late.

    ## Starting State

    The first `reset` brings up what `initial` says and waits for it: minutes, for large models.
    Later ones leave the models where they are, abort the calls in flight and wait for transitions.
    A seed draws the same jobs again; nothing else repeats.

    ## Episode End

    As in `InfraMind-Placement-v0`. Servers go on running until `close()`, which ends all of them.

    ## Arguments

    Those of `InfraMind-Placement-v0`, and

    * `pool`: name or path of a pool (`envs_configs/pools`): how each model is served.
    * `cluster`: None: the one that has the pool's name.
    * `timing_spread`, `timing_noise`, `foreign_memory`: not simulated here, they must be 0.
    * `state`: folder for what was started; None: as of `inframind pool`.
    * `python`: interpreter that has vLLM; None: as of `inframind pool`.
    * `live`: sampling, time limits and retries, `inframind_gym.live.config.LiveLimits`.

    ## Version History

    * v0: first version.
    """

    arguments = PlacementLiveConfig
    simulate = staticmethod(lambda config, num_envs, num_threads: LivePlacement(config))
