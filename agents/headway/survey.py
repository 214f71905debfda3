"""Experience: playing recipes, and what is seen of them.

Everything is learned from the records of finished queries, which any router has: what it decided,
whether the answer was right, and how long each node took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.headway.policy import RecipePolicy
from agents.headway.recipes import RecipeBook
from inframind_gym.envs.routing.vector import StreamVectorEnv
from inframind_gym.policies import Contexts
from inframind_gym.simulator.rng import STREAM_POLICY, uniform_array
from inframind_gym.simulator.workflow.topology import MAX_NODES
from inframind_gym.tasks import DOMAINS


class Played(NamedTuple):
    """n queries that were played to their end."""

    row: NDArray[np.int64]  # (n,) of the environment
    recipe: NDArray[np.int64]  # (n,)
    in_flight: NDArray[np.float64]  # (n, M) calls at each model when the query was planned
    records: NDArray[Any]  # (n,) COMPLETED


class RandomRecipes(RecipePolicy):
    """Every query is played by a recipe drawn from a book."""

    name = "random_recipes"

    def __init__(self, book: RecipeBook) -> None:
        self.book = book

    def choose(
        self,
        in_flight: NDArray[np.float64],
        rate_per_min: NDArray[np.float64],
        contexts: Contexts,
        rows: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Any recipe, all equally likely, (n,)."""
        draws = uniform_array(self.seeds[rows], STREAM_POLICY, contexts["query"], 0)
        return np.minimum((draws * len(self.book)).astype(np.int64), len(self.book) - 1)


def play(
    env: StreamVectorEnv,
    policy: RecipePolicy,
    seeds: Sequence[int],
    rates_per_min: NDArray[np.float64] | float,
    budget_s: float = np.nan,
) -> Played:
    """Let a policy play one sweep in every row of an environment.

    Args:
        env: at level "joint", with observations by index.
        policy: plays all of it.
        seeds: (rows,) of the sweeps, and of the policy's draws.
        rates_per_min: (rows,) arrival rates, or one for all.
        budget_s: of every query; NaN draws it from the tiers.
    """
    options = {"arrival_rate_per_min": rates_per_min, "budget_s": budget_s}
    observations, _ = env.reset(seed=list(seeds), options=options)
    policy.reset(env.policy_spec(), seeds)
    actions = np.zeros((env.num_envs, 9), np.int64)
    running = np.ones(env.num_envs, np.bool_)
    found = []
    while running.any():
        rows, contexts = np.flatnonzero(running), env.contexts()
        if len(rows) < env.num_envs:  # else there is nothing to leave out, and nothing to copy
            observations, contexts = observations[rows], contexts[rows]
        actions[rows] = policy.act_batch(observations, contexts, rows)
        observations, _, over, _, _ = env.step(actions)
        of, records = env.completed()
        mine = running[of]
        if mine.any():
            found.append((of[mine], records[mine]))
        running &= ~over
    row = np.concatenate([rows for rows, _ in found])
    records = np.concatenate([part for _, part in found])
    order = np.lexsort((records["query"], row))
    row, records = row[order], records[order]
    queries = records["query"]
    return Played(row, policy.assigned[row, queries], policy.in_flight[row, queries], records)


def joined(parts: Sequence[Played]) -> Played:
    """Several plays as one."""
    return Played(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class Sums(NamedTuple):
    """What was seen of R recipes in D domains, as sums; add them up field by field."""

    queries: NDArray[np.float64]  # (D, R)
    solved: NDArray[np.float64]  # (D, R)
    log_latency: NDArray[np.float64]  # (D, R)
    log_latency_squared: NDArray[np.float64]  # (D, R)
    path_s: NDArray[np.float64]  # (D, R, M) see `choice.Knowledge`
    path_calls: NDArray[np.float64]  # (D, R, M)
    work_s: NDArray[np.float64]  # (D, R, M)

    def plus(self, other: Sums) -> Sums:
        """The sums of both."""
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))


def summed(book: RecipeBook, played: Played, num_models: int) -> Sums:
    """Sum up what was seen of each recipe.

    The slowest line of calls is followed wave by wave: of each wave the slowest node counts, and at
    the end the deciding call, which took what is left of the latency.
    """
    records = played.records
    shape = (len(DOMAINS), len(book))
    cell = np.ravel_multi_index((records["domain"].astype(np.int64), played.recipe), shape)
    latency_s = records["latency_s"]
    node_s = records["node_latency_s"].astype(np.float64)
    model = records["model"].astype(np.int64)
    size = shape[0] * shape[1]

    def total(values: NDArray[np.float64] | None) -> NDArray[np.float64]:
        return np.bincount(cell, values, size).astype(np.float64).reshape(shape)

    def by_model(cells: NDArray[np.int64], models: Any, values: Any) -> NDArray[np.float64]:
        flat = np.bincount(cells * num_models + models, values, size * num_models)
        return flat.astype(np.float64)

    path_s = np.zeros(size * num_models)
    path_calls = np.zeros(size * num_models)
    work_s = np.zeros(size * num_models)
    on_path_s = np.zeros(len(records))
    waves = book.waves[played.recipe]  # (n, nodes)
    for node in range(MAX_NODES):
        used = np.flatnonzero(model[:, node] >= 0)
        work_s += by_model(cell[used], model[used, node], node_s[used, node])
    for wave in range(int(waves.max()) + 1):
        inside = np.where(waves == wave, node_s, -1.0)
        slowest = inside.argmax(axis=1)
        rows = np.flatnonzero(inside[np.arange(len(records)), slowest] >= 0.0)
        of, at = model[rows, slowest[rows]], inside[rows, slowest[rows]]
        path_s += by_model(cell[rows], of, at)
        path_calls += by_model(cell[rows], of, None)
        on_path_s[rows] += at
    final = records["final_model"].astype(np.int64)
    final_s = np.maximum(latency_s - on_path_s, 0.0)
    path_s += by_model(cell, final, final_s)
    path_calls += by_model(cell, final, None)
    work_s += by_model(cell, final, final_s)
    log_latency = np.log(latency_s)
    deep = (*shape, num_models)
    return Sums(
        queries=total(None),
        solved=total(records["solved"].astype(np.float64)),
        log_latency=total(log_latency),
        log_latency_squared=total(log_latency**2),
        path_s=path_s.reshape(deep),
        path_calls=path_calls.reshape(deep),
        work_s=work_s.reshape(deep),
    )
