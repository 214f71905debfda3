"""The choice itself, compiled: the recipe of the best expected balance of success and price."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import make_jit

_SQRT_HALF = math.sqrt(0.5)


class Knowledge(NamedTuple):
    """What was learned of R recipes in D domains on M models, at idle servers, and of load.

    Times are wall-clock seconds of single calls under the workload's lengths.
    """

    logit: NDArray[np.float64]  # (D, R) log odds of a right answer to a question of no difficulty
    log_latency: NDArray[np.float64]  # (D, R) mean of the log of the latency in s
    spread: NDArray[np.float64]  # (D, R) standard deviation of the same
    path_s: NDArray[np.float64]  # (D, R, M) seconds of each model on the slowest line of calls
    path_calls: NDArray[np.float64]  # (D, R, M) calls of each model on it
    work_s: NDArray[np.float64]  # (D, R, M) seconds of all calls: how long slots are taken
    call_s: NDArray[np.float64]  # (M,) seconds of one call
    slots: NDArray[np.float64]  # (M,) calls that a server runs at once
    slowdown: NDArray[np.float64]  # (M, M + 1) log slowdown by every busy model, and by the batch
    budgets_s: NDArray[np.float64]  # (B,) rising: budgets for which waiting is known
    turns: NDArray[np.float64]  # (B, M) waiting per round of slots that is ahead, in calls


class Prices(NamedTuple):
    """What the search tunes: P sets of prices, of which every query pays one.

    A second of a slot of model m costs exp(base + load · calls in flight / slots).
    """

    base: NDArray[np.float64]  # (P, M)
    load: NDArray[np.float64]  # (P, M)
    late_value: NDArray[np.float64]  # (P,) what a right answer is worth that comes too late
    caution: NDArray[np.float64]  # (P,) log of the factor by which latencies are overestimated
    patience_s: NDArray[np.float64]  # (P,) budgets above are taken for this
    doubt: NDArray[np.float64]  # (P,) variance added to that of log latency


MOST_LOAD = 10.0  # rounds of slots in flight beyond which a price rises no further


def edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where the value (K,), rising and positive, that is nearest in ratio changes, (K - 1,)."""
    return np.asarray(np.sqrt(values[:-1] * values[1:]), np.float64)


@make_jit()
def nearest(values: NDArray[np.float64], wanted: float) -> int:
    """Position of the value (K,), rising and positive, that is nearest in ratio: see `edges`."""
    k = 0
    while k + 1 < len(values) and wanted * wanted > values[k] * values[k + 1]:
        k += 1
    return k


@make_jit(allocates=True)
def choose(
    known: Knowledge,
    prices: Prices,
    needs: NDArray[np.uint32],
    priced: NDArray[np.int64],
    in_flight: NDArray[np.float64],
    budget_s: NDArray[np.float64],
    domain: NDArray[np.int64],
    ease: NDArray[np.float64],
    models_up: NDArray[np.uint32],
) -> NDArray[np.int64]:
    """The best recipe for each of n queries.

    Args:
        known: what was learned.
        prices: P sets of them.
        needs: (R,) bit masks of models that recipes use.
        priced: (n,) which prices each query pays.
        in_flight: (n, M) calls at each model.
        budget_s: (n,) seconds that are left.
        domain: (n,).
        ease: (n,) log odds by which the question looks easier than others of its domain.
        models_up: (n,) bit masks.

    Returns:
        (n,) recipes; the first one where all need a model that is down.
    """
    n, models = in_flight.shape
    recipes = needs.shape[0]
    out = np.zeros(n, np.int64)
    price = np.zeros(models)
    slow = np.zeros(models)
    wait = np.zeros(models)
    for i in range(n):
        c = priced[i]
        d = domain[i]
        tier = nearest(known.budgets_s, budget_s[i])
        for m in range(models):
            load = in_flight[i, m] / known.slots[m]
            price[m] = math.exp(prices.base[c, m] + prices.load[c, m] * min(load, MOST_LOAD))
            log_slow = known.slowdown[m, models] * min(load, 1.0)
            for other in range(models):
                if other != m:
                    log_slow += known.slowdown[m, other] * min(0.5 * in_flight[i, other], 1.0)
            slow[m] = math.exp(log_slow)
            rounds = max(in_flight[i, m] + 1.0 - known.slots[m], 0.0) / known.slots[m]
            wait[m] = known.turns[tier, m] * rounds * known.call_s[m] * slow[m]
        log_budget = math.log(min(budget_s[i], prices.patience_s[c])) - prices.caution[c]
        late = prices.late_value[c]
        best = -np.inf
        for r in range(recipes):
            if needs[r] & ~models_up[i]:
                continue
            cost = 0.0
            for m in range(models):
                cost += price[m] * known.work_s[d, r, m]
            if 1.0 - cost <= best:  # not even if it were right for sure
                continue
            right = 1.0 / (1.0 + math.exp(-(known.logit[d, r] + ease[i])))
            if right - cost <= best:  # not even if it were on time for sure
                continue
            idle_s = 0.0
            path_s = 0.0
            for m in range(models):
                idle_s += known.path_s[d, r, m]
                path_s += slow[m] * known.path_s[d, r, m] + wait[m] * known.path_calls[d, r, m]
            log_latency = known.log_latency[d, r] + math.log(path_s / idle_s)
            sigma = math.sqrt(known.spread[d, r] ** 2 + prices.doubt[c])
            on_time = 0.5 * math.erfc((log_latency - log_budget) / sigma * _SQRT_HALF)
            score = right * (late + (1.0 - late) * on_time) - cost
            if score > best:
                best = score
                out[i] = r
    return out
