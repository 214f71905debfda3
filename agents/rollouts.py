"""Episodes of the closed loop side by side, and the queries that finish in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from agents.runs import seed_of
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies.inframind import Executor, draw, log_softmax
from inframind_gym.policies.planner_network import PLAN_DRAWS, ROLE_START, NumpyPlanner
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import PLAN
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, MAX_NODES, TOPOLOGIES

Array = NDArray[np.floating[Any]]
Indices = NDArray[np.int64]

ENV_ID: Final = "InfraMind-Stream-v0"
EPISODES, DRAWS = 0, 1  # uses of a training's seed; others are in `agents/inframind.py`


@dataclass
class Batch:
    """Q finished queries and their decisions, by node; N is MAX_NODES.

    Of the arrays by node the first `num_nodes` entries of a row are decisions, the rest is padding.
    """

    records: NDArray[Any]  # (Q,) COMPLETED
    log_prob: Array  # (Q, N) of the route when it was drawn
    resource: Array  # (Q, N, 1 + M·F) remaining budget and telemetry that were observed
    elapsed_s: Array  # (Q, N) from each decision to the query's next, or its end

    def __len__(self) -> int:
        """Return Q."""
        return len(self.records)

    def take(self, rows: slice) -> Batch:
        """Return some of the queries."""
        return Batch(*(array[rows] for array in vars(self).values()))

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Entries (Q, N) of the arrays by node that are decisions."""
        mask: NDArray[np.bool_] = np.arange(MAX_NODES) < self.records["num_nodes"][:, None]
        return mask

    @property
    def late(self) -> NDArray[np.bool_]:
        """Queries (Q,) that took longer than their budget."""
        return np.asarray(self.records["latency_s"] > self.records["budget_s"])

    def plans(self) -> tuple[Indices, Indices, Indices]:
        """Return topologies (Q,), agent counts (Q,) and roles (Q, 6) within the domain's."""
        count = self.records["num_agents"].astype(np.int64)
        roles = self.records["role"][:, :MAX_AGENTS].astype(np.int64)
        roles -= ROLE_START[self.records["domain"]][:, None]
        roles[np.arange(MAX_AGENTS) >= count[:, None]] = 0
        return self.records["topology"].astype(np.int64), count, roles

    def routes(self, spec: PolicySpec) -> Indices:
        """Return the actions m·S + s (n,) of all decisions."""
        model, strategy = (self.records[name][self.mask] for name in ("model", "strategy"))
        return spec.action(model.astype(np.int64), strategy.astype(np.int64))

    def quality(self, reward: Literal["solved", "goodput"]) -> Array:
        """Return q (Q,): 1 for a query that is solved, or that is solved within its budget."""
        solved = self.records["solved"].astype(np.float32)
        return solved if reward == "solved" else solved * ~self.late

    def node_rewards(self, q: Array, weight: float) -> Array:
        """Return r_i = q - λ·l_i/β (Q, N), l_i the latency of the decision's own node."""
        ratio = self.records["node_latency_s"] / self.records["budget_s"][:, None]
        return np.asarray(q[:, None] - weight * ratio, np.float32)

    def at_the_end(self, values: Array) -> Array:
        """Return (Q, N) with a query's value (Q,) at its last decision and 0 elsewhere."""
        last = np.arange(MAX_NODES) == self.records["num_nodes"][:, None] - 1
        return np.where(last, values[:, None], 0.0).astype(np.float32)

    def spread(self, cost: Array) -> Array:
        """Return costs (Q, N) that spread a query's (Q,) by the time from decision to decision.

        Calls of one wave are decided at the same instant: the last of them bears the wave's cost,
        as in `InfraMind-Executor-v0`. The rows sum to `cost`.
        """
        total = self.elapsed_s.sum(axis=1, keepdims=True)
        share = self.elapsed_s / np.maximum(total, 1e-9)
        spread = np.where(total > 0.0, share * cost[:, None], self.at_the_end(cost))
        return spread.astype(np.float32)

    def charts(self, spec: PolicySpec) -> dict[str, float]:
        """Return metrics of the queries and the shares of what was chosen."""
        routes = self.routes(spec)
        charts = {
            "charts/violation_rate": self.late.mean(),
            "charts/solve_rate": self.records["solved"].mean(),
            "charts/goodput": (self.records["solved"] * ~self.late).mean(),
            "charts/num_agents": self.records["num_agents"].mean(),
        }
        for kind, names, chosen in (
            ("model", spec.models, spec.model_of(routes)),
            ("strategy", spec.strategies, spec.strategy_of(routes)),
            ("topology", TOPOLOGIES, self.records["topology"]),
        ):
            share = np.bincount(chosen, minlength=len(names)) / len(chosen)
            charts |= {f"shares/{kind}/{name}": share[i] for i, name in enumerate(names)}
        return {name: float(value) for name, value in charts.items()}


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Return all queries of several batches, in their order."""
    return Batch(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0]))
    )


class Rollouts:
    """Rows of the closed loop, each an episode at its own arrival rate.

    Args:
        environment: arguments of the environment; level and observation are set here.
        rows: E.
        see_system: whether the telemetry is seen; otherwise it is 0.

    Attributes:
        spec: the pool, the tasks and the roles.
        queries: of an episode in all rows.
        running: (E,) rows whose episode is not over.
    """

    def __init__(self, environment: dict[str, Any], rows: int, see_system: bool = True) -> None:
        made = gym.make_vec(
            ENV_ID, num_envs=rows, **environment, level="joint", observation="index"
        )
        self.env = cast(StreamVectorEnv, made.unwrapped)
        self.spec = self.env.policy_spec()
        self.rows, self.see_system = rows, see_system
        size = (rows, self.env.simulation.num_queries, MAX_NODES)
        self.queries = size[0] * size[1]
        layout = self.spec.layout.resource
        self._seen = slice(layout.start, layout.stop)
        self._log_prob = np.zeros(size, np.float32)
        self._resource = np.zeros((*size, layout.stop - layout.start), np.float32)
        self._decided_s = np.zeros(size)
        self.running = np.zeros(rows, np.bool_)

    def begin(self, seed: int, round_: int, rates_per_min: Array) -> None:
        """Start a new episode in every row, at (E,) rates; all luck is a function of the seeds."""
        self._observations, _ = self.env.reset(
            seed=[seed_of(seed, EPISODES, round_, row) for row in range(self.rows)],
            options={"arrival_rate_per_min": rates_per_min},
        )
        self._rng = np.random.default_rng([seed, DRAWS, round_])
        self.running[:] = True

    def step(
        self, executor: Executor, planner: NumpyPlanner, *, deterministic: bool = False
    ) -> Batch:
        """Take one decision in every running row; returns the queries that finished.

        Args:
            executor: routes calls that are ready.
            planner: plans queries that have arrived.
            deterministic: take the likeliest action instead of drawing.
        """
        contexts = self.env.contexts()
        embeddings = self.spec.task_embeddings[contexts["task"]]  # (E, 384)
        uniforms = self._rng.random((self.rows, PLAN_DRAWS))
        actions = np.zeros((self.rows, PLAN_ACTIONS + 1), np.int64)
        is_plan = contexts["kind"] == PLAN
        rows = np.flatnonzero(self.running & is_plan)
        if len(rows):
            topology, count, roles = planner.plan(
                planner.encode(embeddings[rows]),
                contexts["domain"][rows].astype(np.int64),
                None if deterministic else uniforms[rows],
            )
            actions[rows, :PLAN_ACTIONS] = np.column_stack([topology, count - 1, roles])
        rows = np.flatnonzero(self.running & ~is_plan)
        if len(rows):
            resource = self._observations[rows, self._seen]
            if not self.see_system:
                resource[:, 1:] = 0.0
            projected = executor.project(embeddings[rows])
            log_probs = log_softmax(executor(projected, contexts["role"][rows], resource))
            route = (
                log_probs.argmax(axis=1) if deterministic else draw(log_probs, uniforms[rows, 0])
            )
            actions[rows, PLAN_ACTIONS] = route
            at = (rows, contexts["query"][rows], contexts["node"][rows])
            self._log_prob[at] = log_probs[np.arange(len(rows)), route]
            self._resource[at] = resource
            self._decided_s[at] = contexts["time_s"][rows]
        self._observations, _, over, _, _ = self.env.step(actions)
        of, records = self.env.completed()
        of, records = of[self.running[of]], records[self.running[of]]
        self.running &= ~over
        return self._batch(of, records)

    def _batch(self, of: Indices, records: NDArray[Any]) -> Batch:
        """Return finished queries of the rows `of` with what was noted of their decisions."""
        at = (of, records["query"])
        decided_s, ended_s = self._decided_s[at], records["finish_s"][:, None]
        last = records["num_nodes"][:, None] - 1
        node = np.arange(MAX_NODES)
        following = np.where(node < last, np.roll(decided_s, -1, axis=1), ended_s)
        elapsed_s = np.where(node <= last, following - decided_s, 0.0)
        return Batch(records, self._log_prob[at], self._resource[at], elapsed_s)
