"""Recipes and what they are worth: tables of success and work by Monte Carlo at idle load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.config import env_config
from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.policies.oracle.recipe import OUTCOME, PACE, RECIPE
from inframind_gym.policies.oracle.tables import set_idle_pace, tally
from inframind_gym.simulator.quality import query_length_z
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    MAX_NODES,
    TOPOLOGIES,
    distinct_plans,
    graph,
)
from inframind_gym.simulator.workload import load_profiles

CLASSES: Final = 3  # of visible difficulty, alike in size
RIDGE: Final = 10.0  # of the regression that sees difficulty
_NODES: Final = {
    (t, agents): graph(name, agents).num_nodes
    for t, name in enumerate(TOPOLOGIES)
    for agents in range(1, MAX_AGENTS + 1)
}
RecipeKey = tuple[int, int, int, tuple[int, ...]]  # topology, agents, RoleRule, routes


def recipes_of(keys: Sequence[RecipeKey]) -> NDArray[Any]:
    """(r,) RECIPE."""
    out = np.zeros(len(keys), RECIPE)
    for i, (topology, agents, kind, routes) in enumerate(keys):
        out[i]["topology"], out[i]["num_agents"], out[i]["role_kind"] = topology, agents, kind
        out[i]["route"][: len(routes)] = routes
    return out


def first_recipes(routes: int, role_kinds: Sequence[int]) -> list[RecipeKey]:
    """Where the search begins: every route on its own, teams of alike, and pairs of routes."""
    teams = distinct_plans((1, 2, 3, 5, 6))
    pairs = [(t, agents) for t, agents in teams if _NODES[t, agents] == 2]
    found: list[RecipeKey] = [
        (t, agents, kind, (r,) * _NODES[t, agents])
        for kind in role_kinds
        for r in range(routes)
        for t, agents in teams
    ]
    found += [
        (t, agents, kind, (r, other))
        for kind in role_kinds
        for r in range(routes)
        for other in range(routes)
        for t, agents in pairs
    ]
    return list(dict.fromkeys(found))


def neighbours(recipe: RecipeKey, routes: int, role_kinds: Sequence[int]) -> list[RecipeKey]:
    """Recipes that differ in one choice; of nodes that are alike, one stands for all."""
    topology, agents, kind, chosen = recipe
    found: list[RecipeKey] = [(topology, agents, k, chosen) for k in role_kinds if k != kind]
    ordered = TOPOLOGIES[topology] in ("Chain", "FullConnected")
    seen: set[tuple[int, int]] = set()
    for i in range(len(chosen)):
        place = (i if ordered else i // agents, chosen[i])
        if place in seen:
            continue
        seen.add(place)
        for r in range(routes):
            if r != chosen[i]:
                found.append((topology, agents, kind, (*chosen[:i], r, *chosen[i + 1 :])))
    for t, count in distinct_plans({agents, min(agents + 1, MAX_AGENTS), max(agents - 1, 1)}):
        if (t, count) == (topology, agents):
            continue
        nodes = _NODES[t, count]
        found.append((t, count, kind, (chosen + (chosen[-1],) * nodes)[:nodes]))
        if nodes < len(chosen):
            found.append((t, count, kind, chosen[-nodes:]))
    return list(dict.fromkeys(found))


@dataclass
class Tables:
    """What recipes are worth. R recipes, G groups of tasks (classes), B budgets, M servers.

    Attributes:
        keys: the recipes.
        good: (R, G, B) share solved within each budget on idle servers.
        solved: (R, G) share solved.
        work_s: (R, G, M) mean work of each server.
        latency_s: (R, G) mean latency on idle servers.
    """

    keys: list[RecipeKey]
    good: NDArray[np.float64]
    solved: NDArray[np.float64]
    work_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]

    def joined(self, other: Tables) -> Tables:
        """Both tables' recipes."""
        return Tables(
            self.keys + other.keys,
            np.concatenate([self.good, other.good]),
            np.concatenate([self.solved, other.solved]),
            np.concatenate([self.work_s, other.work_s]),
            np.concatenate([self.latency_s, other.latency_s]),
        )


@dataclass
class Sampler:
    """Plays recipes over all tasks of a workload, `draws` times each.

    Args:
        simulation: pool, workload and tasks.
        budgets_s: (B,) budgets of interest.
        draws: times that every task is asked.
        seed: of the luck; the same luck for all recipes.

    Attributes:
        share: (G,) share of the queries that each group has.
    """

    simulation: Simulation
    budgets_s: NDArray[np.float64]
    draws: int
    seed: int
    share: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        """Draw the luck."""
        rng = np.random.default_rng(self.seed)
        classes, self.share = groups(self.simulation)
        self._tasks = np.tile(np.arange(len(classes)), self.draws)
        self._group = np.tile(classes, self.draws)
        n = len(self._tasks)
        self._keys = np.full(n, rng.integers(2**64, dtype=np.uint64))
        self._length_z = np.array([query_length_z(self._keys[0], q) for q in range(n)], np.float32)
        self._card = cards(self.simulation.pool)
        self._pace = np.zeros(len(self._card), PACE)
        set_idle_pace(self._card, self._pace)

    def tables(self, keys: Sequence[RecipeKey]) -> Tables:
        """Play recipes."""
        r, g, b, m = len(keys), len(self.share), len(self.budgets_s), len(self._card)
        good, solved = np.zeros((r, g, b)), np.zeros((r, g))
        work, latency = np.zeros((r, g, m)), np.zeros((r, g))
        tally(
            self.simulation.params, self._card, self._pace, self._keys, self._tasks, self._length_z,
            self._group, self.budgets_s, recipes_of(keys), np.zeros((2, MAX_NODES)), np.zeros(m),
            np.zeros(1, OUTCOME), good, solved, work, latency,
        )  # fmt: skip
        n = np.maximum(np.bincount(self._group, minlength=g), 1).astype(np.float64)
        return Tables(list(keys), good / n[:, None], solved / n, work / n[:, None], latency / n)


def groups(simulation: Simulation) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tasks by dataset and by how hard their text looks.

    How hard it looks is what ridge regression on the embeddings of the training tasks says: about
    what a learned router can know.

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
