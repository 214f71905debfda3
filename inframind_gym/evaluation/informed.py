"""Recipes for the informed bound: distributions known, single outcomes not, and no queues.

A recipe is a topology, a number of agents, a kind of role and a route for every node. Its worth is
known for every group of queries (dataset, apparent difficulty) and budget: the share that it solves
on idle servers within the budget, and the work that it takes. `inframind_gym.evaluation.bounds`
shares out the queries among them by a linear program.

The recipes are searched at many prices of the servers' time: the neighbours of those that are
worth most at some price are tried, until none is better. Those found are evaluated again with other
random numbers, so that the result is not that of the luckiest among many.

Work is counted in seconds of a server that is alone on its GPU and whose steps are as full as its
slots allow (`inframind_gym.policies.oracle.call_cost_s`). A server does at most one second of it a
second. Of n busy models on a GPU each runs at 1 / (1 + s (n - 1)) of its speed, so together they do
at most max over n of n / (1 + s (n - 1)) seconds of work a second. No schedule can do more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing_config import env_config
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.evaluation.errors import BenchmarkError
from inframind_gym.policies.oracle import RecipeKey, make_oracle, outcomes_of, recipes_of
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import (
    MAX_AGENTS,
    TOPOLOGIES,
    distinct_plans,
    graph,
)
from inframind_gym.simulator.workload import load_profiles

CLASSES: Final = 3  # of visible difficulty, alike in size
RIDGE: Final = 10.0  # of the regression that estimates difficulty
SEARCH_DRAWS: Final = 6  # times every task is asked while recipes are searched
FINAL_DRAWS: Final = 60  # and when they are evaluated
SEARCH_ROUNDS: Final = 8
SEARCH_WIDTH: Final = 1200  # recipes that are tried in a round
RUNNERS_UP: Final = 3  # recipes that are evaluated for every price, group and budget
# Queries for a second of work, up to what nobody can pay where a query takes a tenth of a second:
# beyond capacity a second costs several queries, and the cheapest recipes of all win.
PRICES: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_WORTH: Final = 1e-4  # goodput: less is not worth another column
_NODES: Final = {
    (t, agents): graph(name, agents).num_nodes
    for t, name in enumerate(TOPOLOGIES)
    for agents in range(1, MAX_AGENTS + 1)
}


# Capacity


@dataclass(frozen=True, eq=False)
class Resources:
    """Servers, and GPUs that several models share: K resources that work uses up.

    Attributes:
        names: (K,) the model's alias, or the GPU's name.
        uses: (M, K) 1 where a model's work uses a resource.
        rate: (K,) seconds of work that it does in a second.
    """

    names: tuple[str, ...]
    uses: NDArray[np.float64]
    rate: NDArray[np.float64]


def resources_of(pool: PoolConfig) -> Resources:
    """Return the resources of a pool."""
    names = list(pool.aliases)
    columns = [np.eye(len(names))]
    rates = [1.0] * len(names)
    for g, gpu in enumerate(pool.gpus):
        on_it = np.array(pool.gpu_index) == g
        models = int(on_it.sum())
        if models < 2:
            continue
        names.append(gpu.name)
        columns.append(on_it[:, None].astype(np.float64))
        rates.append(
            max(n / (1.0 + gpu.colocation_slowdown * (n - 1)) for n in range(1, models + 1))
        )
    uses, rate = np.concatenate(columns, axis=1), np.array(rates)
    binding = [  # a server is no limit of its own where its GPU does no more work than it
        k
        for k in range(len(names))
        if not any(
            other != k and rate[other] <= rate[k] and (uses[:, other] >= uses[:, k]).all()
            for other in range(len(pool.models), len(names))
        )
    ]
    return Resources(tuple(names[k] for k in binding), uses[:, binding], rate[binding])


def maximise(
    value: NDArray[np.float64], matrix: Any, limit: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Maximise value · x subject to matrix · x <= limit and x >= 0.

    Args:
        value: (n,).
        matrix: (m, n), dense or sparse.
        limit: (m,), none negative: x = 0 is feasible.

    Returns:
        The optimum, x (n,) and the price (m,) of every limit.

    Raises:
        InfraMindError: The solver gives up.
    """
    from scipy.optimize import linprog

    result = linprog(-value, A_ub=matrix, b_ub=limit, bounds=(0.0, None), method="highs")
    if result.status != 0:
        raise BenchmarkError(f"the linear program of a bound was not solved: {result.message}")
    prices = -np.asarray(result.ineqlin.marginals, np.float64)
    return -float(result.fun), np.asarray(result.x, np.float64), prices


# Recipes


def role_kinds(simulation: RoutingSimulation) -> tuple[int, ...]:
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
    recipes: list[RecipeKey] = [
        (*team, kind, (r,) * _NODES[team]) for kind, r, team in product(kinds, range(routes), teams)
    ]
    recipes += [
        (*team, kind, (r, other))
        for kind, r, other, team in product(kinds, range(routes), range(routes), pairs)
    ]
    return list(dict.fromkeys(recipes))


def neighbours(recipe: RecipeKey, routes: int, kinds: Sequence[int]) -> list[RecipeKey]:
    """Return recipes that differ in one choice; of nodes that are alike, one is changed."""
    topology, agents, kind, chosen = recipe
    near: list[RecipeKey] = [(topology, agents, k, chosen) for k in kinds if k != kind]
    ordered = TOPOLOGIES[topology] in ("Chain", "FullConnected")
    alike = {(i if ordered else i // agents, chosen[i]): i for i in reversed(range(len(chosen)))}
    for i in sorted(alike.values()):
        near += [
            (topology, agents, kind, (*chosen[:i], r, *chosen[i + 1 :]))
            for r in range(routes)
            if r != chosen[i]
        ]
    for team in distinct_plans({agents, min(agents + 1, MAX_AGENTS), max(agents - 1, 1)}):
        if team == (topology, agents):
            continue
        nodes = _NODES[team]
        near.append((*team, kind, (chosen + (chosen[-1],) * nodes)[:nodes]))
        if nodes < len(chosen):
            near.append((*team, kind, chosen[-nodes:]))
    return list(dict.fromkeys(near))


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


def sampler(
    simulation: RoutingSimulation,
    group: NDArray[np.int64],
    budgets_s: NDArray[np.float64],
    draws: int,
    seed: int,
) -> Callable[[Sequence[RecipeKey]], Tables]:
    """Return a function that plays recipes over all tasks of a workload, `draws` times each.

    Args:
        simulation: Pool, workload and tasks.
        group: (T,) of each task, in 0..G-1.
        budgets_s: (B,) budgets of interest.
        draws: Times that every task is asked.
        seed: Of the random numbers, which are the same for all recipes.
    """
    oracle = make_oracle(simulation.params, cards(simulation.pool))
    key = np.random.default_rng(seed).integers(2**64, dtype=np.uint64)
    tasks, groups_of = np.tile(np.arange(len(group)), draws), np.tile(group, draws)
    count = np.maximum(np.bincount(groups_of), 1)

    def mean(values: NDArray[Any]) -> NDArray[np.float64]:  # (n, k) -> (G, k)
        sums = [np.bincount(groups_of, weights=column) for column in values.T]
        return np.asarray(np.transpose(sums) / count[:, None], np.float64)

    def play(keys: Sequence[RecipeKey]) -> Tables:
        rows = []
        for recipe in recipes_of(keys)[:, None]:
            (outcomes,), (work_s,) = outcomes_of(oracle, key, tasks, recipe)
            solved = (outcomes["solved"] == 1)[:, None]
            in_time = solved & (outcomes["latency_s"][:, None] <= budgets_s)
            rows.append([mean(in_time), mean(solved)[:, 0], mean(work_s)])
        return Tables(list(keys), *(np.array(part) for part in zip(*rows, strict=True)))

    return play


def groups(simulation: RoutingSimulation) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Group tasks by dataset and by the difficulty that their text suggests.

    That is estimated by ridge regression on the embeddings of the training tasks: about what a
    learned router can know.

    Returns:
        (T,) group of each task, and (G,) share of the queries that each group has.
    """
    arguments = {**simulation.config.model_dump(), "split": "train", "num_queries": 1}
    train = RoutingSimulation(env_config(arguments), 1, one_query=False)
    of, train_of = simulation.params.response.task_profile, train.params.response.task_profile
    weights = [part.weight for part in load_profiles(simulation.workload).values()]
    group = np.zeros(len(of), np.int64)
    share = np.zeros(len(weights) * CLASSES)
    for p, weight in enumerate(weights):
        members, known = np.flatnonzero(of == p), np.flatnonzero(train_of == p)
        x, y = train.tasks.embeddings[known], train.tasks.difficulty[known]
        mean = x.mean(axis=0, dtype=np.float64)
        centred = x - mean
        gram = centred.T @ centred + RIDGE * np.eye(x.shape[1])
        slope = np.linalg.solve(gram, centred.T @ (y - y.mean()))
        looks = (simulation.tasks.embeddings[members] - mean) @ slope
        rank = np.argsort(np.argsort(looks, kind="stable"), kind="stable")
        group[members] = p * CLASSES + rank * CLASSES // len(members)
        share += weight * np.bincount(group[members], minlength=len(share)) / len(members)
    return group, share / share.sum()


# The search


def price_vectors(resources: Resources) -> NDArray[np.float64]:
    """Return prices of a second of work, in queries, from 0 to prohibitive, also uneven, (V, K)."""
    k = len(resources.names)
    slants = [np.ones(k)]
    for i in range(k):
        for factor in (0.1, 0.3):
            dear, cheap = np.full(k, factor), np.ones(k)
            dear[i], cheap[i] = 1.0, factor
            slants += [dear, cheap]
    prices = (np.array(PRICES)[:, None, None] * np.array(slants)).reshape(-1, k)
    return np.asarray(np.unique([np.zeros(k), *prices], axis=0), np.float64)


def winners(
    tables: Tables, prices: NDArray[np.float64], resources: Resources, places: int
) -> tuple[NDArray[np.int64], float]:
    """Return the recipes that are worth most at some price, to some group, within some budget.

    Args:
        tables: worth of recipes.
        prices: (V, K).
        resources: of the pool.
        places: how many of each are taken.

    Returns:
        Their indices, those first that win most often, and the mean worth of the best.
    """
    use = tables.work_s @ resources.uses
    count = np.zeros(len(tables.keys), np.int64)
    worth = 0.0
    for price in prices:
        net = tables.good - (use @ price)[:, :, None]
        worth += float(net.max(axis=0).mean())
        top = np.argpartition(-net, min(places, len(net)) - 1, axis=0)[:places]
        np.add.at(count, top.ravel(), 1)
    order = np.argsort(-count, kind="stable")
    return order[count[order] > 0], worth / len(prices)


class Informed:
    """Recipes of one workload, searched once for all rates and budgets.

    Args:
        simulation: pool, workload and tasks.
        budgets_s: (B,) ascending: all budgets that will be asked for.
    """

    def __init__(self, simulation: RoutingSimulation, budgets_s: NDArray[np.float64]) -> None:
        self.simulation = simulation
        self.budgets_s = budgets_s
        self.resources = resources_of(simulation.pool)
        prices = price_vectors(self.resources)
        routes, kinds = simulation.num_routes, role_kinds(simulation)
        group, self.share = groups(simulation)
        search = sampler(simulation, group, budgets_s, SEARCH_DRAWS, seed=1)
        tables = search(first_recipes(routes, kinds))
        have = set(tables.keys)
        best, worth = winners(tables, prices, self.resources, 1)
        for _ in range(SEARCH_ROUNDS):
            tried: dict[RecipeKey, None] = {}
            for r in best.tolist():
                near = neighbours(tables.keys[r], routes, kinds)
                tried.update((key, None) for key in near if key not in have)
                if len(tried) >= SEARCH_WIDTH:
                    break
            if not tried:
                break
            have.update(tried)
            tables = tables.joined(search(list(tried)))
            before = worth
            best, worth = winners(tables, prices, self.resources, 1)
            if worth - before < _WORTH:
                break
        best, _ = winners(tables, prices, self.resources, RUNNERS_UP)
        final = sampler(simulation, group, budgets_s, FINAL_DRAWS, seed=2)
        self.tables = final([tables.keys[r] for r in np.sort(best).tolist()])
