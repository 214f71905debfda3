"""The informed bound in steady load, and the capacity of a pool for a workload.

A linear program as in `informed.py`, of rates in place of an episode: the work of the queries that
arrive in a second fits into a second of the servers. No query is early or late, so only the load
counts, and which queries are worth the work.

*Capacity* is the rate at which the bound has fallen to 90 % of that on idle servers. There is no
rate beyond which nothing works: ever cheaper recipes serve ever more queries, ever worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.bounds.informed import Informed
from inframind_gym.benchmark.bounds.program import maximise
from inframind_gym.errors import require

AT_CAPACITY: Final = 0.9  # of the bound on idle servers
_CLOSE: Final = 1.002  # ratio of rates between which the capacity lies in the end


@dataclass(frozen=True)
class SteadyPlan:
    """An optimum in steady load.

    Attributes:
        score: What was maximised: (weighted) goodput, or the smallest of the budgets.
        work_s: GPU-seconds a query.
    """

    score: float
    work_s: float


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
        sparse = require("scipy.sparse", "the computation of fluid bounds", "bounds")
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
