"""What every recipe that solves a query must cost at least, all luck known.

Recipes of one node are played as they are. For all others, whatever their graph, roles and routes,
only what none of them can do without is counted:

- the deciding call, on some model m, which must be right when it reads nothing but right answers;
- a right answer to read (unless the deciding call is right against wrong ones): some call that is
  right with everything in its favour, on some model r;
- one more execution on m, the most used model, and two executions at least; but where the task
  shows its tests, nodes can hand on what they read for nothing.

Each call is counted as the shortest of its kind over all nodes and strategies, with the shortest
prompt. A schedule that solves the query and spends less does not exist.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.oracle.compiled import jit
from inframind_gym.policies.oracle.recipe import call_s, call_work_s, play
from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.quality import (
    FINAL_STRATEGY,
    answer_right,
    answer_tokens,
    call_id,
)
from inframind_gym.simulator.rng import STREAM_TESTS, uniform
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import RoleRule
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_NODES, SECOND
from inframind_gym.simulator.workflow.workflow import SEQUENTIAL

# Columns of the table of least calls, one row a model.
ANY_WORK, NEXT_WORK, ANY_S = 0, 1, 2  # of an execution: least, least of another node; least time
RIGHT_WORK, RIGHT_S = 3, 4  # of an execution that can be right
FINAL_WORK, FINAL_S = 5, 6
FINAL_RIGHT, FINAL_SURE = 7, 8  # 1: right after right answers; right after wrong ones, too
LEAST = 9

_IO, _REFLECTION = 0, 4  # indices into TOPOLOGIES
_SINGLE, _DOUBLE = int(RoleRule.SINGLE), int(RoleRule.DOUBLE)
_ONE_NODE = 3  # ways to play a route alone


def num_options(models: int, routes: int) -> int:
    """Options of a query that `options` writes."""
    return _ONE_NODE * routes + 2 * models * models


@inner
def best_fit(params: EnvParams, task: int) -> float:
    """Most that a role can add to an answer, in logits."""
    domain = params.task_domain[task]
    gain = params.response.profile[params.response.task_profile[task]].role_gain
    first = params.role_start[domain]
    best = gain * params.role_fit[task, first]
    for role in range(first + 1, first + params.role_count[domain]):
        best = max(best, gain * params.role_fit[task, role])
    return float(best)


@inner
def least_calls(
    params: EnvParams,
    card: Any,
    pace: Any,
    key: int,
    ordinal: int,
    task: int,
    length_z: float,
    least: Any,
) -> None:
    """Fill the table (M, LEAST) of a query."""
    tables = params.response
    p = int(tables.task_profile[task])
    profile = tables.profile[p]
    fit = best_fit(params, task)
    for m in range(card.shape[0]):
        prompt = int(
            min(params.task_tokens[task] + params.overhead_tokens[p], params.max_prompt_tokens[m])
        )
        row = least[m]
        for column in range(LEAST):
            row[column] = np.inf
        for node in range(MAX_NODES):
            of_node = np.inf
            for s in range(tables.log_strategy.shape[1]):
                call = call_id(node, FIRST, m, s)
                tokens, cut = answer_tokens(tables, key, ordinal, task, length_z, call, m, s)
                work = call_work_s(card[m], prompt, tokens)
                seconds = call_s(card[m], pace[m], prompt, tokens)
                favour = tables.strategy_gain[p, s] + fit + abs(profile.info_gain)
                of_node = min(of_node, work)
                row[ANY_S] = min(row[ANY_S], seconds)
                if answer_right(tables, key, ordinal, task, call, m, favour, cut):
                    row[RIGHT_WORK] = min(row[RIGHT_WORK], work)
                    row[RIGHT_S] = min(row[RIGHT_S], seconds)
                call = call_id(node, SECOND, m, s)
                tokens, cut = answer_tokens(tables, key, ordinal, task, length_z, call, m, s)
                favour += max(profile.reflection_gain, 0.0)
                if answer_right(tables, key, ordinal, task, call, m, favour, cut):
                    work += call_work_s(card[m], prompt, tokens)
                    seconds += call_s(card[m], pace[m], prompt, tokens)
                    row[RIGHT_WORK] = min(row[RIGHT_WORK], work)
                    row[RIGHT_S] = min(row[RIGHT_S], seconds)
            if of_node < row[ANY_WORK]:
                row[NEXT_WORK] = row[ANY_WORK]
                row[ANY_WORK] = of_node
            else:
                row[NEXT_WORK] = min(row[NEXT_WORK], of_node)
        call = call_id(0, FINAL, m, FINAL_STRATEGY)
        tokens, cut = answer_tokens(tables, key, ordinal, task, length_z, call, m, FINAL_STRATEGY)
        own = tables.strategy_gain[p, FINAL_STRATEGY]
        gain = abs(profile.final_info_gain)
        right = answer_right(tables, key, ordinal, task, call, m, own + gain, cut)
        sure = answer_right(tables, key, ordinal, task, call, m, own - gain, cut)
        row[FINAL_WORK] = call_work_s(card[m], prompt, tokens)
        row[FINAL_S] = call_s(card[m], pace[m], prompt, tokens)
        row[FINAL_RIGHT] = 1.0 if right else 0.0
        row[FINAL_SURE] = 1.0 if sure else 0.0


@inner
def add_larger(
    params: EnvParams, least: Any, final: int, reader: int, first: int, tested: bool, work_s: Any,
    latency_s: Any,
) -> None:  # fmt: skip
    """Two options of larger recipes, `first` and the next: deciding on `final`, with `reader`.

    In one of them the right answer is on `reader`; in the other it is on `final`, and `reader` is
    where the other execution is.
    """
    row, other = least[final], least[reader]
    timed = params.settings[0].execution != SEQUENTIAL
    for way in range(2):
        latency_s[first + way] = np.inf
        for m in range(least.shape[0]):
            work_s[first + way, m] = 0.0
    if row[FINAL_RIGHT] == 0.0:
        return
    sure = row[FINAL_SURE] == 1.0
    right_work = other[ANY_WORK] if sure else other[RIGHT_WORK]
    right_s = other[ANY_S] if sure else other[RIGHT_S]
    final_s = row[FINAL_S] if timed else 0.0
    final_work = row[FINAL_WORK] if timed else 0.0
    if tested:
        if right_work < np.inf:
            work_s[first, final] += final_work
            work_s[first, reader] += right_work
            latency_s[first] = final_s + right_s
        return
    if reader != final and right_work < np.inf:
        work_s[first, final] += final_work + row[ANY_WORK]
        work_s[first, reader] += right_work
        latency_s[first] = final_s + max(row[ANY_S], right_s)
    right_work = row[ANY_WORK] if sure else row[RIGHT_WORK]
    right_s = row[ANY_S] if sure else row[RIGHT_S]
    if right_work < np.inf:
        work_s[first + 1, final] += final_work + right_work
        if reader == final:
            more = max(row[ANY_WORK], row[ANY_WORK] + row[NEXT_WORK] - right_work)
        else:
            more = other[ANY_WORK]
        work_s[first + 1, reader] += more
        latency_s[first + 1] = final_s + max(right_s, other[ANY_S])


@jit
def options(
    params: EnvParams,
    card: NDArray[Any],
    pace: NDArray[Any],
    key: int,
    tasks: NDArray[np.int64],
    length_z: NDArray[np.float32],
    recipe: NDArray[Any],
    scratch: NDArray[np.float64],
    outcome: NDArray[Any],
    least: NDArray[np.float64],
    work_s: NDArray[np.float64],
    latency_s: NDArray[np.float64],
) -> None:
    """What it takes at least to solve each query of a sweep, in several ways.

    Args:
        params: constants of the run.
        card: (M,) CARD.
        pace: (M,) PACE of idle servers.
        key: of the sweep.
        tasks: (N,) by ordinal; `length_z` (N,) likewise.
        recipe: (1,) RECIPE, scratch; `scratch` (2, MAX_NODES), `outcome` (1,), `least` (M, LEAST).
        work_s: (N, O, M) written: no recipe that solves the query does less work than one of these.
        latency_s: (N, O) written: and none is faster; infinite where the option does not solve it.
    """
    models = card.shape[0]
    routes = models * params.strategy_cdf.shape[1]
    for q in range(tasks.shape[0]):
        o = 0
        for route in range(routes):
            recipe[0].route[0] = route
            recipe[0].num_agents = 1
            for way in range(_ONE_NODE):
                recipe[0].topology = _IO if way == 0 else _REFLECTION
                recipe[0].role_kind = _DOUBLE if way == 2 else _SINGLE
                play(
                    params, card, pace, key, q, tasks[q], length_z[q], recipe[0], scratch,
                    work_s[q, o], outcome[0],
                )  # fmt: skip
                latency_s[q, o] = outcome[0].latency_s if outcome[0].solved else np.inf
                o += 1
        least_calls(params, card, pace, key, q, tasks[q], length_z[q], least)
        share = params.visible_tests[params.response.task_profile[tasks[q]]]
        tested = share > 0.0 and uniform(key, STREAM_TESTS, tasks[q], 0) < share
        for final in range(models):
            for reader in range(models):
                add_larger(params, least, final, reader, o, tested, work_s[q], latency_s[q])
                o += 2
