"""A closed loop on live servers: real prompts, answers that are graded, on the wall clock."""

from __future__ import annotations

import logging

import numpy as np

from inframind_gym.envs.backend import BackendSimulation
from inframind_gym.errors import InfraMindError
from inframind_gym.live.backend import VllmServers
from inframind_gym.live.config import LiveConfig, addresses
from inframind_gym.live.prompts import Prompts
from inframind_gym.simulator.workflow.backend import Backend, Reply, ScriptedBackend
from inframind_gym.simulator.workflow.dispatch import DECISION
from inframind_gym.tasks.grading import judge
from inframind_gym.tasks.sandbox import Sandbox, SandboxError

_log = logging.getLogger(__name__)


class LiveSimulation(BackendSimulation):
    """A closed loop on a pool of live servers, whose answers are graded.

    Args:
        config: what to run.
        one_query: as of `RoutingSimulation`.

    Raises:
        ConfigError: as of `RoutingSimulation`; a server of the pool has no address.
    """

    def __init__(self, config: LiveConfig, *, one_query: bool) -> None:
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
        """Give up the episode; close sandbox and connections. May be called twice."""
        super().close()
        if self.servers is not None:
            self.servers.close()
            self.servers = None
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _open(self) -> Backend:
        """Return the backend of an episode, its clock at 0."""
        if self._live.scripted_s is not None:
            reply = Reply(self._live.scripted_s)
            poll_s = self.pool.metrics_poll_s
            return ScriptedBackend(len(self.pool.models), lambda _: reply, poll_s=poll_s)
        if self._sandbox is None:
            compile_driver(self._live)
            self._sandbox = self._make_sandbox()
        if self.servers is None:
            self.servers = self._reach()
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

    def _reach(self) -> VllmServers:
        """Connect to the servers, of which at least one has to answer."""
        servers = VllmServers(self.pool, self._live.live, log=self._live.log)
        try:
            servers.watcher.wait_up(self._live.reach_s)
        except InfraMindError as error:
            if servers.watcher.up:
                _log.warning("pool %s: going on without those that are %s", self.pool.name, error)
                return servers
            servers.close()
            raise InfraMindError(
                f"no server of pool {self.pool.name!r} answers; {error}\n"
                f"Start them: inframind pool up --pool {self.config.pool}"
            ) from None
        except BaseException:
            servers.close()
            raise
        return servers

    def models_up_now(self) -> int:
        """Return the bit mask of the models whose servers are up now, not at the last step."""
        if self.servers is None:
            return super().models_up_now()
        return self.servers.watcher.up & self.models_up

    @property
    def ungraded(self) -> int:
        """Answers so far that could not be graded; they count as wrong."""
        return 0 if self.servers is None else self.servers.ungraded

    def _judge(self, task: int, text: str) -> bool:
        """Return whether a response solves a task; called by several threads at once."""
        if self._sandbox is None:
            raise InfraMindError("the environment is closed")
        tasks = self.tasks
        return judge(
            tasks.answers[task], text, self._sandbox, tasks.texts[task], task=tasks.ids[task]
        )


def compile_driver(config: LiveConfig) -> None:
    """Play a few queries on scripted servers: no live query shall wait for a compiler."""
    short = config.model_copy(update={"scripted_s": 1.0, "num_queries": 4})
    simulation = LiveSimulation(short, one_query=False)
    observations, row = simulation.observations(), np.zeros(1, np.int64)
    simulation.reset(row, [np.random.default_rng(0)], observations)
    actions = np.zeros((1, len(simulation.highs)), np.int64)
    while simulation.status[0] == DECISION:
        simulation.step(row, actions, observations)
    simulation.close()
