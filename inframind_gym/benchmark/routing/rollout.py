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
        done = np.zeros((len(cells), env.simulation.num_queries), COMPLETED)
        running = np.ones(len(cells), dtype=np.bool_)
        actions = np.zeros_like(env.action_space.sample(), dtype=np.int64)
        while running.any():
            if self.stop():
                raise StoppedError
            rows = np.flatnonzero(running)
            contexts = env.contexts()
            with blame(first.policy):
                chosen = policy.act_batch(observations[rows], contexts[rows], rows)
                valid = checked(first.policy, chosen, env.single_action_space, len(rows))
                actions[rows] = valid.reshape(len(rows), *actions.shape[1:])
                observations, _, terminated, truncated, _ = env.step(actions)
            of, records = env.completed()
            if not running.all():  # a row that is over has begun its next episode
                mine = running[of]
                of, records = of[mine], records[mine]
            done[of, records["query"]] = records
            if of.size:
                self.progress(of.size)
            if observe is not None:
                with blame(first.policy):
                    for row in np.unique(of).tolist():
                        observe(records[of == row], row)
            over = np.flatnonzero(running & (terminated | truncated)).tolist()
            running[over] = False
            if over:
                yield [(cells[row], _priced(env, row, done[row]), names) for row in over]

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
        options = {
            "arrival_rate_per_min": np.array([cell.rate_per_min for cell in cells]),
            "budget_s": np.array([nan if c.budget_s == "tiers" else c.budget_s for c in cells]),
        }
        with blame(first.policy):
            policy = resolve_policy(first.policy)
            env = self._environment(policy, first.workload, len(cells))
            observations, _ = env.reset(seed=[c.episode_seed for c in cells], options=options)
            policy.reset(env.policy_spec(), [c.policy_seed for c in cells])
            foresee = getattr(policy, "foresee", None)
            if foresee is not None:  # a bound: it sees more than a contestant
                foresee(env.simulation)
        return policy, env, observations

    def _environment(self, policy: Policy, workload: str, rows: int) -> StreamVectorEnv:
        """Return the last environment if it fits, else a new one."""
        kwargs = {**env_kwargs(self.suite, workload, policy), "num_envs": rows}
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


def _priced(env: StreamVectorEnv, row: int, completed: NDArray[np.void]) -> NDArray[np.void]:
    """Return the queries of a row's episode, which has just ended, with what they cost."""
    pool = env.simulation.pool
    return with_prices(pool, completed, env.calls(row) if pool.has_token_prices else None)
