"""The clairvoyant fluid bound: no scheduler, whatever it knows, solves more queries in time.

*Necessary work*. Recipes of one node are played as they are. For all others, whatever their graph,
roles and routes, only what none of them can do without is counted:

- the deciding call, on some model m, which must be right when it reads nothing but right answers;
- a right answer to read (unless the deciding call is right against wrong ones): some call that is
  right with everything in its favour, on some model r;
- one more execution on m, the most used model, and two executions at least; but where the task
  shows its tests, nodes can hand on what they read for nothing.

Each call is counted as the shortest of its kind over all nodes and strategies, with the shortest
prompt. A schedule that solves the query and spends less does not exist.

*The program*. All of a query's work has to happen between its arrival and its deadline. So for any
two instants the work of the queries that are solved in time and whose windows lie between them fits
into that time. A linear program maximises the number of queries, in parts; the intervals that its
answer violates are added until there are none, or `ROUNDS` times: every round's answer is a bound
already, the next is a tighter one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.benchmark.bounds.program import Resources, maximise, resources_of, scipy
from inframind_gym.envs.routing.simulation import Simulation
from inframind_gym.policies.oracle import (
    Oracle,
    Query,
    is_right,
    jit,
    make_oracle,
    outcomes_of,
    query_of,
    recipes_of,
    shows_tests,
    spend,
)
from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.quality import FINAL_STRATEGY, call_id
from inframind_gym.simulator.server.state import cards
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_NODES, SECOND
from inframind_gym.simulator.workflow.workflow import SEQUENTIAL

ROUNDS: Final = 8
_CUTS = 24  # intervals a round and resource

# Columns of the table of least calls, one row a model.
ANY_WORK, NEXT_WORK, ANY_S = 0, 1, 2  # of an execution: least, least of another node; least time
RIGHT_WORK, RIGHT_S = 3, 4  # of an execution that can be right
FINAL_WORK, FINAL_S = 5, 6
FINAL_RIGHT, FINAL_SURE = 7, 8  # 1: right after right answers; right after wrong ones, too
LEAST = 9

_IO, _REFLECTION = 0, 4  # indices into TOPOLOGIES
_ONE_NODE = (  # ways to play a route alone: topology, agents, kind of role
    (_IO, 1, RoleRule.SINGLE),
    (_REFLECTION, 1, RoleRule.SINGLE),
    (_REFLECTION, 1, RoleRule.DOUBLE),
)


@inner
def best_fit(params: EnvParams, task: int) -> float:
    """Return the most that a role can add to an answer, in logits."""
    domain = params.task_domain[task]
    gain = params.response.profile[params.response.task_profile[task]].role_gain
    first = params.role_start[domain]
    best = gain * params.role_fit[task, first]
    for role in range(first + 1, first + params.role_count[domain]):
        best = max(best, gain * params.role_fit[task, role])
    return float(best)


@inner
def least_calls(oracle: Oracle, query: Query, least: Any) -> None:
    """Write the table of least calls of a query, (M, LEAST)."""
    tables = oracle.params.response
    p = int(tables.task_profile[query.task])
    profile = tables.profile[p]
    fit = best_fit(oracle.params, query.task)
    for m in range(least.shape[0]):
        row = least[m]
        for column in range(LEAST):
            row[column] = np.inf
        for node in range(MAX_NODES):
            of_node = np.inf
            for s in range(tables.log_strategy.shape[1]):
                favour = tables.strategy_gain[p, s] + fit + abs(profile.info_gain)
                call = call_id(node, FIRST, m, s)
                _, cut, work, seconds = spend(oracle, query, call, m, s, 0)
                of_node = min(of_node, work)
                row[ANY_S] = min(row[ANY_S], seconds)
                if is_right(oracle, query, call, m, favour, cut):
                    row[RIGHT_WORK] = min(row[RIGHT_WORK], work)
                    row[RIGHT_S] = min(row[RIGHT_S], seconds)
                call = call_id(node, SECOND, m, s)
                _, cut, more, longer = spend(oracle, query, call, m, s, 0)
                favour += max(profile.reflection_gain, 0.0)
                if is_right(oracle, query, call, m, favour, cut):
                    row[RIGHT_WORK] = min(row[RIGHT_WORK], work + more)
                    row[RIGHT_S] = min(row[RIGHT_S], seconds + longer)
            if of_node < row[ANY_WORK]:
                row[NEXT_WORK] = row[ANY_WORK]
                row[ANY_WORK] = of_node
            else:
                row[NEXT_WORK] = min(row[NEXT_WORK], of_node)
        call = call_id(0, FINAL, m, FINAL_STRATEGY)
        _, cut, row[FINAL_WORK], row[FINAL_S] = spend(oracle, query, call, m, FINAL_STRATEGY, 0)
        own = tables.strategy_gain[p, FINAL_STRATEGY]
        gain = abs(profile.final_info_gain)
        row[FINAL_RIGHT] = 1.0 if is_right(oracle, query, call, m, own + gain, cut) else 0.0
        row[FINAL_SURE] = 1.0 if is_right(oracle, query, call, m, own - gain, cut) else 0.0


@inner
def add_larger(
    params: EnvParams,
    least: Any,
    final: int,
    reader: int,
    tested: bool,
    work_s: Any,
    latency_s: Any,
) -> None:
    """Write two ways of larger recipes: deciding on `final`, with another call on `reader`.

    In one of them the right answer is on `reader`; in the other it is on `final`, and `reader` is
    where the other execution is.

    Args:
        tested: whether the task shows its tests.
        work_s: (2, M), 0 before.
        latency_s: (2,), infinite before, and where a way cannot solve the query.
    """
    row, other = least[final], least[reader]
    if row[FINAL_RIGHT] == 0.0:
        return
    timed = params.settings[0].execution != SEQUENTIAL
    sure = row[FINAL_SURE] == 1.0
    right_work = other[ANY_WORK] if sure else other[RIGHT_WORK]
    right_s = other[ANY_S] if sure else other[RIGHT_S]
    final_s = row[FINAL_S] if timed else 0.0
    final_work = row[FINAL_WORK] if timed else 0.0
    if tested:
        if right_work < np.inf:
            work_s[0, final] += final_work
            work_s[0, reader] += right_work
            latency_s[0] = final_s + right_s
        return
    if reader != final and right_work < np.inf:
        work_s[0, final] += final_work + row[ANY_WORK]
        work_s[0, reader] += right_work
        latency_s[0] = final_s + max(row[ANY_S], right_s)
    right_work = row[ANY_WORK] if sure else row[RIGHT_WORK]
    right_s = row[ANY_S] if sure else row[RIGHT_S]
    if right_work < np.inf:
        work_s[1, final] += final_work + right_work
        if reader == final:
            more = max(row[ANY_WORK], row[ANY_WORK] + row[NEXT_WORK] - right_work)
        else:
            more = other[ANY_WORK]
        work_s[1, reader] += more
        latency_s[1] = final_s + max(right_s, other[ANY_S])


@jit
def write_larger(
    oracle: Oracle,
    key: int,
    tasks: NDArray[np.int64],
    least: NDArray[np.float64],
    work_s: NDArray[np.float64],
    latency_s: NDArray[np.float64],
) -> None:
    """Write ways to solve each query of an episode such that no larger recipe does with less.

    Args:
        oracle: constants of the run, at the pace of idle servers.
        key: of the episode.
        tasks: (N,) by ordinal.
        least: (M, LEAST) scratch.
        work_s: (N, 2·M·M, M), 0 before: a larger recipe that solves the query does no less work
            than one of these.
        latency_s: (N, 2·M·M), infinite before: and is no faster; infinite where the way does not
            solve the query.
    """
    models = least.shape[0]
    for q in range(tasks.shape[0]):
        query = query_of(key, q, tasks[q])
        least_calls(oracle, query, least)
        tested = shows_tests(oracle.params, query)
        for final in range(models):
            for reader in range(models):
                o = 2 * (final * models + reader)
                ways = slice(o, o + 2)
                add_larger(
                    oracle.params, least, final, reader, tested, work_s[q, ways], latency_s[q, ways]
                )


def least_work(
    simulation: Simulation, e: int, budgets_s: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return ways to solve the queries of an episode within their budgets on idle servers.

    Args:
        simulation: its environment `e` has been started.
        e: the environment.
        budgets_s: (N,) of its queries.

    Returns:
        (n,) the query of each way, (n, M) its work, and (n,) seconds from the query's arrival in
        which all of that work has to happen.
    """
    state = simulation.state
    count = int(state.stream[e]["num_queries"])
    key, tasks = state.stream[e]["key"], state.task[e, :count].astype(np.int64)
    oracle = make_oracle(simulation.params, cards(simulation.pool))
    alone = recipes_of(
        [(*way, (route,)) for route in range(simulation.num_routes) for way in _ONE_NODE]
    )
    outcomes, work_alone = outcomes_of(oracle, key, tasks, alone)
    models, ways = len(oracle.card), 2 * len(oracle.card) ** 2
    work, latency = np.zeros((count, ways, models)), np.full((count, ways), np.inf)
    write_larger(oracle, key, tasks, np.zeros((models, LEAST)), work, latency)
    work = np.concatenate([work_alone.swapaxes(0, 1), work], axis=1)
    soonest = np.where(outcomes["solved"] == 1, outcomes["latency_s"], np.inf)
    latency = np.concatenate([soonest.T, latency], axis=1)
    window = np.repeat(budgets_s[:, None], latency.shape[1], axis=1)
    if simulation.execution == "sequential":  # one node after the other; each one's latency counts
        window[:, len(alone) :] *= MAX_NODES
    fits = latency <= budgets_s[:, None]
    keep: list[tuple[int, int]] = []
    for q in range(count):
        rows = np.flatnonzero(fits[q])
        keep += [(q, o) for o in rows[undominated(work[q, rows], window[q, rows])].tolist()]
    of, option = np.array(keep, np.int64).reshape(-1, 2).T
    return of, work[of, option], window[of, option]


def undominated(work: NDArray[np.float64], window: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of n ways are not beaten by one with less work everywhere and more time.

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
    """Return the most queries that can be solved in time, in parts.

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
    queries, row = np.unique(of, return_inverse=True)
    # Each query by its cheapest way: if that fits everywhere, no program need be solved.
    x, best = np.zeros(n), float(len(queries))
    order = np.lexsort((use.sum(axis=1), of))
    x[order[np.unique(of[order], return_index=True)[1]]] = 1.0
    rows: list[Any] = []
    limits = np.ones(len(queries))  # each query is solved once at most
    for _ in range(ROUNDS):
        cuts = violated(x, start, end, use, resources)
        if not cuts:
            break
        sparse = scipy("scipy.sparse")
        rows = rows or [sparse.csr_matrix((np.ones(n), (row, np.arange(n))))]
        for k, since, until in cuts:
            inside = (start >= since) & (end <= until)
            rows.append(sparse.csr_matrix(np.where(inside, use[:, k], 0.0)))
            limits = np.append(limits, resources.rate[k] * (until - since))
        best, x, _ = maximise(np.ones(n), sparse.vstack(rows, format="csr"), limits)
    return best


def violated(
    x: NDArray[np.float64],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    use: NDArray[np.float64],
    resources: Resources,
) -> list[tuple[int, float, float]]:
    """Return intervals that would hold more work than fits: (resource, from, to), worst first."""
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
        step = max(len(worst) / _CUTS, 1.0)  # a choice: neighbours say the same
        chosen = [worst[int(i * step)] for i in range(min(len(worst), _CUTS))]
        found += [(k, since, until) for _, since, until in chosen]
    return found


def clairvoyant_goodput(simulation: Simulation, e: int, budgets_s: NDArray[np.float64]) -> float:
    """Return the largest goodput per query of the episode that environment `e` has begun."""
    of, work_s, window_s = least_work(simulation, e, budgets_s)
    arrival_s = simulation.state.arrival_s[e, : len(budgets_s)]
    solved = most_solved(arrival_s, of, work_s, window_s, resources_of(simulation.pool))
    return solved / len(budgets_s)
