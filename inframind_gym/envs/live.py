"""The environments on live servers: the same spaces, records and costs, on the wall clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from inframind_gym.envs.base import InfraMindEnv
from inframind_gym.envs.executor import ExecutorEnv
from inframind_gym.envs.stream import StreamEnv
from inframind_gym.errors import InfraMindError
from inframind_gym.orchestration.config import LiveConfig, live_config
from inframind_gym.orchestration.driven import DrivenSimulation
from inframind_gym.orchestration.simulation import DECISION
from inframind_gym.prompts import Prompts
from inframind_gym.serving.backend import Backend
from inframind_gym.serving.scripted import Reply, ScriptedBackend
from inframind_gym.serving.vllm.pool import VllmPool
from inframind_gym.serving.vllm.settings import addresses
from inframind_gym.tasks.judging import judge
from inframind_gym.tasks.sandbox import Sandbox, SandboxError

_log = logging.getLogger(__name__)


class LiveSimulation(DrivenSimulation):
    """A closed loop on a pool of live servers, which are looked for when the first sweep begins.

    Args:
        config: what to run.
        one_query: as of `Simulation`.

    Attributes:
        servers: the pool; None before the first sweep, and where answers are scripted.
        on_wait: as of `VllmPool`; to be set before a sweep begins.

    Raises:
        ConfigError: as of `Simulation`, or a server of the pool has no address.
    """

    def __init__(self, config: LiveConfig, *, one_query: bool) -> None:
        self.servers: VllmPool | None = None
        self.on_wait: Callable[[], object] | None = None
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
        """What a person calls these environments."""
        return f"{super().title} (live)"

    def shut(self) -> None:
        """Give up the sweep and let go of servers and sandbox. May be called twice."""
        self.close()
        if self.servers is not None:
            self.servers.close()
            self.servers = None
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _open(self) -> Backend:
        """The backend of a sweep, its clock at 0."""
        if self._live.scripted_s is not None:
            reply = Reply(self._live.scripted_s)
            poll_s = self.pool.metrics_poll_s
            return ScriptedBackend(len(self.pool.models), lambda _: reply, poll_s=poll_s)
        if self.servers is None:
            compile_driver(self._live)
            self._sandbox = self._sandbox or self._make_sandbox()
            self.servers = self._reach()
        self.servers.on_wait = self.on_wait
        return self.servers.open(Prompts(self.tasks), self._judge, scheduler=self.scheduler)

    def _make_sandbox(self) -> Sandbox:
        """A sandbox in which the run's answers can be judged.

        Raises:
            InfraMindError: they cannot be; each would count as a wrong one.
        """
        kinds = {answer.kind for answer in self.tasks.answers}
        code, formulas = "tests" in kinds, bool(kinds & {"expression", "number"})
        sandbox = Sandbox(workers=self._live.live.judges)
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

    @property
    def ungraded(self) -> int:
        """Answers so far that could not be graded; they count as wrong."""
        return 0 if self.servers is None else self.servers.ungraded

    def _reach(self) -> VllmPool:
        """Connect to the servers.

        Raises:
            InfraMindError: none of them answers.
        """
        servers = VllmPool(self.pool, self._live.live, log=self._live.log)
        try:
            servers.watcher.wait_up(self._live.reach_s)
        except InfraMindError as error:
            if not servers.watcher.up:
                servers.close()
                raise InfraMindError(
                    f"no server of pool {self.pool.name!r} answers; {error}\n"
                    f"Start them: inframind pool up --pool {self.config.pool}"
                ) from None
            _log.warning("pool %s: going on without those that are %s", self.pool.name, error)
        except BaseException:
            servers.close()
            raise
        return servers

    def _judge(self, task: int, text: str) -> bool:
        """Whether a response solves a task; asked by several threads at once."""
        if self._sandbox is None:
            raise InfraMindError("the environment is closed")
        return judge(self.tasks.answers[task], text, self._sandbox, self.tasks.texts[task])


def compile_driver(config: LiveConfig) -> None:
    """Play a few queries on scripted servers: no query shall wait for a compiler."""
    short = config.model_copy(update={"scripted_s": 1.0, "num_queries": 4})
    simulation = LiveSimulation(short, one_query=False)
    observations, contexts = simulation.buffers()
    row, number = np.zeros(1, np.int64), np.zeros(1)
    generator = np.random.default_rng(0)
    rates, budgets = np.full(1, 100.0), np.full(1, np.nan)
    simulation.start(row, [generator], rates, budgets, observations, contexts)
    actions = np.zeros((1, simulation.action_size), np.int64)
    while simulation.status[0] == DECISION:
        simulation.step(actions, observations, contexts, number, number)
    simulation.shut()


class _LiveEnv(InfraMindEnv):
    """What makes an environment live."""

    simulation: LiveSimulation

    def _simulate(self, arguments: dict[str, Any]) -> LiveSimulation:
        return LiveSimulation(live_config(arguments), one_query=self.one_query)

    def models_up(self) -> int:
        """Bit mask of the models that can be routed to, as their servers say, not the last step."""
        servers = self.simulation.servers
        if servers is None:
            return super().models_up()
        return servers.watcher.up & self.simulation.models_up

    def close(self) -> None:
        """Give up what is in flight and let go of the servers, which go on running."""
        self.simulation.shut()
        super().close()


class ExecutorLiveEnv(_LiveEnv, ExecutorEnv):
    """`InfraMind-Executor-v0` on live servers: route every agent call of one query.

    ## Description

    Spaces, rewards, costs and records are those of `InfraMind-Executor-v0`; see there. The calls go
    to the vLLM servers of a pool (`inframind pool up --pool FILE` starts them), their answers are
    graded, and time is the wall clock's: it goes on while the agent thinks. The other queries of
    the sweep are sent by the `background` router, when they arrive and the environment is stepped.

    A server that is down or asleep is masked out (`action_masks()`), and used again when it comes
    back. A call that fails is sent again, to another server if need be, and counts as a wrong
    answer when it has failed for good. Call `close()`: it gives up what is in flight.

    ## Arguments

    See `inframind_gym.orchestration.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """


class StreamLiveEnv(_LiveEnv, StreamEnv):
    """`InfraMind-Stream-v0` on live servers: a whole sweep of queries, every decision the agent's.

    ## Description

    As `InfraMind-ExecutorLive-v0` is to `InfraMind-Executor-v0`. Queries arrive when their time has
    come; a policy that is slow to decide makes all of them wait.

    ## Arguments

    See `inframind_gym.orchestration.config.LiveConfig`.

    ## Version History

    * v0: first version.
    """
