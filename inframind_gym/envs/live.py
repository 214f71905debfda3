"""Environments on live servers: the same spaces, records and costs, on the wall clock."""

from __future__ import annotations

from typing import Any

from inframind_gym.envs.placement import PlacementEnv
from inframind_gym.envs.planner import PlannerConfig, PlannerEnv, PlannerSimulation
from inframind_gym.envs.routing import RoutingEnv
from inframind_gym.live.config import LiveConfig, PlacementLiveConfig
from inframind_gym.live.placement.cluster import LivePlacement
from inframind_gym.live.simulation import LiveSimulation


class ExecutorLiveEnv(RoutingEnv):
    """`InfraMind-Executor-v0` on live servers: route every agent call of one query.

    ## Description

    Spaces, rewards, costs and records are those of `InfraMind-Executor-v0`; see there. The calls go
    to the vLLM servers of a pool (`inframind pool up --pool FILE` starts them), their answers are
    graded, and time is the wall clock's: it goes on while the agent thinks. The background traffic
    is sent by the `background` router, when they arrive and the environment is stepped.

    A server that is down or asleep is masked out (`action_masks()`), and used again when it comes
    back. A call that fails is sent again, to another server if need be, and counts as a wrong
    answer when it has failed for good. Call `close()`: it gives up what is in flight.

    ## Arguments

    See `inframind_gym.live.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """

    arguments = LiveConfig
    simulation: LiveSimulation
    simulate = staticmethod(
        lambda config, num_envs, num_threads: LiveSimulation(config, one_query=True)
    )


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
    simulation: LiveSimulation
    simulate = staticmethod(
        lambda config, num_envs, num_threads: LiveSimulation(config, one_query=False)
    )


class PlannerLiveConfig(PlannerConfig, LiveConfig):
    """Keyword arguments of `InfraMind-PlannerLive-v0`: of `PlannerConfig` and `LiveConfig`."""


class LivePlanner(PlannerSimulation, LiveSimulation):
    """A closed loop on live servers in which a step is a plan; every executor is a policy."""

    built_in = ()

    def _make_loops(
        self, config: Any, changes: dict[str, Any], num_envs: int, num_threads: int
    ) -> None:
        inner = config.model_dump(include=set(LiveConfig.model_fields)) | changes
        LiveSimulation.__init__(self, LiveConfig.model_validate(inner), one_query=True)

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
    simulation: LivePlanner
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

    Memory is accounted for by the cards of the cluster: on CPUs `GPUs` are slots of that account
    alone. A start that fails is rolled back, counted and not retried for `live.backoff_s`: until
    then the mask is closed for it.

    Beside those of `InfraMind-Placement-v0`, the last `info` holds `failed_calls`, answers that did
    not come or were cut, and were asked for again, and `lost_calls`, given up after all retries;
    a job with a lost call is late.

    ## Starting State

    The first `reset` brings up what `initial` says and waits for it: minutes, for large models.
    Later ones leave the models where they are, give up the calls that are under way and wait for
    transitions. A seed draws the same jobs again, nothing else repeats.

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
    simulation: LivePlacement
    simulate = staticmethod(lambda config, num_envs, num_threads: LivePlacement(config))
