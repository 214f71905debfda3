"""The informed fluid bound: distributions known, single outcomes not, and no queues.

A linear program shares out the queries of every group (dataset, apparent difficulty, budget) among
recipes, so that the expected goodput is largest and the expected work fits the servers. Success is
that on idle servers within the budget. Queries of budget b arrive until T and have to be done by
T + b, so for every budget b the work of all queries with budgets up to b fits into T + b seconds:
this holds for the finite episode, start and drain included.

The recipes are searched at many prices of the servers' time: the neighbours of those that are
worth most at some price are tried, until none is better. Those found are evaluated again with other
random numbers, so that the result is not that of the luckiest among many.

It bounds recipes of this library whose choice does not depend on the outcomes of a query's own
calls; it charges every query that is not skipped its expected work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.bounds.program import Resources, maximise, resources_of
from inframind_gym.benchmark.bounds.recipes import (
    Sampler,
    Tables,
    first_recipes,
    groups,
    neighbours,
    role_kinds,
)
from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.policies.oracle import RecipeKey
from inframind_gym.simulator.workflow.topology import MAX_NODES

SEARCH_DRAWS: Final = 6  # times every task is asked while recipes are searched
FINAL_DRAWS: Final = 60  # and when they are evaluated
SEARCH_ROUNDS: Final = 8
SEARCH_WIDTH: Final = 1200  # recipes that are tried in a round
RUNNERS_UP: Final = 3  # recipes that are evaluated for every price, group and budget
# Queries for a second of work, up to what nobody can pay where a query takes a tenth of a second:
# beyond capacity a second costs several queries, and the cheapest recipes of all win.
PRICES: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_WORTH = 1e-4  # goodput: less is not worth another column


@dataclass(frozen=True, eq=False)
class Plan:
    """An optimal way to share out queries. G groups, B budgets, K resources.

    Attributes:
        goodput: per query, 0..1.
        used: share of all queries by (group, budget, recipe).
        price: (B, K) goodput, in queries, that one more second of a resource brings to queries of
            a budget.
    """

    goodput: float
    used: dict[tuple[int, int, RecipeKey], float]
    price: NDArray[np.float64]


def solve(
    tables: Tables,
    share: NDArray[np.float64],
    budget_share: NDArray[np.float64],
    budgets_s: NDArray[np.float64],
    span_s: float,
    num_queries: int,
    resources: Resources,
    one_by_one: bool = False,
) -> Plan:
    """Share out queries among the recipes of a table.

    Args:
        tables: worth of recipes; `good` for `budgets_s`.
        share: (G,) of the queries by group.
        budget_share: (B,) of the queries by budget; some may be 0.
        budgets_s: (B,) ascending.
        span_s: T, from the first to the last arrival.
        num_queries: N.
        resources: of the pool.
        one_by_one: sequential execution: the nodes follow one another, and only each one's own
            latency counts, so that a recipe of n nodes may take n budgets.
    """
    num_groups, budgets, k = len(share), len(budgets_s), len(resources.names)
    stretch = np.array([len(key[3]) if one_by_one else 1 for key in tables.keys])
    ends = budgets_s
    if one_by_one:
        ends = np.unique(np.concatenate([budgets_s, budgets_s * MAX_NODES]))
    weight = share[:, None] * budget_share[None]  # (G, B)
    use = tables.work_s @ resources.uses  # (R, G, K)
    limit = np.concatenate(
        [
            np.ones(num_groups * budgets),
            ((span_s + ends)[:, None] * resources.rate / num_queries).ravel(),
        ]
    )
    columns: dict[tuple[int, int, int], None] = {}
    prices = np.zeros((len(ends), k))
    bar = np.zeros((num_groups, budgets))
    while True:
        # Worth of a query of a group and budget with each recipe, at these prices.
        charged = prices[np.searchsorted(ends, np.outer(stretch, budgets_s))]  # (R, B, K)
        net = tables.good - np.einsum("rgk,rbk->rgb", use, charged)
        before = len(columns)
        for g, b in np.argwhere(weight > 0.0).tolist():
            for r in np.argsort(-net[:, g, b])[:3].tolist():
                if net[r, g, b] > bar[g, b] + _WORTH:
                    columns.setdefault((g, b, r))
        if len(columns) == before:
            break
        of_g, of_b, of_r = np.array(list(columns)).T
        n = len(columns)
        matrix = np.zeros((len(limit), n))
        matrix[of_g * budgets + of_b, np.arange(n)] = 1.0
        load = (weight[of_g, of_b, None] * use[of_r, of_g]).T  # (K, n)
        window = budgets_s[of_b] * stretch[of_r]
        for j, end_s in enumerate(ends.tolist()):
            rows = slice(num_groups * budgets + j * k, num_groups * budgets + (j + 1) * k)
            matrix[rows] = np.where(window <= end_s, load, 0.0)
        value = weight[of_g, of_b] * tables.good[of_r, of_g, of_b]
        goodput, x, dual = maximise(value, matrix, limit)
        at = dual[num_groups * budgets :].reshape(len(ends), k)
        prices = np.cumsum(at[::-1], axis=0)[::-1]
        bar = dual[: num_groups * budgets].reshape(num_groups, budgets) / np.maximum(weight, 1e-300)
    used = {
        (g, b, tables.keys[r]): float(weight[g, b] * x[i])
        for i, (g, b, r) in enumerate(columns)
        if x[i] > 1e-6
    }
    return Plan(goodput, used, prices[np.searchsorted(ends, budgets_s)])


def price_vectors(resources: Resources) -> NDArray[np.float64]:
    """Return prices of a second of work, in queries, from 0 to prohibitive, also uneven, (V, K)."""
    k = len(resources.names)
    slants = [np.ones(k)]
    for i in range(k):
        for factor in (0.1, 0.3):
            dear, cheap = np.full(k, factor), np.ones(k)
            dear[i], cheap[i] = 1.0, factor
            slants += [dear, cheap]
    found = (np.array(PRICES)[:, None, None] * np.array(slants)).reshape(-1, k)
    return np.asarray(np.unique([np.zeros(k), *found], axis=0), np.float64)


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
    """Informed bounds of one workload; recipes are searched once, for all rates and budgets.

    Args:
        simulation: pool, workload, tasks and execution.
        budgets_s: (B,) ascending: all budgets that will be asked for.
    """

    def __init__(self, simulation: Simulation, budgets_s: NDArray[np.float64]) -> None:
        self.simulation = simulation
        self.budgets_s = budgets_s
        self.resources = resources_of(simulation.pool)
        prices = price_vectors(self.resources)
        routes, kinds = simulation.num_routes, role_kinds(simulation)
        group, self.share = groups(simulation)
        search = Sampler(simulation, group, budgets_s, SEARCH_DRAWS, seed=1)
        found = search.tables(first_recipes(routes, kinds))
        have = set(found.keys)
        best, worth = winners(found, prices, self.resources, 1)
        for _ in range(SEARCH_ROUNDS):
            tried: dict[RecipeKey, None] = {}
            for r in best.tolist():
                near = neighbours(found.keys[r], routes, kinds)
                tried.update((key, None) for key in near if key not in have)
                if len(tried) >= SEARCH_WIDTH:
                    break
            if not tried:
                break
            have.update(tried)
            found = found.joined(search.tables(list(tried)))
            before = worth
            best, worth = winners(found, prices, self.resources, 1)
            if worth - before < _WORTH:
                break
        chosen, _ = winners(found, prices, self.resources, RUNNERS_UP)
        final = Sampler(simulation, group, budgets_s, FINAL_DRAWS, seed=2)
        self.tables = final.tables([found.keys[r] for r in np.sort(chosen).tolist()])

    def plan(self, span_s: float, num_queries: int, budget_share: NDArray[np.float64]) -> Plan:
        """Return the best plan; for the arguments see `solve`."""
        return solve(
            self.tables, self.share, budget_share, self.budgets_s, span_s, num_queries,
            self.resources, self.simulation.execution == "sequential",
        )  # fmt: skip
