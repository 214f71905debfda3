"""Where experience is made: rows of closed loops in lockstep, acting with weights they are given.

A shard knows nothing of torch or of losses. It plays rounds: in a round every row has one sweep,
from empty servers to the last query. A round is played in phases of a number of steps, so that the
weights can change in between; a phase returns the queries that finished in it, each with all of its
decisions. Everything drawn is a function of (seed, round, shard) and the place in the round.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from agents.inframind.executor_inference import Executor, ExecutorShape, draw, log_softmax
from agents.planner.inference import NumpyPlanner
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies.checkpoint import part
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES

ENV_ID: Final = "InfraMind-Stream-v0"
PLAN_PARTS: Final = 2 + MAX_AGENTS  # topology, agents, roles: numbers of a plan, and its draws
PLANS_AHEAD: Final = 6  # plans made at once for a row's next queries
LONG_PHASE: Final = 256  # steps, where the weights stay as they are

# What the seeds of a training are for.
SWEEPS: Final = 0
DRAWS: Final = 1


@dataclass
class Episodes:
    """Q finished queries and their decisions, by node; N is MAX_NODES.

    Attributes:
        step: (Q,) when they finished, in steps of the round.
        task: (Q,) which task, an index into the task embeddings.
        domain: (Q,) its domain.
        topology: (Q,) of the plan.
        num_agents: (Q,) of the plan, 1..6.
        plan_roles: (Q, 6) roles of the plan, counted within the domain.
        solved: (Q,) 0 or 1.
        latency_s: (Q,) from arrival to the end.
        budget_s: (Q,) what it might have taken.
        cost: (Q,) latency over budget.
        length: (Q,) number of decisions n; of the following the first n of a row count.
        role: (Q, N) roles, indices into ROLES.
        action: (Q, N) routes m·S + s.
        log_prob: (Q, N) of the route when it was drawn.
        resource: (Q, N, 1 + M·F) what was seen of budget and servers.
        node_latency_s: (Q, N) from each decision to its node's last answer.
        elapsed_s: (Q, N) from each decision to the query's next, or its end.
    """

    step: NDArray[np.int64]
    task: NDArray[np.int64]
    domain: NDArray[np.int64]
    topology: NDArray[np.int64]
    num_agents: NDArray[np.int64]
    plan_roles: NDArray[np.int64]
    solved: NDArray[np.float32]
    latency_s: NDArray[np.float64]
    budget_s: NDArray[np.float64]
    cost: NDArray[np.float64]
    length: NDArray[np.int64]
    role: NDArray[np.int64]
    action: NDArray[np.int64]
    log_prob: NDArray[np.float32]
    resource: NDArray[np.float32]
    node_latency_s: NDArray[np.float32]
    elapsed_s: NDArray[np.float32]

    def __len__(self) -> int:
        """Q."""
        return len(self.step)

    def take(self, rows: Any) -> Episodes:
        """Those of the queries that an index or a slice selects."""
        return Episodes(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def decisions(self) -> NDArray[np.bool_]:
        """(Q, N) which entries of the arrays by node are decisions."""
        mask: NDArray[np.bool_] = np.arange(MAX_NODES) < self.length[:, None]
        return mask


def concatenate(parts: Sequence[Episodes]) -> Episodes:
    """All queries of several parts, in their order."""
    return Episodes(
        **{
            f.name: np.concatenate([getattr(episodes, f.name) for episodes in parts])
            for f in fields(Episodes)
        }
    )


def by_step(parts: Sequence[Episodes]) -> Episodes:
    """All queries in the order (step, shard, row), whatever carried the shards out."""
    episodes = concatenate(parts)
    return episodes.take(np.argsort(episodes.step, kind="stable"))


@dataclass
class Phase:
    """What a phase gave.

    Attributes:
        episodes: the queries that finished, in the order (step, row).
        decisions: how many the rows made, plans included.
        running: rows whose sweep is not over.
    """

    episodes: Episodes
    decisions: int
    running: int


class Shard:
    """Rows that step together.

    Args:
        env: arguments of the environment, as JSON; level and observation are set here.
        rows: E.
        shard: number of this shard.
        seed: of the training.
        network: keyword arguments of `ExecutorShape`, but for the pool's numbers.
        see_system: whether the telemetry is seen; otherwise it is 0.
        deterministic: take the likeliest action instead of drawing.
    """

    def __init__(
        self,
        env: Mapping[str, Any],
        rows: int,
        shard: int,
        seed: int,
        network: Mapping[str, Any],
        see_system: bool = True,
        deterministic: bool = False,
    ) -> None:
        limit_threads()
        made = gym.make_vec(
            ENV_ID, num_envs=rows, **{**env, "level": "joint", "observation": "index"}
        )
        self.env = cast(StreamVectorEnv, made.unwrapped)
        self.spec = self.env.policy_spec()
        self.shape = ExecutorShape(self.spec.num_models, self.spec.num_strategies, **network)
        self.rows, self.shard, self.seed = rows, shard, seed
        self.see_system, self.deterministic = see_system, deterministic
        queries = self.env.simulation.num_queries
        size = (rows, queries, MAX_NODES)
        self._log_prob = np.zeros(size, np.float32)
        self._resource = np.zeros((*size, self.shape.resource_size), np.float32)
        self._decided_s = np.zeros(size, np.float64)
        self._plan = np.zeros((rows, queries, PLAN_PARTS), np.int64)
        self._planned = np.zeros(rows, np.int64)  # how many of a row's queries have a plan
        self._asked = np.zeros(rows, np.int64)  # how many of these were asked for
        self._contexts = self.env.contexts()
        self._observations = np.zeros((rows, 0), np.float32)
        self._running = np.zeros(rows, np.bool_)
        self._step = 0
        self._rng = np.random.default_rng(0)
        self._plan_uniforms = np.zeros((rows, queries, PLAN_PARTS))

    def facts(self) -> dict[str, Any]:
        """What a learner has to know of the environment."""
        return {
            "task_embeddings": np.array(self.spec.task_embeddings),
            "role_embeddings": np.array(self.spec.role_embeddings),
            "models": self.spec.models,
            "strategies": self.spec.strategies,
            "num_queries": self.env.simulation.num_queries,
        }

    def begin(self, round_: int, rates_per_min: Sequence[float]) -> None:
        """Start a new sweep in every row, at (E,) rates."""
        keys = [[self.seed, SWEEPS, round_, self.shard, row] for row in range(self.rows)]
        seeds = [int(np.random.SeedSequence(key).generate_state(1)[0]) for key in keys]
        self._observations, _ = self.env.reset(
            seed=seeds, options={"arrival_rate_per_min": np.asarray(rates_per_min, np.float64)}
        )
        self._contexts = self.env.contexts()
        self._rng = np.random.default_rng([self.seed, DRAWS, round_, self.shard])
        self._plan_uniforms = self._rng.random(self._plan_uniforms.shape)
        self._running[:] = True
        self._planned[:] = 0
        self._asked[:] = 0
        self._step = 0

    def play(self, weights: Mapping[str, NDArray[Any]], steps: int) -> Phase:
        """Play a phase.

        Args:
            weights: "executor.…" and "planner.…".
            steps: at most; fewer when all sweeps are over.
        """
        executor = Executor(
            part(weights, "executor."), self.shape, self.spec.role_embeddings, np.float32
        )
        planner = NumpyPlanner(part(weights, "planner."), np.float32)
        self._planned = self._asked.copy()  # the weights have changed: plan the others anew
        finished: list[tuple[NDArray[np.int64], NDArray[Any], int]] = []
        decisions = 0
        uniforms = self._rng.random((steps, self.rows))
        actions = np.zeros((self.rows, PLAN_PARTS + 1), np.int64)
        for step in range(steps):
            if step and not self._running.any():
                break
            plans = self._contexts["kind"] == PLAN
            routes = np.flatnonzero(~plans & self._running)
            if len(routes):
                actions[routes, PLAN_PARTS] = self._route(executor, routes, uniforms[step, routes])
            rows = np.flatnonzero(plans & self._running)
            if len(rows):
                actions[rows, :PLAN_PARTS] = self._plans(planner, rows)
            self._observations, _, over, _, _ = self.env.step(actions)
            self._contexts = self.env.contexts()
            decisions += int(self._running.sum())
            of, records = self.env.completed()
            alive = self._running[of]
            finished.append((of[alive], records[alive], self._step))
            self._running &= ~over
            self._step += 1
        return Phase(self._gather(finished), decisions, int(self._running.sum()))

    def evaluate(
        self, weights: Mapping[str, NDArray[Any]], round_: int, rates_per_min: Sequence[float]
    ) -> Episodes:
        """Play whole sweeps with the same weights."""
        self.begin(round_, rates_per_min)
        phases = [self.play(weights, LONG_PHASE)]
        while phases[-1].running:
            phases.append(self.play(weights, LONG_PHASE))
        return concatenate([phase.episodes for phase in phases])

    def _route(
        self, executor: Executor, rows: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> NDArray[np.int64]:
        """Routes for the decisions that wait in `rows`; notes what was seen and how likely."""
        contexts = self._contexts[rows]
        layout = self.spec.layout
        resource = self._observations[rows, layout.resource.start : layout.resource.stop]
        if not self.see_system:
            resource = resource.copy()
            resource[:, 1:] = 0.0
        queries = executor.project(self.spec.task_embeddings[contexts["task"]])
        log_probs = log_softmax(executor(queries, contexts["role"], resource))
        routes = log_probs.argmax(axis=1) if self.deterministic else draw(log_probs, uniforms)
        at = (rows, contexts["query"], contexts["node"])
        self._log_prob[at] = log_probs[np.arange(len(rows)), routes]
        self._resource[at] = resource
        self._decided_s[at] = contexts["time_s"]
        return np.asarray(routes, np.int64)

    def _plans(self, planner: NumpyPlanner, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Plans (k, 8) for the queries that wait in `rows`; those of the next ones on the way.

        A plan depends on the weights, the query and its own draws alone, and making a few more at
        the same time costs little.
        """
        query = self._contexts["query"][rows]
        while (query >= self._planned[rows]).any():
            self._plan_ahead(planner)
        self._asked[rows] = query + 1
        plans: NDArray[np.int64] = self._plan[rows, query]
        return plans

    def _plan_ahead(self, planner: NumpyPlanner) -> None:
        """Plan the next queries of the rows that have few plans left."""
        last = self._plan.shape[1]
        short = self._running & (self._planned - self._asked <= PLANS_AHEAD // 3)
        until = np.where(short, np.minimum(self._asked + PLANS_AHEAD, last), self._planned)
        query = self._planned[:, None] + np.arange(PLANS_AHEAD)
        of, column = np.nonzero(query < until[:, None])
        query = query[of, column]
        task = self.env.simulation.state.task[of, query]
        topology, count, roles = planner.plan(
            planner.encode(self.spec.task_embeddings[task]),
            self.env.simulation.tasks.domain[task].astype(np.int64),
            None if self.deterministic else self._plan_uniforms[of, query],
        )
        self._plan[of, query, 0] = topology
        self._plan[of, query, 1] = count - 1
        self._plan[of, query, 2:] = roles
        self._planned = until

    def _gather(self, finished: Sequence[tuple[NDArray[np.int64], NDArray[Any], int]]) -> Episodes:
        """Finished queries, step by step, with what was noted of their decisions."""
        of = np.concatenate([rows for rows, _, _ in finished])
        records = np.empty(len(of), finished[0][1].dtype)  # np.concatenate would copy by field
        np.concatenate([part.view(np.uint8) for _, part, _ in finished], out=records.view(np.uint8))
        step = np.repeat([step for _, _, step in finished], [len(rows) for rows, _, _ in finished])
        query = records["query"]
        length = records["num_nodes"].astype(np.int64)
        here = np.arange(MAX_NODES) < length[:, None]
        decided_s = self._decided_s[of, query]
        following = np.concatenate([decided_s[:, 1:], records["finish_s"][:, None]], axis=1)
        last = np.arange(MAX_NODES) == length[:, None] - 1
        following = np.where(last, records["finish_s"][:, None], following)
        model = records["model"].astype(np.int64)
        action = model * self.shape.num_strategies + records["strategy"]
        plan = self._plan[of, query]
        return Episodes(
            step=step,
            task=records["task"].astype(np.int64),
            domain=records["domain"].astype(np.int64),
            topology=plan[:, 0],
            num_agents=plan[:, 1] + 1,
            plan_roles=plan[:, 2:],
            solved=records["solved"].astype(np.float32),
            latency_s=records["latency_s"],
            budget_s=records["budget_s"],
            cost=records["cost"],
            length=length,
            role=np.where(here, records["role"], 0).astype(np.int64),
            action=np.where(here, action, 0),
            log_prob=self._log_prob[of, query],
            resource=self._resource[of, query],
            node_latency_s=records["node_latency_s"].astype(np.float32),
            elapsed_s=np.where(here, following - decided_s, 0.0).astype(np.float32),
        )


def limit_threads() -> None:
    """Let BLAS use one thread: the matrices are small, and the cores belong to other shards."""
    try:
        threadpoolctl: Any = importlib.import_module("threadpoolctl")
    except ImportError:  # then the environment (OPENBLAS_NUM_THREADS) decides
        return
    threadpoolctl.threadpool_limits(1)
