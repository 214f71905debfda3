"""Streams of queries side by side, and the queries that are answered in them."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import inframind_gym  # noqa: F401
from agents.config import InfraMindConfig
from agents.runs import seed_of
from inframind_gym.envs.routing.spec import PolicySpec
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies.inframind import Player, draw, kinds
from inframind_gym.policies.planner_network import PLAN_DRAWS
from inframind_gym.simulator.workflow.dispatch import PLAN_ACTIONS
from inframind_gym.simulator.workflow.state import COMPLETED
from inframind_gym.simulator.workflow.topology import MAX_NODES, TOPOLOGIES

Array = NDArray[Any]

EPISODES, DRAWS = 0, 1  # uses of a seed


class Batch(NamedTuple):
    """Q answered queries and their n decisions, query by query."""

    records: Array  # (Q,) COMPLETED
    of: Array  # (n,) query of each decision, 0..Q-1
    node: Array  # (n,) its place in the workflow
    resource: Array  # (n, 1 + M·F) remaining budget and telemetry that were observed
    log_prob: Array  # (n,) of the route when it was drawn
    decided_s: Array  # (n,) time of the decision

    def column(self, name: str) -> Array:
        """Return (n,) what `records` say of the decisions, such as "model"."""
        values: Array = self.records[name][self.of]
        return values[np.arange(len(values)), self.node] if values.ndim == 2 else values


class Streams:
    """A stream of queries in every row, and notes of every decision.

    Args:
        config: of the training.
        split: of the tasks, "train" or "val".
        rates: (E,) arrivals/min of the rows.
        changes: arguments of the environment.
    """

    def __init__(self, config: InfraMindConfig, split: str, rates: Array, **changes: Any) -> None:
        arguments = config.env.arguments(split) | {"level": "joint", "observation": "index"}
        made = gym.make_vec("InfraMind-Stream-v0", num_envs=len(rates), **(arguments | changes))
        self.env = cast(StreamVectorEnv, made.unwrapped)
        self.spec, self.rates = self.env.policy_spec(), rates
        size = (len(rates), self.env.simulation.num_queries)
        resource = self.spec.layout.resource
        self.records = np.zeros(size, COMPLETED)
        self.resource = np.zeros((*size, MAX_NODES, resource.stop - resource.start), np.float32)
        self.log_prob = np.zeros((*size, MAX_NODES), np.float32)
        self.decided_s = np.zeros((*size, MAX_NODES))

    def begin(self, *key: int) -> None:
        """Start a stream in every row; all luck is a function of the key."""
        seeds = [seed_of(*key, EPISODES, row) for row in range(len(self.rates))]
        options = {"arrival_rate_per_min": self.rates}
        self._observations, _ = self.env.reset(seed=seeds, options=options)
        self._rng = np.random.default_rng([*key, DRAWS])
        self.running = np.ones(len(self.rates), np.bool_)

    def step(self, player: Player, *, sample: bool = True) -> Array:
        """Take one decision in every running row; returns the (row, query) pairs (k, 2) answered.

        Args:
            player: plans queries that have arrived and routes calls that are ready.
            sample: draw actions; otherwise the likeliest are taken.
        """
        contexts = self.env.contexts()
        uniforms = self._rng.random((len(contexts), PLAN_DRAWS))
        actions = np.zeros((len(contexts), PLAN_ACTIONS + 1), np.int64)
        plan, route = (np.flatnonzero(self.running & due) for due in kinds(contexts))
        if len(plan):
            drawn = uniforms[plan] if sample else None
            actions[plan, :PLAN_ACTIONS] = player.plans(contexts[plan], drawn)
        if len(route):
            due, resource = contexts[route], player.resource(self._observations[route])
            log_probs = player.log_probs(resource, due)
            chosen = draw(log_probs, uniforms[route, 0]) if sample else log_probs.argmax(axis=1)
            actions[route, -1] = chosen
            at = route, due["query"], due["node"]
            self.resource[at], self.decided_s[at] = resource, due["time_s"]
            self.log_prob[at] = log_probs[np.arange(len(route)), chosen]
        self._observations, _, over, _, _ = self.env.step(actions)
        row, records = self.env.completed()
        row, records = row[self.running[row]], records[self.running[row]]
        self.records[row, records["query"]] = records
        self.running &= ~over
        return np.column_stack([row, records["query"]])

    def batch(self, pairs: Array) -> Batch:
        """Return answered queries, (row, query) pairs (Q, 2), with their decisions."""
        at = tuple(pairs.T)
        records = self.records[at]
        of, node = np.nonzero(np.arange(MAX_NODES) < records["num_nodes"][:, None])
        notes = (array[at][of, node] for array in (self.resource, self.log_prob, self.decided_s))
        return Batch(records, of, node, *notes)


def late(records: Array) -> Array:
    """Return (Q,) whether queries took longer than their budget."""
    return np.asarray(records["latency_s"] > records["budget_s"])


def measures(records: Array) -> dict[str, float]:
    """Return means over queries."""
    return {
        "solved": float(records["solved"].mean()),
        "goodput": float((records["solved"] * ~late(records)).mean()),
        "cost": float(records["cost"].mean()),
        "violation_rate": float(late(records).mean()),
        "latency_s": float(records["latency_s"].mean()),
        "num_agents": float(records["num_agents"].mean()),
    }


def shares(batch: Batch, spec: PolicySpec) -> dict[str, float]:
    """Return the shares of what was chosen."""
    chosen = {
        "model": (spec.models, batch.column("model")),
        "strategy": (spec.strategies, batch.column("strategy")),
        "topology": (TOPOLOGIES, batch.records["topology"]),
    }
    return {
        f"shares/{kind}/{name}": float((values == i).mean())
        for kind, (names, values) in chosen.items()
        for i, name in enumerate(names)
    }
