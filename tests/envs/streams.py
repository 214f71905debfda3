"""Carries policies through whole sweeps of the vector environment, one seed a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies import BasePolicy, Contexts, Policy

Seen, Rows = NDArray[np.float32], NDArray[np.int64]
STREAM = "InfraMind-Stream-v0"
EXECUTOR = "InfraMind-Executor-v0"
PLANNER = "InfraMind-Planner-v0"
PLACEMENT = "InfraMind-Placement-v0"


class Cycle(BasePolicy):
    """Takes some actions in turn, each row from its start; the load does not move it."""

    name = "cycle"

    def __init__(self, actions: Sequence[int]) -> None:
        self.actions = np.asarray(actions, np.int64)
        self.taken: NDArray[np.int64] = np.zeros(0, np.int64)

    def reset(self, spec: Any, seeds: Sequence[int]) -> None:
        super().reset(spec, seeds)
        self.taken = np.zeros(len(seeds), np.int64)

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        chosen = self.actions[self.taken[rows] % len(self.actions)]
        self.taken[rows] += 1
        return chosen


class ByPlace(BasePolicy):
    """The action is a function of (query, node): the same whenever and wherever it is asked."""

    name = "by_place"

    def __init__(self, salt: int = 0, num_actions: int = 15) -> None:
        self.salt, self.num_actions = salt, num_actions

    def act_batch(self, observations: Seen, contexts: Contexts, rows: Rows) -> Rows:
        place = contexts["query"].astype(np.int64) * 31 + contexts["node"] * 7 + self.salt * 101
        return place * 2654435761 % 1000003 % self.num_actions


def make_batch(num_envs: int, **arguments: Any) -> Any:
    """A vector Stream environment with index observations."""
    return gym.make_vec(STREAM, num_envs=num_envs, observation="index", **arguments)


def sweep(env: Any, policy: Policy, seeds: Sequence[int], **options: Any) -> list[NDArray[Any]]:
    """One sweep of every row under a policy.

    The environment has as many rows as there are seeds, and the policy gets the same ones; the
    options of `reset` hold until they are changed.

    Returns:
        Per row, its completed queries in the order of the sweep.
    """
    observations, _ = env.reset(seed=list(seeds), options=options)
    policy.reset(env.policy_spec(), seeds)
    rows = np.arange(len(seeds))
    running = np.ones(len(seeds), np.bool_)
    done: list[list[NDArray[Any]]] = [[] for _ in seeds]
    while running.any():
        observations, _, over, _, _ = env.step(policy.act_batch(observations, env.contexts(), rows))
        owners, records = env.completed()
        for row in np.unique(owners[running[owners]]).tolist():
            done[row].append(records[owners == row])
            if hasattr(policy, "observe"):
                policy.observe(records[owners == row], row)
        running &= ~over
    joined = [np.concatenate(parts) for parts in done]
    return [records[np.argsort(records["query"])] for records in joined]


def on_time(records: NDArray[Any]) -> float:
    """Share of the queries that met their own budget."""
    return float(np.mean(records["latency_s"] <= records["budget_s"]))
