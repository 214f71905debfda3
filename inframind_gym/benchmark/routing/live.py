"""Runs cells on live servers: one episode after the other, on the wall clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.errors import (
    BenchmarkError,
    PolicyFailedError,
    StoppedError,
    blame,
    checked,
)
from inframind_gym.benchmark.families import Player
from inframind_gym.benchmark.routing.prices import with_prices
from inframind_gym.benchmark.routing.rollout import ENV_IDS, Finished, env_kwargs, names_of
from inframind_gym.benchmark.routing.suite import RoutingCell, RoutingSuite
from inframind_gym.envs.metrics import RouterExporter
from inframind_gym.envs.routing.live import StreamLiveEnv
from inframind_gym.errors import InfraMindError
from inframind_gym.policies import Policy, feedback_of, resolve_policy
from inframind_gym.progress import say
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.state import COMPLETED, CONTEXT


@dataclass
class LiveSimulator(Player):
    """Plays episodes on a pool's servers, as `rollout.Simulator` does on simulated ones.

    Every policy meets the same queries, arrivals and budgets; answers and latencies are the
    servers' own.

    Args:
        suite: Settings that all cells share.
        stop: Called between decisions, and while one is awaited.
        progress: Called with the number of queries that have finished.
        log: File that every call is appended to; None: none.
        export_port: Port at which metrics are shown (`docs/metrics.md`); None: they are not.

    Attributes:
        ungraded: Answers so far that could not be graded, and count as wrong.
    """

    suite: RoutingSuite
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None
    log: Path | None = None
    export_port: int | None = None
    ungraded: int = field(default=0, init=False)
    _exporter: RouterExporter | None = field(default=None, init=False)
    _made: tuple[Any, StreamLiveEnv] | None = field(default=None, init=False)

    def run(self, cells: Sequence[RoutingCell]) -> Iterator[list[Finished]]:
        """Run cells that share policy and workload, one by one.

        Raises:
            PolicyFailedError: The policy is a bound (answers of live servers cannot be foreseen),
                cannot play on this pool, or gave no valid action.
            InfraMindError: No server answers, all went down for good, or the metrics' port is in
                use.
        """
        if self.export_port is not None and self._exporter is None:
            aliases = load_pool(self.suite.pool).aliases
            self._exporter = RouterExporter(aliases, self.export_port)
            say(f"metrics: {self._exporter.url}")
        for cell in cells:
            policy, env = self._start(cell)
            done = self._episode(env, policy, cell)
            pool = env.simulation.pool
            calls = env.calls() if pool.has_token_prices else None
            yield [(cell, with_prices(pool, done, calls), names_of(env))]

    def ask(self, cell: RoutingCell) -> None:
        """Make the policy and the environment of a cell, and reset the policy."""
        policy, env = self._start(cell)
        with blame(cell.policy):
            policy.reset(env.policy_spec(), [cell.policy_seed])

    def _start(self, cell: RoutingCell) -> tuple[Policy, StreamLiveEnv]:
        with blame(cell.policy):
            policy = resolve_policy(cell.policy)
            if getattr(policy, "bound", False):
                raise PolicyFailedError(
                    cell.policy,
                    "knows what simulated servers will answer; live ones cannot be foreseen. "
                    "Leave it out with --policies.",
                )
        return policy, self._environment(policy, cell.workload)

    def close(self) -> None:
        """Release the servers, and show no more metrics."""
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = None
        self._leave()

    def _leave(self) -> None:
        if self._made is not None:
            self._made[1].close()
            self._made = None

    def _episode(self, env: StreamLiveEnv, policy: Policy, cell: RoutingCell) -> NDArray[np.void]:
        observe = feedback_of(policy)
        metrics = None if self._exporter is None else self._exporter.metrics
        budget_s = np.nan if cell.budget_s == "tiers" else cell.budget_s
        options = {"arrival_rate_per_min": cell.rate_per_min, "budget_s": budget_s}
        observation, _ = env.reset(seed=cell.episode_seed, options=options)
        if metrics is not None:
            metrics.watch(env, policy)
            metrics.began()
        with blame(cell.policy):
            policy.reset(env.policy_spec(), [cell.policy_seed])
        ungraded = env.simulation.ungraded
        done = np.zeros(env.simulation.num_queries, COMPLETED)
        row = np.zeros(1, np.int64)
        over = False
        while not over:
            self._raise_if_stopped()
            with blame(cell.policy):
                contexts = np.array([env.context()], CONTEXT)
                chosen = policy.act_batch(observation[None], contexts, row)
            action = checked(cell.policy, chosen, env.action_space, 1)[0]
            try:
                observation, _, over, _, _ = env.step(action)
            except InfraMindError as error:
                servers = env.simulation.servers
                if servers is None or servers.watcher.up:
                    raise
                raise BenchmarkError(
                    f"{cell}: {error}. Finished cells are kept, and so are the calls of this one "
                    f"({self.log}). Bring the servers up (inframind pool up --pool "
                    f"{self.suite.pool}); the same command goes on from there."
                ) from None
            if metrics is not None:
                metrics.stepped()
            records = env.completed()
            if len(records):
                done[records["query"]] = records
                self.progress(len(records))
                if observe is not None:
                    with blame(cell.policy):
                        observe(records, 0)
        if failed := int(done["failed_calls"].sum()):
            say(
                f"warning: {cell}: calls that failed: {failed}; they were sent again, or count as "
                f"wrong answers. Why: {self.log}"
            )
        ungraded = env.simulation.ungraded - ungraded
        if ungraded:
            self.ungraded += ungraded
            say(f"warning: {cell}: {ungraded} answers could not be graded, and count as wrong")
        return done

    def _environment(self, policy: Policy, workload: str) -> StreamLiveEnv:
        """Return the last environment if it fits, else a new one."""
        kwargs = env_kwargs(self.suite, workload, policy)
        kwargs["log"] = None if self.log is None else str(self.log)
        kwargs["record_calls"] = bool(kwargs.get("record_calls")) or self.export_port is not None
        if self._made is None or self._made[0] != kwargs:
            self._leave()
            made = gym.make(ENV_IDS["vllm"], disable_env_checker=True, **kwargs)
            self._made = (kwargs, cast(StreamLiveEnv, made.unwrapped))
            self._made[1].simulation.on_wait = self._raise_if_stopped
        return self._made[1]

    def _raise_if_stopped(self) -> None:
        if self.stop():
            raise StoppedError
