"""Bounds of tracks, by linear programming over the recipes of `inframind_gym.evaluation.informed`.

`SteadyBound` is that of a router which knows every distribution but no single outcome, in steady
load: the work of the queries that arrive in a second fits into a second of the servers. No query is
early or late, so only the load counts, and which queries are worth the work. *Capacity* is the rate
at which it has fallen to 90 % of that on idle servers. There is no rate beyond which nothing works:
ever cheaper recipes serve ever more queries, ever worse. ``inframind bench limits`` writes both for
the scenarios of tracks.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing import StreamEnv
from inframind_gym.evaluation.informed import Informed, maximise
from inframind_gym.evaluation.scenarios import (
    Limits,
    Scenario,
    TrackConfig,
    kept_limits,
    load_track,
)
from inframind_gym.files import replace_text
from inframind_gym.progress import say
from inframind_gym.simulator.workload import BUDGET_TIERS_S

AT_CAPACITY: Final = 0.9  # of the bound on idle servers
_CLOSE: Final = 1.002  # ratio of rates between which the capacity lies in the end
_MORE_BUDGETS_S: Final = (5.0, 20.0, 60.0)  # of shipped scenarios, beside the published tiers
_HEAD: Final = """\
# Written by `inframind bench limits {name}`: capacities and bounds of the track's scenarios, by
# linear programming for the constants of their pools and workloads.
"""


@lru_cache(maxsize=16)
def _informed(arguments: str, budgets_s: tuple[float, ...]) -> Informed:
    """Search recipes for an environment, up to two minutes of one core; once a process."""
    shown = {"observation": "index", **json.loads(arguments)}
    return Informed(StreamEnv.simulation_of(shown, 1), np.array(budgets_s))


# Steady load


class SteadyPlan(NamedTuple):
    """An optimum in steady load."""

    score: float  # what was maximised: (weighted) goodput, or the smallest of the budgets
    work_s: float  # GPU-seconds a query


class SteadyBound:
    """Bounds of one workload on its pool.

    Args:
        informed: Recipes, of which the search has known all of the budgets.
        drawn_s: Budgets that queries draw from, each as often as it stands here.
    """

    def __init__(self, informed: Informed, drawn_s: tuple[float, ...]) -> None:
        budgets = np.unique(np.array(drawn_s, np.float64))
        drawn = np.array([drawn_s.count(one) for one in budgets.tolist()])
        self.budget_share = drawn / len(drawn_s)
        known = np.searchsorted(informed.budgets_s, budgets)
        self.good = informed.tables.good[:, :, known]  # (R, G, B)
        self.share, self.resources = informed.share, informed.resources
        gpus = [len(model.all_gpus) for model in informed.simulation.pool.models]
        self._use = informed.tables.work_s @ self.resources.uses  # (R, G, K)
        self._paid_s = informed.tables.work_s @ np.array(gpus, np.float64)  # (R, G)
        self._columns = np.nonzero(self._undominated())  # (n,) recipe, group and budget

    def _undominated(self) -> NDArray[np.bool_]:
        """Return (R, G, B) where no other recipe is as good for as little of every resource."""
        kept = np.ones(self.good.shape, np.bool_)
        earlier = np.tri(len(self.good), k=-1, dtype=np.bool_).T  # [j, i]: j comes before i
        for g in range(self.good.shape[1]):
            cost = np.column_stack([self._use[:, g], self._paid_s[:, g]])  # (R, K + 1)
            no_dearer = (cost[:, None] <= cost[None]).all(axis=2)
            cheaper = no_dearer & ~no_dearer.T
            for b in range(self.good.shape[2]):
                good = self.good[:, g, b]
                better = good[:, None] > good[None]
                as_good = good[:, None] >= good[None]
                beats = no_dearer & as_good & (better | cheaper | earlier)
                kept[:, g, b] = ~beats.any(axis=0)
        return kept

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
        cap_s: float = float("inf"),
    ) -> SteadyPlan:
        """Return the optimum at a rate.

        Args:
            rate_per_min: Mean arrival rate.
            weights: Weight of a solved query with each budget, (B,); None: all alike.
            worst: Whether the smallest over budgets of goodput over `reach` counts.
            cap_s: Most GPU-seconds a query.
        """
        from scipy import sparse

        budgets, (of_r, of_g, of_b) = len(self.budget_share), self._columns
        n = len(of_r)
        query = self.share[of_g] * self.budget_share[of_b]  # (n,)
        value = np.ones(budgets) if weights is None else np.array(weights)
        value = value / (value @ self.budget_share)
        each = of_g * budgets + of_b
        once = sparse.csr_matrix((np.ones(n), (each, np.arange(n))))
        load = (self._use[of_r, of_g] * query[:, None]).T  # (K, n)
        pay = self._paid_s[of_r, of_g] * query
        rows = [once, load] + ([pay[None]] if np.isfinite(cap_s) else [])
        limits = [np.ones(once.shape[0]), self.resources.rate * 60.0 / rate_per_min]
        limits += [np.array([cap_s])] if np.isfinite(cap_s) else []
        worth = self.good[of_r, of_g, of_b] * query
        objective = worth * value[of_b]
        matrix: Any = sparse.vstack([sparse.csr_matrix(part) for part in rows])
        if worst:  # one more variable, the least ratio
            tier = sparse.csr_matrix((-worth, (of_b, np.arange(n))))
            floor = sparse.csr_matrix((self.reach * self.budget_share)[:, None])
            none = sparse.csr_matrix((matrix.shape[0], 1))
            matrix = sparse.vstack([sparse.hstack([matrix, none]), sparse.hstack([tier, floor])])
            limits.append(np.zeros(budgets))
            objective = np.concatenate([np.zeros(n), [1.0]])
        score, x, _ = maximise(objective, matrix.tocsr(), np.concatenate(limits))
        return SteadyPlan(score, float(pay @ x[:n]))

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


class SteadyBounds:
    """Bounds of scenarios; recipes are searched once for each workload and pool.

    The search knows all budgets of the workloads' tiers and of the scenario.
    """

    def __init__(self) -> None:
        self._informed: dict[tuple[str, str], Informed] = {}

    def of(self, scenario: Scenario) -> SteadyBound:
        """Return the bounds of a scenario, on the questions for tests.

        Raises:
            InfraMindError: SciPy is missing, or the scenario cannot be used.
        """
        key = (scenario.pool, scenario.workload)
        known = self._informed.get(key)
        if known is None or not set(scenario.drawn_s) <= set(known.budgets_s.tolist()):
            where = {"pool": scenario.pool, "workload": scenario.workload, "num_queries": 1}
            budgets = sorted({*BUDGET_TIERS_S, *_MORE_BUDGETS_S, *scenario.drawn_s})
            known = self._informed[key] = _informed(json.dumps(where), tuple(budgets))
        return SteadyBound(known, scenario.drawn_s)


def compute_limits(
    name_or_path: str, *, again: bool = False, bounds: SteadyBounds | None = None
) -> Path:
    """Write the limits of a track's scenarios, those that hold still as they are.

    Args:
        name_or_path: The track.
        again: Whether bounds that hold are computed again, too. Capacities that hold stay:
            results at other rates could not be compared.
        bounds: Where recipes are kept that several tracks can share.

    Returns:
        The file.
    """
    track, (path, kept) = load_track(name_or_path), kept_limits(name_or_path)
    bounds = bounds or SteadyBounds()
    text = _HEAD.format(name=track.name) + "scenarios:\n"
    for name, scenario in track.scenarios.items():
        limits = kept.get(name)
        if limits is not None and limits.constants != scenario.constants():
            limits = None
        if limits is None or again or not set(track.loads) <= set(limits.informed):
            limits = _limits(track, scenario, bounds.of(scenario), limits)
            say(f"{name}: {limits.capacity_per_min:g} queries/min")
        text += _as_yaml(name, limits)
    path.parent.mkdir(exist_ok=True)
    replace_text(path, text)
    return path


def _limits(
    track: TrackConfig, scenario: Scenario, bound: SteadyBound, known: Limits | None
) -> Limits:
    """Compute the limits of a scenario; of `known` capacity, work and reach stay."""
    if known is None:
        capacity_per_min = float(f"{bound.capacity_per_min():.3g}")
        work_s = float(f"{bound.plan(capacity_per_min).work_s:.3g}")
        reach = tuple(round(float(share), 4) for share in bound.reach)
    else:
        capacity_per_min, work_s, reach = known.capacity_per_min, known.work_s, known.reach
    cap_s = float("inf") if scenario.work_cap is None else scenario.work_cap * work_s
    options: dict[str, Any] = {"worst": track.counts == "worst", "cap_s": cap_s}
    informed = {}
    for load in sorted({*track.loads, *(known.informed if known else ())}):  # also of suites
        plan = bound.plan(load * capacity_per_min, weights=scenario.weights, **options)
        informed[load] = min(round(plan.score, 4), 1.0)
    return Limits(
        constants=scenario.constants(),
        capacity_per_min=capacity_per_min,
        work_s=work_s,
        reach=reach,
        informed=informed,
    )


def _as_yaml(name: str, limits: Limits) -> str:
    """Return limits as lines of their file, on few lines."""
    informed = ", ".join(f"{load:g}: {score:.4f}" for load, score in limits.informed.items())
    return (
        f"  {name}:\n"
        f"    constants: '{limits.constants}'\n"
        f"    capacity_per_min: {limits.capacity_per_min:g}\n"
        f"    work_s: {limits.work_s:g}\n"
        f"    reach: [{', '.join(f'{share:.4f}' for share in limits.reach)}]\n"
        f"    informed: {{{informed}}}\n"
    )
