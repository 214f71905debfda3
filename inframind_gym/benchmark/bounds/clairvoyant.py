"""The clairvoyant fluid bound: no scheduler, whatever it knows, solves more queries in time.

For every query of a sweep it is known what solving it takes at least
(`inframind_gym/policies/oracle/necessary.py`), and that all of it has to happen between its arrival and its
deadline. So for any two instants the work of the queries that are solved in time and whose windows
lie between them fits into that time. A linear program maximises the number of queries, in parts;
the intervals that its answer violates are added until none is, or `ROUNDS` times: every round's
answer is a bound already, the next is a tighter one.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.bounds.capacity import Resources, resources_of
from inframind_gym.benchmark.bounds.solver import maximise, sparse_rows
from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.policies.oracle.necessary import LEAST, num_options, options
from inframind_gym.policies.oracle.recipe import OUTCOME, PACE, RECIPE
from inframind_gym.policies.oracle.tables import set_idle_pace
from inframind_gym.simulator.quality import query_length_z
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.topology import MAX_NODES

ROUNDS: Final = 8
_CUTS = 24  # intervals a round and resource


def least_work(
    simulation: Simulation, e: int, budgets_s: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Ways to solve the queries of a sweep within their budgets on idle servers.

    Args:
        simulation: its environment `e` has been started.
        e: the environment.
        budgets_s: (N,) of its queries.

    Returns:
        (n,) the query of each way, (n, M) its work, and (n,) seconds from the query's arrival in
        which all of that work has to happen.
    """
    params, state = simulation.params, simulation.state
    count = int(state.stream[e]["num_queries"])
    key = state.stream[e]["key"]
    tasks = state.task[e, :count].astype(np.int64)
    card = cards(simulation.pool)
    pace = np.zeros(len(card), PACE)
    set_idle_pace(card, pace)
    models = len(card)
    width = num_options(models, simulation.num_routes)
    work, latency = np.zeros((count, width, models)), np.zeros((count, width))
    options(
        params, card, pace, key, tasks,
        np.array([query_length_z(key, q) for q in range(count)], np.float32),
        np.zeros(1, RECIPE), np.zeros((2, MAX_NODES)), np.zeros(1, OUTCOME),
        np.zeros((models, LEAST)), work, latency,
    )  # fmt: skip
    window = np.repeat(budgets_s[:, None], width, axis=1)
    if simulation.execution == "sequential":  # one node after the other; each one's latency counts
        window[:, 3 * simulation.num_routes :] *= MAX_NODES
    fits = latency <= budgets_s[:, None]
    keep: list[tuple[int, int]] = []
    for q in range(count):
        rows = np.flatnonzero(fits[q])
        keep += [(q, o) for o in rows[undominated(work[q, rows], window[q, rows])].tolist()]
    of, option = np.array(keep, np.int64).reshape(-1, 2).T
    return of, work[of, option], window[of, option]


def undominated(work: NDArray[np.float64], window: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of n ways are not beaten by one with less work everywhere and more time.

    Args:
        work: (n, M).
        window: (n,).
    """
    n = len(work)
    better = (work[:, None] <= work[None] + 1e-12).all(axis=2) & (window[:, None] >= window[None])
    tie = better & better.T
    better &= ~tie | (np.arange(n)[:, None] < np.arange(n)[None])
    np.fill_diagonal(better, False)
    return np.asarray(~better.any(axis=0), np.bool_)


def most_solved(
    arrival_s: NDArray[np.float64],
    of: NDArray[np.int64],
    work_s: NDArray[np.float64],
    window_s: NDArray[np.float64],
    resources: Resources,
) -> float:
    """Most queries that can be solved in time, in parts.

    Args:
        arrival_s: (N,) of the queries.
        of: (n,) query of each way to solve one.
        work_s: (n, M) its work.
        window_s: (n,) seconds from the arrival in which the work has to happen.
        resources: of the pool.
    """
    n = len(of)
    if n == 0:
        return 0.0
    use = work_s @ resources.uses  # (n, K)
    start, end = arrival_s[of], arrival_s[of] + window_s
    one = sparse_rows([(np.flatnonzero(of == q), None) for q in np.unique(of)], n)
    rows: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    limits: list[float] = []
    # Each query by its cheapest way: if that fits everywhere, no program need be solved.
    cheapest = np.zeros(n)
    order = np.lexsort((use.sum(axis=1), of))
    cheapest[order[np.unique(of[order], return_index=True)[1]]] = 1.0
    x, best = cheapest, float(len(np.unique(of)))
    for _ in range(ROUNDS):
        cuts = violated(x, start, end, use, resources)
        if not cuts:
            break
        for k, since, until in cuts:
            inside = np.flatnonzero((start >= since) & (end <= until))
            rows.append((inside, use[inside, k]))
            limits.append(float(resources.rate[k] * (until - since)))
        matrix = sparse_rows(rows, n, above=one)
        best, x, _ = maximise(
            np.ones(n), matrix, np.concatenate([np.ones(one.shape[0]), np.array(limits)])
        )
    return best


def violated(
    x: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    use: NDArray[np.float64],
    resources: Resources,
) -> list[tuple[int, float, float]]:
    """Intervals that are asked to hold more work than fits: (resource, from, to), worst first."""
    active = np.flatnonzero(x > 1e-9)
    order = active[np.argsort(end[active], kind="stable")]
    found: list[tuple[int, float, float]] = []
    for k, rate in enumerate(resources.rate.tolist()):
        load = x[order] * use[order, k]
        worst: list[tuple[float, float, float]] = []
        for since in np.unique(start[order]).tolist():
            inside = start[order] >= since
            over = np.cumsum(np.where(inside, load, 0.0)) - rate * (end[order] - since)
            over[~inside] = -np.inf
            at = int(np.argmax(over))
            if over[at] > 1e-6:
                worst.append((float(over[at]), since, float(end[order][at])))
        worst.sort(reverse=True)
        found += [(k, since, until) for _, since, until in _spread(worst)]
    return found


def _spread(worst: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The worst one, and a choice of the others: those next to one another say the same."""
    if len(worst) <= _CUTS:
        return worst
    step = len(worst) / _CUTS
    return [worst[int(i * step)] for i in range(_CUTS)]


def clairvoyant_goodput(simulation: Simulation, e: int, budgets_s: NDArray[np.float64]) -> float:
    """Largest goodput per query of the sweep that environment `e` has been started with."""
    of, work_s, window_s = least_work(simulation, e, budgets_s)
    arrival_s = simulation.state.arrival_s[e, : len(budgets_s)]
    solved = most_solved(arrival_s, of, work_s, window_s, resources_of(simulation.pool))
    return solved / len(budgets_s)
