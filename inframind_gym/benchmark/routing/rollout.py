"""Runs cells: one policy in several episodes in lock-step, each a row of one vector environment.

A row's result depends on its own cell alone: not on the rows beside it, not on the size of the
batch, not on the process. That is the environment's and the policies' contract, and the tests hold
both to it.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, Final, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from inframind_gym.benchmark.errors import StoppedError, blame, checked
from inframind_gym.benchmark.families import Player
from inframind_gym.benchmark.routing.metrics import QueryLayout
from inframind_gym.benchmark.routing.prices import with_prices
from inframind_gym.benchmark.routing.records import Names
from inframind_gym.benchmark.routing.suite import RoutingCell, RoutingSuite
from inframind_gym.benchmark.routing.window import Window
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies import Policy, feedback_of, requires_of, resolve_policy
from inframind_gym.simulator.server.pool import load_pool
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.simulator.workflow.topology import CUSTOM, TOPOLOGIES
from inframind_gym.tasks.taskset import DOMAINS

if TYPE_CHECKING:
    from inframind_gym.envs.routing.live import StreamLiveEnv

ENV_IDS: Final = {"surrogate": "InfraMind-Stream-v0", "vllm": "InfraMind-StreamLive-v0"}

Finished = tuple[RoutingCell, NDArray[np.void], Names]  # queries as COMPLETED records


def env_kwargs(suite: RoutingSuite, workload: str, policy: Policy) -> dict[str, Any]:
    """Return the JSON arguments of the environment in which a policy meets a workload."""
    kwargs: dict[str, Any] = {
        **{name: getattr(suite, name) for name in ("pool", "tasks", "split", "arrivals")},
        **{name: getattr(suite, name) for name in ("scheduler", "execution", "metrics_poll_s")},
        "workload": suite.source("workloads", workload),
        "num_queries": suite.queries_of(workload),
        "system_features": list(suite.system_features),
        "down_models": list(suite.down_models),
        "observation": "index",
    }
    if load_pool(suite.pool).has_token_prices:
        kwargs["record_calls"] = True
    if suite.backend == "vllm":
        kwargs["live"] = suite.live.model_dump(mode="json")
    return kwargs | requires_of(policy)


@dataclass
class Simulator(Player):
    """Makes environments and runs batches of cells in them."""

    suite: RoutingSuite
    stop: Callable[[], bool] = lambda: False
    progress: Callable[[int], None] = lambda _: None
    began: float = field(default=0.0, init=False)
    _made: tuple[Any, StreamVectorEnv] | None = field(default=None, init=False)

    def run(self, cells: Sequence[RoutingCell]) -> Iterator[list[Finished]]:
        """Run cells; yields each with its completed queries and the names of their numbers."""
        first = cells[0]
        policy, env, observations = self._start(cells)
        self.began = time.monotonic()
        names = names_of(env)
        observe = feedback_of(policy)
        window = self._window(env, cells)
        done = np.zeros((len(cells), window.count), COMPLETED)
        running = np.ones(len(cells), dtype=np.bool_)
        actions = np.zeros_like(env.action_space.sample(), dtype=np.int64)
        contexts = env.contexts()
        while running.any():
            if self.stop():
                raise StoppedError
            rows = np.flatnonzero(running)
            with blame(first.policy):
                chosen = policy.act_batch(observations[rows], contexts[rows], rows)
                valid = checked(first.policy, chosen, env.single_action_space, len(rows))
                actions[rows] = valid.reshape(len(rows), *actions.shape[1:])
                observations, _, terminated, truncated, _ = env.step(actions)
            of, records = env.completed()
            if not running.all():  # a row that is over has begun its next episode
                mine = running[of]
                of, records = of[mine], records[mine]
            scored = window.keep(done, of, records)
            if scored:
                self.progress(scored)
            if observe is not None:
                with blame(first.policy):
                    for row in np.unique(of).tolist():
                        observe(records[of == row], row)
            contexts = env.contexts()
            ended = terminated | truncated | window.over(contexts["time_s"])
            over = np.flatnonzero(running & ended).tolist()
            running[over] = False
            if self.watch is not None:
                for row in over:
                    self.watch(env, row, done[row])
            if over:
                yield [
                    self._finished(env, cells[row], row, done[row], names, window) for row in over
                ]

    def _window(self, env: StreamVectorEnv, cells: Sequence[RoutingCell]) -> Window:
        """Return the queries that are scored."""
        return Window.whole(len(cells), env.simulation.num_queries)

    def _finished(
        self,
        env: StreamVectorEnv,
        cell: RoutingCell,
        row: int,
        done: NDArray[np.void],
        names: Names,
        window: Window,
    ) -> Any:
        """Return what is encoded of a row's episode, which has just ended: with prices."""
        pool = env.simulation.pool
        calls = env.calls(row) if pool.has_token_prices else None
        return cell, with_prices(pool, done, calls), names

    def ask(self, cell: RoutingCell) -> None:
        """Make the policy and the environment of a cell, and reset both."""
        self._start([cell])

    def warm_up(self, cell: RoutingCell) -> None:
        """Take one step as in a cell, but with the first action."""
        _, env, _ = self._start([cell])
        env.step(np.zeros_like(env.action_space.sample()))

    def _start(
        self, cells: Sequence[RoutingCell]
    ) -> tuple[Policy, StreamVectorEnv, NDArray[np.float32]]:
        """Return a policy and its environment at the begin of cells, and what it sees."""
        first = cells[0]
        with blame(first.policy):
            policy = self._policy(first)
            env = self._environment(self._kwargs(first, policy), len(cells))
            seeds = [c.episode_seed for c in cells]
            observations, _ = env.reset(seed=seeds, options=self._options(cells))
            policy.reset(env.policy_spec(), [c.policy_seed for c in cells])
            foresee = getattr(policy, "foresee", None)
            if foresee is not None:  # a bound: it sees more than a contestant
                foresee(env.simulation)
        return policy, env, observations

    def _policy(self, cell: RoutingCell) -> Policy:
        """Make the policy of a cell."""
        return resolve_policy(cell.policy)

    def _kwargs(self, cell: RoutingCell, policy: Policy) -> dict[str, Any]:
        """Return the arguments of the environment of a cell's group."""
        kwargs = env_kwargs(self.suite, cell.workload, policy)
        return kwargs if self.watch is None else {**kwargs, "record_calls": True}

    def _options(self, cells: Sequence[RoutingCell]) -> dict[str, Any]:
        """Return the options of the environment's reset."""
        return {
            "arrival_rate_per_min": np.array([cell.rate_per_min for cell in cells]),
            "budget_s": np.array([nan if c.budget_s == "tiers" else c.budget_s for c in cells]),
        }

    def _environment(self, arguments: dict[str, Any], rows: int) -> StreamVectorEnv:
        """Return the last environment if it fits, else a new one."""
        kwargs = {**arguments, "num_envs": rows}
        if kwargs.get("record_calls"):  # they are read when an episode is over
            kwargs["autoreset_mode"] = "NextStep"
        if self._made is None or self._made[0] != kwargs:
            if self._made is not None:
                self._made[1].close()
            made = gym.make_vec(ENV_IDS["surrogate"], **kwargs)
            self._made = (kwargs, cast(StreamVectorEnv, made.unwrapped))
        return self._made[1]


def env_spec(suite: RoutingSuite, workload: str, policy: Policy) -> dict[str, Any]:
    """Return the JSON spec of the single environment in which a policy meets a workload."""
    spec = copy.deepcopy(gym.spec(ENV_IDS[suite.backend]))
    spec.kwargs.update(env_kwargs(suite, workload, policy))
    return dict(json.loads(spec.to_json()))


def names_of(env: StreamVectorEnv | StreamLiveEnv) -> Names:
    """Return the names of the numbers in a run's records."""
    spec, tasks, pool = env.policy_spec(), env.simulation.tasks, env.simulation.pool
    return Names(
        QueryLayout(spec.models, spec.strategies, (*TOPOLOGIES, CUSTOM), pool.has_prices),
        np.array(DOMAINS),
        np.array(tasks.ids),
        np.array(tasks.datasets),
    )
