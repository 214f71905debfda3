"""The clairvoyant choice: every recipe played at the present pace of the servers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.policies.oracle.compiled import jit
from inframind_gym.policies.oracle.recipe import best_role, play
from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.state import FAR_CLOCK, Cluster
from inframind_gym.simulator.workflow.lifecycle import priority
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.state import EnvState
from inframind_gym.simulator.workflow.workflow import SEQUENTIAL

_ONE = np.uint32(1)


@inner
def backlog(cluster: Cluster, e: int, m: int, rank: float, slots: Any) -> tuple[float, float]:
    """What server `m` still has to do.

    Args:
        cluster: the servers.
        e: environment of the batch.
        m: the server.
        rank: priority of a call that would be sent now.
        slots: (S,) scratch.

    Returns:
        Steps until the call would be admitted, if nobody overtakes it; and the server's work, alone
        on its GPU, in seconds.
    """
    server = cluster.server[e, m]
    card = cluster.card[m]
    token_s = card.base_s / card.max_num_seqs + card.per_seq_s + card.per_new_token_s
    size = int(card.max_num_seqs)
    work_s = 0.0
    for i in range(size):
        slots[i] = 0.0
        if i < server.running:
            request = cluster.request[e, cluster.running[e, m, i]]
            left = float(request.output_tokens - request.generated)
            if cluster.finish_clock[e, m, i] != FAR_CLOCK:
                left = float(cluster.finish_clock[e, m, i] - server.clock)
            slots[i] = left
            work_s += left * token_s
    for i in range(server.waiting):
        entry = cluster.waiting[e, m, i]
        request = cluster.request[e, entry.request]
        left = float(request.output_tokens - request.generated)
        work_s += left * token_s + request.prompt_tokens * card.per_new_token_s
        if entry.priority <= rank:
            slots[first_free(slots, size)] += left
    return float(slots[first_free(slots, size)]), work_s


@inner
def first_free(slots: Any, size: int) -> int:
    """Index of the slot that is free first."""
    best = 0
    for i in range(1, size):
        if slots[i] < slots[best]:
            best = i
    return best


@inner
def present_pace(cluster: Cluster, e: int, m: int, rank: float, slots: Any, pace: Any) -> float:
    """The pace of server `m` as things stand; returns its work left, in seconds."""
    server = cluster.server[e, m]
    card = cluster.card[m]
    steps, work_s = backlog(cluster, e, m, rank, slots)
    peers = 0
    for other in range(cluster.card.shape[0]):
        state = cluster.server[e, other]
        if card.peers >> np.uint32(other) & _ONE and state.running + state.waiting > 0:
            peers += 1
    pace.factor = 1.0 + card.slowdown * peers
    seqs = min(server.running + server.waiting + 1, card.max_num_seqs)
    step_s = card.base_s + seqs * (card.per_seq_s + card.per_new_token_s)
    step_s += card.per_kv_token_s * server.kv_tokens
    if card.sparse_s > 0.0:
        step_s += card.sparse_s * (1.0 - math.exp(-seqs / card.sparse_tokens))
    pace.step_s = pace.factor * step_s
    pace.wait_s = steps * pace.step_s
    return work_s


@jit
def choose(
    params: EnvParams,
    state: EnvState,
    cluster: Cluster,
    rows: NDArray[np.int64],
    recipes: NDArray[Any],
    small: int,
    safety: float,
    patience_s: float,
    pace: NDArray[Any],
    scratch: NDArray[np.float64],
    slots: NDArray[np.float64],
    work_s: NDArray[np.float64],
    outcome: NDArray[Any],
    chosen: NDArray[np.int64],
    roles: NDArray[np.int64],
) -> None:
    """The best recipe for the query whose plan is due in each environment, all luck known.

    Of those that solve it within its budget, as things stand, the one that costs least; work counts
    more where much is left to do. Where none does, the cheapest of all.

    Args:
        params: constants of the run.
        state: state of the workflows; a plan is due in each of `rows`.
        cluster: the servers.
        rows: (n,) environments.
        recipes: (r,) RECIPE.
        small: the recipes from here on are played only where none before solves the query in time.
        safety: the expected latency is multiplied by this much first.
        patience_s: work left on a GPU that doubles the price of its work.
        pace: (M,) PACE, scratch; `scratch` (2, MAX_NODES), `slots` (S,), `work_s` (3, M) and
            `outcome` (1,) likewise.
        chosen: (n,) written: index of the recipe.
        roles: (n,) written: its role, counted within the domain.
    """
    models = cluster.card.shape[0]
    strategies = params.strategy_cdf.shape[1]
    for i in range(rows.shape[0]):
        e = rows[i]
        stream = state.stream[e]
        query = state.query[e, stream.slot]
        deadline_s = query.arrival_s + query.budget_s
        rank = priority(params, deadline_s, stream.now_s)
        for m in range(models):
            work_s[1, m] = present_pace(cluster, e, m, rank, slots, pace[m])
        for m in range(models):  # the price of a second of work: more where more is left to do
            left = work_s[1, m]
            for other in range(models):
                if cluster.card[m].peers >> np.uint32(other) & _ONE:
                    left += work_s[1, other]
            work_s[2, m] = 1.0 + left / patience_s
        left_s = query.budget_s - (stream.now_s - query.arrival_s)
        best, best_cost = -1, np.inf
        late, late_s = -1, left_s
        dump, dump_cost = 0, np.inf
        for r in range(recipes.shape[0]):
            if r == small and (best >= 0 or late >= 0):
                break
            recipe = recipes[r]
            usable = True
            nodes = params.graphs.num_nodes[recipe.topology, recipe.num_agents - 1]
            for node in range(nodes):
                model = np.uint32(recipe.route[node] // strategies)
                usable &= stream.models_up >> model & _ONE != 0
            if not usable:
                continue
            play(
                params, cluster.card, pace, stream.key, query.ordinal, query.task, query.length_z,
                recipe, scratch, work_s[0], outcome[0],
            )  # fmt: skip
            cost = 0.0
            if params.settings[0].execution == SEQUENTIAL:
                work_s[0, outcome[0].final_model] += outcome[0].final_work_s
            for m in range(models):
                cost += work_s[0, m] * work_s[2, m]
            if cost < dump_cost:
                dump, dump_cost = r, cost
            if outcome[0].solved == 0:
                continue
            if outcome[0].latency_s * safety <= left_s and cost < best_cost:
                best, best_cost = r, cost
            if outcome[0].latency_s <= late_s:
                late, late_s = r, outcome[0].latency_s
        chosen[i] = best if best >= 0 else late if late >= 0 else dump
        role = best_role(params, query.task, recipes[chosen[i]].role_kind)
        roles[i] = role - params.role_start[query.domain]
