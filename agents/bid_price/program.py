"""Prices of servers at an arrival rate, by linear programming.

The program shares out the queries of every kind (domain, apparent ease, budget) among the recipes,
so that most are right in time and the servers can do the work. The dual variable of a server is the
price of its time at that rate. Calls slow those of other models on the same GPU, so the program is
solved a few times, each time with the slowdown by the calls that the last solution keeps in flight,
and for every set of models: to leave a model out makes others faster, which no dual variable shows.
Where the GPU-seconds of a query are capped, the cap is one more row, and its dual variable is the
price of a GPU-second, which every server's time costs on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import ndtr

from agents.runs import Array
from inframind_gym.configs import Fraction, NonNegative, Number, Positive, StrictModel
from inframind_gym.evaluation.bounds import maximise
from inframind_gym.policies.bid_price import BY_RECIPE, Estimates, Prices

EASE_CLASSES: Final = 3  # of the questions of a domain
AT_CAPACITY: Final = 0.9  # of the value on idle servers, as in the benchmark
# A second of a slot of models that are left out, in right answers: more than any price that rises
# with the load, or a queue would bring calls to these models, which slow the others further.
TOO_DEAR: Final = 30.0
_SKIP: Final = 1.0  # loss by a query that no server takes; the policy skips none
_LOWEST: Final = 1e-6  # price, where there is more time than is worth having
_STEP: Final = 1.25  # ratio of the rates between which the capacity is looked for
_ROUNDS: Final = 3  # solutions for a set of models, after a first one
_FINALISTS: Final = 5  # sets of models that are solved for more than once


class ChoiceConfig(StrictModel):
    """Numbers of the choice beside the prices, as in `policies.bid_price.Prices`."""

    load: NonNegative = 1.0
    late_value: Fraction = 0.075
    caution: Number = 0.0
    patience_s: Positive = 110.0
    doubt: NonNegative = 0.05


class Demand(NamedTuple):
    """Kinds of queries: D domains, E classes of ease, B budgets, of which each is independent."""

    share: Array  # (D,) of the queries
    ease: Array  # (D, E) log odds, each class as many as the others
    budgets_s: Array  # (B,)
    budget_share: Array  # (B,)


class Plan(NamedTuple):
    """A solution at one rate."""

    value: float  # right answers in time, a query
    price: Array  # (M,) of a second of a slot, in right answers
    work_price: Array  # (M,) of the GPU-seconds of such a second
    in_flight: Array  # (M,) mean calls


def demand_of(
    share: Array,  # (D,) of the queries
    ease: Sequence[Array],  # log odds of the questions of every domain
    tiers_s: Array,  # budgets, each as often as it is drawn
    patience_s: float,  # budgets above count as this
) -> Demand:
    """Return the kinds of queries."""
    mean = np.zeros((len(share), EASE_CLASSES))
    for d, own in enumerate(ease):
        if len(own):
            mean[d] = [part.mean() for part in np.array_split(np.sort(own), EASE_CLASSES)]
    budgets_s, count = np.unique(np.minimum(tiers_s, patience_s), return_counts=True)
    return Demand(share, mean, budgets_s, count / count.sum())


def work_of_slots(known: Estimates, gpus: Array) -> Array:
    """Return the GPU-seconds (M,) of a second of a slot of models that have so many (M,) GPUs.

    A slot has its share of a full batch, in which a call takes longer than alone.
    """
    work: Array = gpus * np.exp(known.slowdown[:, -1]) / known.slots
    return work


def slowdown_of(known: Estimates, in_flight: Array) -> Array:
    """Return the factor (M,) by which calls are longer, with so many (M,) in flight in the mean."""
    models = len(known.slots)
    busy = 1.0 - np.exp(-in_flight) * (1.0 + 0.5 * in_flight)  # E[min(n / 2, 1)], n is Poisson
    fill = np.minimum(in_flight / known.slots, 1.0)
    slow: Array = np.exp(known.slowdown[:, :models] @ busy + known.slowdown[:, models] * fill)
    return slow


class PriceProgram:
    """The linear programs of one set of models."""

    def __init__(
        self,
        known: Estimates,  # of R recipes
        allowed: Array,  # recipes that need no other models
        demand: Demand,
        choice: ChoiceConfig,
        work: Array,  # (M,) GPU-seconds of a second of a slot
        cap_s: float,  # GPU-seconds that a query may take in the mean
    ) -> None:
        domains = np.flatnonzero(demand.share)
        tables = {n: getattr(known, n)[np.ix_(domains, allowed)] for n in BY_RECIPE}
        self.known, self._demand, self._choice = known._replace(**tables), demand, choice
        ease = demand.ease[domains]
        logit = self.known.logit[:, None] + ease[:, :, None]
        self._right = 1.0 / (1.0 + np.exp(-logit))[:, :, None]  # (D, E, 1, R)
        shape = (*ease.shape, len(demand.budgets_s), len(allowed))
        each = demand.share[domains, None, None] / ease.shape[1] * demand.budget_share
        self._weight = np.broadcast_to(each[..., None], shape)
        work_s = self.known.work_s[:, None, None] * self._weight[..., None]
        self._work_s = work_s.reshape(-1, work_s.shape[-1])  # (n, M)
        kinds = int(np.prod(shape[:-1]))
        self._work, self._cap_s = work, cap_s
        self._once = sparse.kron(sparse.eye(kinds), np.ones((1, len(allowed)))).tocsr()

    def solve(self, rate_per_min: float, in_flight: Array, rounds: int) -> Plan:
        """Return the plan at a rate.

        Args:
            rate_per_min: of arrivals.
            in_flight: (M,) by which calls are slowed at first.
            rounds: solutions after the first, each with the slowdown by the one before.
        """
        known, choice = self.known, self._choice
        late, log_budget = choice.late_value, np.log(self._demand.budgets_s)[:, None]
        sigma = np.sqrt(known.spread**2 + choice.doubt)[:, None]
        slow = slowdown_of(known, in_flight)
        for _ in range(rounds + 1):
            # Chances (D, B, R) of answers in time, as `choose` has them without queues.
            stretch = (known.path_s @ slow) / known.path_s.sum(axis=2)
            log_s = (known.log_latency + np.log(stretch) + choice.caution)[:, None]
            on_time = ndtr((log_budget - log_s) / sigma)
            worth = self._right * (late + (1.0 - late) * on_time[:, None])
            load = self._work_s * (rate_per_min / 60.0)
            rows, limit = [self._once, sparse.csr_matrix((load * slow).T)], [known.slots]
            if np.isfinite(self._cap_s):
                rows.append(sparse.csr_matrix(self._work_s @ self._work))
                limit.append(np.array([self._cap_s]))
            bounds = np.concatenate([np.ones(self._once.shape[0]), *limit])
            matrix = sparse.vstack(rows).tocsr()
            value, x, dual = maximise(((worth + _SKIP) * self._weight).ravel(), matrix, bounds)
            of_slots, of_work = np.split(dual[self._once.shape[0] :], [len(slow)])
            price = of_slots * slow * (rate_per_min / 60.0)
            plan = Plan(value - _SKIP, price, of_work.sum() * self._work, load.T @ x * slow)
            slow = np.sqrt(slow * slowdown_of(known, plan.in_flight))
        return plan


class Planner:
    """Plans at arrival rates, each for the best set of models."""

    def __init__(
        self,
        known: Estimates,  # of R recipes
        needs: Array,  # (R,) bit masks of the models that they use
        demand: Demand,
        choice: ChoiceConfig,
        work: Array,  # (M,) GPU-seconds of a second of a slot, without a cap not looked at
        cap_s: float = np.inf,  # GPU-seconds that a query may take in the mean
    ) -> None:
        models = len(known.slots)
        self._slots, self._programs = known.slots, dict[int, PriceProgram]()
        for chosen in range(1, 1 << models):
            allowed = np.flatnonzero((needs & np.uint32(~chosen & (1 << models) - 1)) == 0)
            if len(allowed):
                self._programs[chosen] = PriceProgram(known, allowed, demand, choice, work, cap_s)

    def _inside(self, chosen: int) -> Array:
        """Return 1.0 (M,) for the models of a set, which is given as a bit mask."""
        return np.array([float(chosen >> m & 1) for m in range(len(self._slots))])

    def plan(self, rate_per_min: float) -> Plan:
        """Return the plan at a rate; models outside its set are too dear."""
        full = {chosen: self._inside(chosen) * self._slots for chosen in self._programs}

        def value(chosen: int, rounds: int) -> float:
            return self._programs[chosen].solve(rate_per_min, full[chosen], rounds).value

        finalists = sorted(full, key=lambda chosen: -value(chosen, 0))[:_FINALISTS]
        best = max(finalists, key=lambda chosen: value(chosen, _ROUNDS))
        known = self._programs[best].known
        plan = self._programs[best].solve(rate_per_min, full[best], _ROUNDS)
        # What a second of each model's calls costs the calls of others that it slows, [o, m] by a
        # share of o's pace. The dual variables do not show that: a program has fixed slowdowns.
        slowed = 1.0 - np.exp(-known.slowdown[:, : len(known.slots)])
        harm = (plan.price * plan.in_flight) @ slowed / np.maximum(plan.in_flight, 1.0)
        price = np.maximum(plan.price, harm) + plan.work_price
        return plan._replace(price=np.where(self._inside(best) > 0.0, price, TOO_DEAR))

    def capacity_per_min(self) -> float:
        """Return the rate at which the value has fallen to 90 % of that on idle servers."""
        nothing = np.zeros_like(self._slots)
        idle = [program.solve(1.0, nothing, 0) for program in self._programs.values()]
        best = max(idle, key=lambda plan: plan.value)
        rate, before = 1.0 / float((best.in_flight / self._slots).max()), best.value
        wanted = AT_CAPACITY * best.value
        while (now := self.plan(rate).value) >= wanted:
            rate, before = rate * _STEP, now
        part = (before - wanted) / (before - now)
        return float(rate * _STEP ** (part - 1.0))


def prices_of(plans: Sequence[Plan], slots: Array, choice: ChoiceConfig) -> Prices:
    """Return prices (1, K): those of K plans, one a rate, where servers are as full as planned."""
    price = np.maximum([plan.price for plan in plans], _LOWEST)
    planned = np.array([plan.in_flight for plan in plans]) / slots
    numbers = {name: np.full((1, len(plans)), value) for name, value in choice.model_dump().items()}
    return Prices(**numbers, base=(np.log(price) - choice.load * planned)[None])
