"""The informed bound of a workload on a pool, by linear programming, and the limits of tracks.

It is the bound of a router that knows every distribution but no single outcome, without queues.

A *recipe* is a topology, a number of agents, a kind of role and a route for every node. It is
evaluated for every group of queries (dataset, apparent difficulty) and budget: the share that it
solves on idle servers within the budget, and the work that it takes. `informed` searches recipes at
many prices of the servers' time: it tries the neighbours of the best recipes at each price until
none is better. The winners are evaluated again with other random numbers, so that the result is
not that of the luckiest recipes.

Work is counted in seconds of a server that is alone on its GPU and whose steps are as full as its
slots allow (`oracle.call_cost_s`). A server does at most one second of it a second. Of n busy
models on a GPU each runs at 1 / (1 + s (n - 1)) of its speed, so together they do
at most max over n of n / (1 + s (n - 1)) seconds of work a second. No schedule can do more.

`SteadyBound` distributes the queries over the recipes in steady load: the work of the queries that
arrive in a second fits into a second of the servers. Where the rate changes, the bound is the mean
over some sampled streams of arrivals (`SteadyBound.of_arrivals`). *Capacity* is the rate at which
the bound in steady load has fallen to 90 % of that on idle servers. It is no rate beyond which
nothing works: beyond it, cheaper recipes serve more queries and solve fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from inframind_gym.envs.routing import StreamEnv
from inframind_gym.envs.routing_simulation import RoutingSimulation
from inframind_gym.errors import ConfigError
from inframind_gym.evaluation.oracle import Recipe, make_oracle, outcomes_of
from inframind_gym.evaluation.scenarios import (
    Limits,
    Scenario,
    TrackConfig,
    kept_limits,
    load_track,
)
from inframind_gym.files import replace_text
from inframind_gym.progress import say
from inframind_gym.simulator.arrivals import make_arrivals
from inframind_gym.simulator.server.pool import PoolConfig
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, distinct_plans, graph
from inframind_gym.simulator.workload import BUDGET_TIERS_S, load_profiles

WINDOW_S: Final = 10.0  # arrivals within a window of time are treated alike
STREAMS: Final = 10  # streams that are sampled where the rate of arrivals changes
CLASSES: Final = 3  # classes of apparent difficulty, of equal size
RIDGE: Final = 10.0  # penalty of the regression that estimates difficulty
SEARCH_DRAWS: Final = 6  # samples of every task while recipes are searched
FINAL_DRAWS: Final = 60  # samples of every task when the winners are evaluated
SEARCH_ROUNDS: Final = 8
SEARCH_WIDTH: Final = 1200  # recipes that are tried in a round
RUNNERS_UP: Final = 3  # winners for every price, group and budget
# Prices of a second of work, in solved queries. At the highest no query is worth a tenth of a
# second. Beyond capacity a second costs several queries, and only the cheapest recipes win.
PRICES: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_WORTH: Final = 1e-4  # least gain in goodput for another round of the search
_NODES: Final = {
    (t, agents): graph(name, agents).num_nodes
    for t, name in enumerate(TOPOLOGIES)
    for agents in range(1, MAX_AGENTS + 1)
}
AT_CAPACITY: Final = 0.9  # of the bound on idle servers
_CLOSE: Final = 1.002  # ratio of rates between which the capacity lies in the end
_MORE_BUDGETS_S: Final = (5.0, 20.0, 60.0)  # of shipped scenarios, beside the published tiers
_HEAD: Final = """\
# Written by `inframind bench limits {name}`: capacities and bounds of the track's scenarios, by
# linear programming for the constants of their pools and workloads.
"""


# Capacity


@dataclass(frozen=True, eq=False)
class Resources:
    """Servers, and GPUs that several models share: K resources that work uses up."""

    names: tuple[str, ...]  # (K,) the model's alias, or the GPU's name
    uses: NDArray[np.float64]  # (M, K) 1 where a model's work uses a resource
    rate: NDArray[np.float64]  # (K,) seconds of work that a resource does in a second


def resources_of(pool: PoolConfig) -> Resources:
    """Return the resources of a pool."""
    names, models = list(pool.aliases), len(pool.models)
    uses, rates = np.eye(models), [1.0] * models
    for g, gpu in enumerate(pool.gpus):
        on_it = np.array(pool.gpu_index) == g
        if (residents := int(on_it.sum())) > 1:
            names.append(gpu.name)
            uses = np.column_stack([uses, on_it])
            slowdown = gpu.colocation_slowdown
            rates.append(max(n / (1.0 + slowdown * (n - 1)) for n in range(1, residents + 1)))
    rate, gpus = np.array(rates), range(models, len(names))
    binding = [  # a server is no limit of its own where its GPU does no more work than it
        k
        for k in range(len(names))
        if not any(
            other != k and rate[other] <= rate[k] and (uses[:, other] >= uses[:, k]).all()
            for other in gpus
        )
    ]
    return Resources(tuple(names[k] for k in binding), uses[:, binding], rate[binding])


def maximise(
    value: NDArray[np.float64], matrix: Any, limit: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Maximise value · x subject to matrix · x <= limit and x >= 0, which is feasible.

    Returns:
        The optimum, x (n,) and the price (m,) of every limit.

    Raises:
        InfraMindError: The solver gives up.
    """
    from scipy.optimize import linprog

    result = linprog(-value, A_ub=matrix, b_ub=limit, bounds=(0.0, None), method="highs")
    if result.status != 0:
        raise ConfigError(f"the linear program of a bound was not solved: {result.message}")
    prices = -np.asarray(result.ineqlin.marginals, np.float64)
    return -float(result.fun), np.asarray(result.x, np.float64), prices


# Recipes


def first_recipes(routes: int, kinds: Sequence[int]) -> list[Recipe]:
    """Return where the search begins: teams with one route each, and pairs of routes."""
    teams = distinct_plans((1, 2, 3, 5, 6))
    pairs = [team for team in teams if _NODES[team] == 2]
    uniform = product(kinds, range(routes), teams)
    mixed = product(kinds, range(routes), range(routes), pairs)
    recipes = [Recipe(*team, kind, (r,) * _NODES[team]) for kind, r, team in uniform]
    recipes += [Recipe(*team, kind, (r, other)) for kind, r, other, team in mixed]
    return list(dict.fromkeys(recipes))


def neighbours(recipe: Recipe, routes: int, kinds: Sequence[int]) -> list[Recipe]:
    """Return recipes that differ in one choice; of interchangeable nodes, one is changed."""
    topology, agents, kind, chosen = recipe
    near = [recipe._replace(role_kind=k) for k in kinds if k != kind]
    ordered = TOPOLOGIES[topology] in ("Chain", "FullConnected")
    first = {(i if ordered else i // agents, chosen[i]): i for i in reversed(range(len(chosen)))}
    for i in sorted(first.values()):
        others = [(*chosen[:i], r, *chosen[i + 1 :]) for r in range(routes) if r != chosen[i]]
        near += [recipe._replace(routes=other) for other in others]
    for team in distinct_plans({agents, min(agents + 1, MAX_AGENTS), max(agents - 1, 1)}):
        if team != (topology, agents):
            nodes = _NODES[team]
            near.append(Recipe(*team, kind, (chosen + (chosen[-1],) * nodes)[:nodes]))
            if nodes < len(chosen):
                near.append(Recipe(*team, kind, chosen[-nodes:]))
    return list(dict.fromkeys(near))


class Tables(NamedTuple):
    """Outcomes of R recipes. G groups of tasks, B budgets, M servers."""

    recipes: list[Recipe]
    good: NDArray[np.float64]  # (R, G, B) share solved within each budget on idle servers
    work_s: NDArray[np.float64]  # (R, G, M) mean work of each server

    def with_more(self, more: Tables) -> Tables:
        """Return these recipes followed by `more`."""
        arrays = zip(self[1:], more[1:], strict=True)
        return Tables(self.recipes + more.recipes, *map(np.concatenate, arrays))


def _sampler(
    simulation: RoutingSimulation,
    group: NDArray[np.int64],
    budgets_s: NDArray[np.float64],
    draws: int,
    seed: int,
) -> Callable[[Sequence[Recipe]], Tables]:
    """Return a function that plays recipes over all tasks, `draws` times each, on one seed.

    `group` (T,) is that of each task, in 0..G-1; `budgets_s` (B,).
    """
    oracle = make_oracle(simulation.params, cards(simulation.pool))
    key = np.random.default_rng(seed).integers(2**64, dtype=np.uint64)
    tasks, groups_of = np.tile(np.arange(len(group)), draws), np.tile(group, draws)
    count = np.maximum(np.bincount(groups_of), 1)

    def play(recipes: Sequence[Recipe]) -> Tables:
        rows = []
        for recipe in recipes:
            solved, latency_s, work_s = outcomes_of(oracle, key, tasks, recipe)
            good = solved[:, None] & (latency_s[:, None] <= budgets_s)
            sums = [[np.bincount(groups_of, column) for column in x.T] for x in (good, work_s)]
            rows.append([np.transpose(x) / count[:, None] for x in sums])
        return Tables(list(recipes), *(np.array(part) for part in zip(*rows, strict=True)))

    return play


def _groups(simulation: RoutingSimulation) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the group of each task (T,), and the share of the queries that each group has (G,).

    Tasks are grouped by dataset and by the difficulty that their text suggests, estimated by ridge
    regression on the embeddings of the training tasks: about what a learned router can know.
    """
    arguments = {**simulation.config.model_dump(), "split": "train", "num_queries": 1}
    train = StreamEnv.simulation_of(arguments, 1)
    profile_of, train_profile_of = (s.params.response.task_profile for s in (simulation, train))
    weights = [part.weight for part in load_profiles(simulation.workload).values()]
    group = np.zeros(len(profile_of), np.int64)
    share = np.zeros(len(weights) * CLASSES)
    for p, weight in enumerate(weights):
        members, examples = np.flatnonzero(profile_of == p), np.flatnonzero(train_profile_of == p)
        x, y = train.tasks.embeddings[examples], train.tasks.difficulty[examples]
        mean = x.mean(axis=0, dtype=np.float64)
        centred = x - mean
        gram = centred.T @ centred + RIDGE * np.eye(x.shape[1])
        slope = np.linalg.solve(gram, centred.T @ (y - y.mean()))
        apparent = (simulation.tasks.embeddings[members] - mean) @ slope
        rank = np.argsort(np.argsort(apparent, kind="stable"), kind="stable")
        group[members] = p * CLASSES + rank * CLASSES // len(members)
        share += weight * np.bincount(group[members], minlength=len(share)) / len(members)
    return group, share / share.sum()


# The search


def _winners(
    tables: Tables, prices: NDArray[np.float64], resources: Resources, places: int
) -> tuple[NDArray[np.int64], float]:
    """Return the `places` best recipes at each price (V, K), group and budget, most frequent first.

    The second value is the mean worth of the best.
    """
    use = tables.work_s @ resources.uses
    count = np.zeros(len(tables.recipes), np.int64)
    worth = 0.0
    for price in prices:
        net = tables.good - (use @ price)[:, :, None]
        worth += float(net.max(axis=0).mean())
        top = np.argpartition(-net, min(places, len(net)) - 1, axis=0)[:places]
        np.add.at(count, top.ravel(), 1)
    order = np.argsort(-count, kind="stable")
    return order[count[order] > 0], worth / len(prices)


class Informed(NamedTuple):
    """Recipes that are best at some price, for one workload on a pool."""

    budgets_s: NDArray[np.float64]  # (B,) ascending
    tables: Tables
    share: NDArray[np.float64]  # (G,) of the queries that each group has
    resources: Resources
    gpus: NDArray[np.float64]  # (M,) GPUs of each server


def informed(simulation: RoutingSimulation, budgets_s: NDArray[np.float64]) -> Informed:
    """Search the recipes of a workload, once for all rates and budgets.

    Args:
        simulation: Pool, workload and tasks.
        budgets_s: (B,) ascending: all budgets that will be asked for.
    """
    resources, (group, share) = resources_of(simulation.pool), _groups(simulation)
    params, routes, k = simulation.params, simulation.num_routes, len(resources.names)
    kinds = [RoleRule.SINGLE]  # kinds of roles that differ in this workload
    ranges = zip(params.role_start, params.role_count, strict=True)
    roles = [np.arange(first, first + count) for first, count in ranges]
    if any((params.role_codes[roles[d]] == 1).any() for d in np.unique(params.task_domain)):
        kinds.append(RoleRule.CODER)
    if (params.role_calls > 1).any():
        kinds.append(RoleRule.DOUBLE)
    ratios = [np.ones(k)]  # of prices: all equal, or one resource dearer or cheaper than the rest
    for i, factor in product(range(k), (0.1, 0.3)):
        dear, cheap = np.full(k, factor), np.ones(k)
        dear[i], cheap[i] = 1.0, factor
        ratios += [dear, cheap]
    scaled = (np.array(PRICES)[:, None, None] * np.array(ratios)).reshape(-1, k)
    prices = np.unique([np.zeros(k), *scaled], axis=0)
    search = _sampler(simulation, group, budgets_s, SEARCH_DRAWS, seed=1)
    tables = search(first_recipes(routes, kinds))
    evaluated = set(tables.recipes)
    best, worth = _winners(tables, prices, resources, 1)
    for _ in range(SEARCH_ROUNDS):
        untried: dict[Recipe, None] = {}
        for r in best.tolist():
            near = neighbours(tables.recipes[r], routes, kinds)
            untried.update((one, None) for one in near if one not in evaluated)
            if len(untried) >= SEARCH_WIDTH:
                break
        if not untried:
            break
        evaluated.update(untried)
        tables, before = tables.with_more(search(list(untried))), worth
        best, worth = _winners(tables, prices, resources, 1)
        if worth - before < _WORTH:
            break
    best, _ = _winners(tables, prices, resources, RUNNERS_UP)
    final = _sampler(simulation, group, budgets_s, FINAL_DRAWS, seed=2)
    chosen = final([tables.recipes[r] for r in np.sort(best).tolist()])
    gpus = np.array([len(model.all_gpus) for model in simulation.pool.models], np.float64)
    return Informed(budgets_s, chosen, share, resources, gpus)


# Steady load


class SteadyPlan(NamedTuple):
    """An optimum in steady load."""

    score: float  # what was maximised: (weighted) goodput, or the smallest of the budgets
    work_s: float  # GPU-seconds a query


class SteadyBound:
    """Bounds of one workload on its pool.

    Args:
        informed: Recipes, searched for all of the budgets.
        drawn_s: Budgets that queries draw from, with repetitions for larger shares.
    """

    def __init__(self, informed: Informed, drawn_s: tuple[float, ...]) -> None:
        budgets = np.unique(np.array(drawn_s, np.float64))
        drawn = np.array([drawn_s.count(one) for one in budgets.tolist()])
        self.budget_share = drawn / len(drawn_s)
        self.drawn_s, index = drawn_s, np.searchsorted(informed.budgets_s, budgets)
        self.good = informed.tables.good[:, :, index]  # (R, G, B)
        self.share, self.resources = informed.share, informed.resources
        self._use = informed.tables.work_s @ self.resources.uses  # (R, G, K)
        self._paid_s = informed.tables.work_s @ informed.gpus  # (R, G)
        # Keep recipes that no other beats: as good with as little of every resource.
        kept = np.ones(self.good.shape, np.bool_)
        earlier = np.tri(len(self.good), k=-1, dtype=np.bool_).T  # [j, i]: j comes before i
        for g in range(self.good.shape[1]):
            cost = np.column_stack([self._use[:, g], self._paid_s[:, g]])  # (R, K + 1)
            no_dearer = (cost[:, None] <= cost[None]).all(axis=2)
            cheaper = no_dearer & ~no_dearer.T
            for b, good in enumerate(self.good[:, g].T):
                better, as_good = good[:, None] > good[None], good[:, None] >= good[None]
                beats = no_dearer & as_good & (better | cheaper | earlier)
                kept[:, g, b] = ~beats.any(axis=0)
        self._columns = np.nonzero(kept)  # (n,) recipe, group and budget

    @property
    def reach(self) -> NDArray[np.float64]:
        """Share of the queries with each budget that is solved on idle servers, (B,)."""
        best: NDArray[np.float64] = self.good.max(axis=0)  # (G, B)
        return self.share @ best

    def plan(
        self,
        rate_per_min: float,
        *,
        weights: tuple[float, ...] | None = None,
        worst: bool = False,
        cap_s: float = math.inf,
    ) -> SteadyPlan:
        """Return the optimum at a rate.

        Args:
            rate_per_min: Mean arrival rate.
            weights: Weight of a solved query with each budget, (B,); None: all alike.
            worst: Whether the smallest over budgets of goodput over `reach` counts.
            cap_s: Most GPU-seconds a query.
        """
        budgets, (of_r, of_g, of_b) = len(self.budget_share), self._columns
        n, each = len(of_r), of_g * len(self.budget_share) + of_b
        query = self.share[of_g] * self.budget_share[of_b]  # (n,)
        value = np.ones(budgets) if weights is None else np.array(weights)
        value = value / (value @ self.budget_share)
        once = (each == np.arange(each.max() + 1)[:, None]).astype(np.float64)
        load = (self._use[of_r, of_g] * query[:, None]).T  # (K, n)
        pay = self._paid_s[of_r, of_g] * query
        rows, limits = [once, load], [np.ones(len(once)), self.resources.rate * 60.0 / rate_per_min]
        if np.isfinite(cap_s):
            rows, limits = [*rows, pay[None]], [*limits, np.array([cap_s])]
        matrix, worth = np.concatenate(rows), self.good[of_r, of_g, of_b] * query
        objective = worth * value[of_b]
        if worst:  # one more variable, the least ratio
            tier = np.where(of_b == np.arange(budgets)[:, None], -worth, 0.0)
            floor = np.append(np.zeros(len(matrix)), self.reach * self.budget_share)
            matrix = np.column_stack([np.concatenate([matrix, tier]), floor])
            limits, objective = [*limits, np.zeros(budgets)], np.append(np.zeros(n), 1.0)
        score, x, _ = maximise(objective, matrix, np.concatenate(limits))
        return SteadyPlan(score, float(pay @ x[:n]))

    def of_arrivals(self, arrival_s: NDArray[np.float64], weights: Sequence[float] = ()) -> float:
        """Return a bound on the goodput of queries that arrive at given times, repeated forever.

        Every resource has a price in every window of time. A query's work may be done until its
        budget has passed, so it pays about the lowest price on the way. Any prices give a bound
        (weak duality); L-BFGS improves them on a smoothed function, in steps of less smoothing.

        Args:
            arrival_s: (n,) ascending, from 0 on.
            weights: Weight of a solved query with each budget, (B,); all alike without.
        """
        from scipy.optimize import minimize

        n, windows = len(arrival_s), int(arrival_s[-1] / WINDOW_S) + 1
        came = np.bincount((arrival_s / WINDOW_S).astype(int), minlength=windows) / n  # (T,)
        limit = self.resources.rate * WINDOW_S / n  # (K,) seconds of work in a window, per query
        order = np.lexsort(self._columns)  # by budget, then by group
        of_r, of_g, of_b = (index[order] for index in self._columns)
        worth = np.array(weights or np.ones(len(self.budget_share)))
        worth = worth / (worth @ self.budget_share)
        good, use = self.good[of_r, of_g, of_b] * worth[of_b], self._use[of_r, of_g]  # (c,), (c, K)
        first = np.flatnonzero(np.diff(of_b * len(self.share) + of_g, prepend=-1))
        sizes = np.diff(first, append=len(order))
        share = self.share[of_g[first]] * self.budget_share[of_b[first]]  # of each class
        ahead = [  # (T, d) windows in which the work of each budget may be done
            np.add.outer(np.arange(windows), np.arange(math.ceil(budget_s / WINDOW_S) + 1))
            % windows
            for budget_s in np.unique(self.drawn_s)
        ]

        def dual(flat: NDArray[np.float64], width: float) -> tuple[float, NDArray[np.float64]]:
            prices = flat.reshape(windows, -1)
            low = np.empty((len(ahead), *prices.shape))
            parts = []
            for b, at in enumerate(ahead):
                near = np.exp(-(prices[at] - prices[at].min(axis=1, keepdims=True)) / width)
                parts.append(near / near.sum(axis=1, keepdims=True))  # (T, d, K) sums to 1
                low[b] = prices[at].min(axis=1) - width * np.log(near.sum(axis=1))
            gain = good - np.einsum("ctk,ck->tc", low[of_b], use)
            top = np.maximum(np.maximum.reduceat(gain, first, axis=1), 0.0)
            near = np.exp((gain - np.repeat(top, sizes, axis=1)) / width)
            total = np.add.reduceat(near, first, axis=1) + np.exp(-top / width)
            value = came @ (top + width * np.log(total)) @ share + (prices @ limit).sum()
            weight = near * np.repeat(share / total, sizes, axis=1) * came[:, None]  # (T, c)
            slope = np.tile(limit, (windows, 1))
            for b, (at, part) in enumerate(zip(ahead, parts, strict=True)):
                work = weight[:, of_b == b] @ use[of_b == b]  # (T, K)
                np.subtract.at(slope, at, part * work[:, None])
            return float(value), slope.ravel()

        prices = np.full(windows * len(limit), 0.1)
        solver: dict[str, Any] = {"method": "L-BFGS-B", "jac": True, "options": {"maxiter": 200}}
        for width in (0.03, 0.01, 0.003, 0.001):
            bounds = [(0.0, None)] * len(prices)
            prices = minimize(dual, prices, (width,), bounds=bounds, **solver).x
        return float(dual(prices, 1e-6)[0])

    def capacity_per_min(self) -> float:
        """Return the rate at which goodput has fallen to 90 % of that on idle servers."""
        wanted = AT_CAPACITY * float(self.reach @ self.budget_share)
        low = high = 1.0
        while self.plan(low).score < wanted:
            low, high = low / 4.0, low
        while self.plan(high).score >= wanted:
            low, high = high, high * 4.0
        while high / low > _CLOSE:
            middle = float(np.sqrt(low * high))
            low, high = (middle, high) if self.plan(middle).score >= wanted else (low, middle)
        return low


# Limits of tracks


@lru_cache(maxsize=16)
def _informed(pool: str, workload: str, budgets_s: tuple[float, ...]) -> Informed:
    """Search recipes for a workload on its pool, up to two minutes of one core; once a process."""
    where = {"pool": pool, "workload": workload, "num_queries": 1, "observation": "index"}
    return informed(StreamEnv.simulation_of(where, 1), np.array(budgets_s))


def bound_of(scenario: Scenario) -> SteadyBound:
    """Return the bounds of a scenario, on the questions for tests.

    The search knows all budgets of the workloads' tiers and of the scenario.

    Raises:
        InfraMindError: SciPy is missing, or the scenario cannot be used.
    """
    budgets_s = tuple(sorted({*BUDGET_TIERS_S, *_MORE_BUDGETS_S, *scenario.drawn_s}))
    return SteadyBound(_informed(scenario.pool, scenario.workload, budgets_s), scenario.drawn_s)


def compute_limits(
    name_or_path: str,
    *,
    again: bool = False,
    bound_of: Callable[[Scenario], SteadyBound] = bound_of,
) -> Path:
    """Write the limits of a track's scenarios; those that still hold are kept.

    Args:
        name_or_path: The track.
        again: Whether bounds that hold are computed again, too. Capacities that hold stay:
            results at other rates could not be compared.
        bound_of: Returns the bounds of a scenario.

    Returns:
        The file.
    """
    track, (path, kept) = load_track(name_or_path), kept_limits(name_or_path)
    computed: dict[str, Any] = {}
    for name, scenario in track.scenarios.items():
        limits = kept.get(name)
        if limits is not None and limits.constants != scenario.constants():
            limits = None
        if limits is None or again or not set(track.loads) <= set(limits.informed):
            limits = _limits(track, scenario, bound_of(scenario), limits)
            say(f"{name}: {limits.capacity_per_min:g} queries/min")
        computed[name] = {**limits.model_dump(), "reach": list(limits.reach)}
    content = yaml.safe_dump({"scenarios": computed}, sort_keys=False, default_flow_style=None)
    replace_text(path, _HEAD.format(name=track.name) + content)
    return path


def _limits(
    track: TrackConfig, scenario: Scenario, bound: SteadyBound, limits: Limits | None
) -> Limits:
    """Compute the limits of a scenario; capacity, work and reach of `limits` stay."""
    if limits is None:
        capacity_per_min = float(f"{bound.capacity_per_min():.3g}")
        limits = Limits(
            constants=scenario.constants(),
            capacity_per_min=capacity_per_min,
            work_s=float(f"{bound.plan(capacity_per_min).work_s:.3g}"),
            reach=tuple(round(float(share), 4) for share in bound.reach),
            informed={},
        )
    cap_s = math.inf if scenario.work_cap is None else scenario.work_cap * limits.work_s
    worst, process, informed = track.counts == "worst", make_arrivals(scenario.arrivals), {}
    for load in sorted({*track.loads, *limits.informed}):  # also those of suites
        rate_per_min = load * limits.capacity_per_min
        if process.kind == "poisson" or worst:
            plan = bound.plan(rate_per_min, weights=scenario.weights, worst=worst, cap_s=cap_s)
            score = plan.score
        else:
            base = load * (limits.capacity_per_min / process.mean_rate_factor())
            rngs = map(np.random.default_rng, range(STREAMS))
            streams = [process.sample(base, 3000, rng) for rng in rngs]
            scores = [bound.of_arrivals(arrival_s, scenario.weights) for arrival_s in streams]
            score = float(np.mean(scores))
        informed[load] = min(round(score, 4), 1.0)
    return limits.model_copy(update={"informed": informed})
