"""A library of recipes and their worth: success and work by Monte Carlo on idle servers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.config import env_config
from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.policies.oracle import RecipeKey, make_oracle, outcomes_of, recipes_of
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, distinct_plans, graph
from inframind_gym.simulator.workload import load_profiles

CLASSES: Final = 3  # of visible difficulty, alike in size
RIDGE: Final = 10.0  # of the regression that estimates difficulty
_NODES: Final = {
    (t, agents): graph(name, agents).num_nodes
    for t, name in enumerate(TOPOLOGIES)
    for agents in range(1, MAX_AGENTS + 1)
}


def role_kinds(simulation: Simulation) -> tuple[int, ...]:
    """Return the kinds of role that differ in this workload."""
    params = simulation.params
    kinds = [RoleRule.SINGLE]
    roles = [
        np.arange(params.role_start[d], params.role_start[d] + params.role_count[d])
        for d in np.unique(params.task_domain)
    ]
    if (params.role_codes[np.concatenate(roles)] == 1).any():
        kinds.append(RoleRule.CODER)
    if (params.role_calls > 1).any():
        kinds.append(RoleRule.DOUBLE)
    return tuple(kinds)


def first_recipes(routes: int, kinds: Sequence[int]) -> list[RecipeKey]:
    """Return where the search begins: every route alone, teams of alike, and pairs of routes."""
    teams = distinct_plans((1, 2, 3, 5, 6))
    pairs = [team for team in teams if _NODES[team] == 2]
    found: list[RecipeKey] = [
        (*team, kind, (r,) * _NODES[team]) for kind, r, team in product(kinds, range(routes), teams)
    ]
    found += [
        (*team, kind, (r, other))
        for kind, r, other, team in product(kinds, range(routes), range(routes), pairs)
    ]
    return list(dict.fromkeys(found))


def neighbours(recipe: RecipeKey, routes: int, kinds: Sequence[int]) -> list[RecipeKey]:
    """Return recipes that differ in one choice; of nodes that are alike, one is changed."""
    topology, agents, kind, chosen = recipe
    found: list[RecipeKey] = [(topology, agents, k, chosen) for k in kinds if k != kind]
    ordered = TOPOLOGIES[topology] in ("Chain", "FullConnected")
    alike = {(i if ordered else i // agents, chosen[i]): i for i in reversed(range(len(chosen)))}
    for i in sorted(alike.values()):
        found += [
            (topology, agents, kind, (*chosen[:i], r, *chosen[i + 1 :]))
            for r in range(routes)
            if r != chosen[i]
        ]
    for team in distinct_plans({agents, min(agents + 1, MAX_AGENTS), max(agents - 1, 1)}):
        if team == (topology, agents):
            continue
        nodes = _NODES[team]
        found.append((*team, kind, (chosen + (chosen[-1],) * nodes)[:nodes]))
        if nodes < len(chosen):
            found.append((*team, kind, chosen[-nodes:]))
    return list(dict.fromkeys(found))


class Tables(NamedTuple):
    """Worth of R recipes. G groups of tasks, B budgets, M servers."""

    keys: list[RecipeKey]
    good: NDArray[np.float64]  # (R, G, B) share solved within each budget on idle servers
    solved: NDArray[np.float64]  # (R, G) share solved
    work_s: NDArray[np.float64]  # (R, G, M) mean work of each server

    def joined(self, other: Tables) -> Tables:
        """Return both tables' recipes."""
        arrays = zip(self[1:], other[1:], strict=True)
        return Tables(self.keys + other.keys, *map(np.concatenate, arrays))


class Sampler:
    """Plays recipes over all tasks of a workload, `draws` times each.

    Args:
        simulation: pool, workload and tasks.
        group: (T,) of each task, in 0..G-1.
        budgets_s: (B,) budgets of interest.
        draws: times that every task is asked.
        seed: of the random numbers, which are the same for all recipes.
    """

    def __init__(
        self,
        simulation: Simulation,
        group: NDArray[np.int64],
        budgets_s: NDArray[np.float64],
        draws: int,
        seed: int,
    ) -> None:
        self._oracle = make_oracle(simulation.params, cards(simulation.pool))
        self._key = np.random.default_rng(seed).integers(2**64, dtype=np.uint64)
        self._tasks = np.tile(np.arange(len(group)), draws)
        self._group = np.tile(group, draws)
        self._budgets_s = budgets_s

    def tables(self, keys: Sequence[RecipeKey]) -> Tables:
        """Play recipes."""
        found = []
        for recipe in recipes_of(keys)[:, None]:
            (outcomes,), (work_s,) = outcomes_of(self._oracle, self._key, self._tasks, recipe)
            solved = (outcomes["solved"] == 1)[:, None]
            in_time = solved & (outcomes["latency_s"][:, None] <= self._budgets_s)
            found.append([self._mean(in_time), self._mean(solved)[:, 0], self._mean(work_s)])
        return Tables(list(keys), *(np.array(part) for part in zip(*found, strict=True)))

    def _mean(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return the means (G, k) by group of values (n, k)."""
        sums = [np.bincount(self._group, weights=column) for column in values.T]
        count = np.maximum(np.bincount(self._group), 1)
        return np.asarray(np.transpose(sums) / count[:, None], np.float64)


def groups(simulation: Simulation) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Group tasks by dataset and by the difficulty that their text suggests.

    That is estimated by ridge regression on the embeddings of the training tasks: about what a
    learned router can know.

    Returns:
        (T,) group of each task, and (G,) share of the queries that each group has.
    """
    arguments = {**simulation.config.model_dump(), "split": "train", "num_queries": 1}
    train = Simulation(env_config(arguments), 1, one_query=False)
    of, train_of = simulation.params.response.task_profile, train.params.response.task_profile
    weights = [part.weight for part in load_profiles(simulation.workload).values()]
    group = np.zeros(len(of), np.int64)
    share = np.zeros(len(weights) * CLASSES)
    for p, weight in enumerate(weights):
        members, known = np.flatnonzero(of == p), np.flatnonzero(train_of == p)
        looks = _ridge(
            train.tasks.embeddings[known], train.tasks.difficulty[known],
            simulation.tasks.embeddings[members],
        )  # fmt: skip
        rank = np.argsort(np.argsort(looks, kind="stable"), kind="stable")
        group[members] = p * CLASSES + rank * CLASSES // len(members)
        share += weight * np.bincount(group[members], minlength=len(share)) / len(members)
    return group, share / share.sum()


def _ridge(
    x: NDArray[np.float32], y: NDArray[np.float32], asked: NDArray[np.float32]
) -> NDArray[np.float64]:
    mean = x.mean(axis=0, dtype=np.float64)
    centred = x - mean
    gram = centred.T @ centred + RIDGE * np.eye(x.shape[1])
    slope = np.linalg.solve(gram, centred.T @ (y - y.mean()))
    return np.asarray((asked - mean) @ slope, np.float64)
