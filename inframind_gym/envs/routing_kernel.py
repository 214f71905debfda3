"""The compiled step of the routing environments: act, let time run, reward, observe.

`drive` works on a whole batch of simulated environments; a single one is a batch of one. `show`
ends the step of an environment on any other backend.

Reward (`step_reward`): the number of the agent's queries that were solved in the step, with
`reward="goodput"` only of those within their budgets. Cost: the latency that the step added to
them, as a share of their budgets (InfraMind, arXiv 2606.11440). In an episode of one tagged query
every step pays for the latency since the step before (`running_cost`), so that the costs of an
episode sum to latency / budget; where every query is the agent's, a query pays when it ends.

Observation (`observe`): its numbers and their units are those of `layout.ObservationLayout`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import CACHE_LINE, inner, jit, prefetch
from inframind_gym.simulator.server.engine import next_request, reset_cluster
from inframind_gym.simulator.server.state import FREE_IDS, Cluster
from inframind_gym.simulator.server.telemetry import IN_FLIGHT, LOG_SCALE
from inframind_gym.simulator.workflow.dispatch import (
    BEGIN,
    DECISION,
    RESUME,
    STEP,
    act,
    advance,
    begin_step,
    routed_to,
    start_stream,
)
from inframind_gym.simulator.workflow.lifecycle import LEVEL_PLANNER, SEQUENTIAL, remaining_budget_s
from inframind_gym.simulator.workflow.state import (
    CONTROLLED,
    IS_DUE,
    PLAN,
    PLAN_NODE,
    ROUTE,
    EnvState,
)
from inframind_gym.simulator.workflow.topology import MAX_NODES
from inframind_gym.tasks import EMBED_DIM

HEADS, SERVERS, REQUESTS, QUERIES = 4, 3, 2, 1  # environments: how far ahead each is fetched
FEW_NODES = 6  # of a query: most have no more


@inner
def step_reward(state: EnvState, e: int) -> tuple[float, float]:
    """Return reward and cost of the agent's queries that ended in the step of environment `e`."""
    stream = state.stream[e]
    reward = 0.0
    cost = 0.0
    for i in range(stream.reported, stream.finished):
        record = state.completed[e, i]
        if record.is_controlled:
            if not state.params.settings[0].in_time or record.latency_s <= record.budget_s:
                reward += record.solved
            if state.params.settings[0].one_query:
                charged_s = state.query[e, stream.slot].charged_s
                cost += (record.latency_s - charged_s) / record.budget_s
            else:
                cost += record.cost
    return reward, cost


@inner
def running_cost(state: EnvState, e: int) -> float:
    """Return the cost of the latency that the running tagged query gained since the last step."""
    stream = state.stream[e]
    query = state.query[e, stream.slot]
    latency_s = query.latency_s
    if state.params.settings[0].execution != SEQUENTIAL:
        latency_s = stream.now_s - query.arrival_s
    added_s = latency_s - query.charged_s
    query.charged_s = latency_s
    return float(added_s / query.budget_s)


@inner
def observe(state: EnvState, seen: Any, e: int, row: Any, context: Any) -> None:
    """Write the decision that waits, or a stream's end: observation (d,) and CONTEXT record.

    `seen` (E, 3, M) holds the normalised metrics that were polled last.
    """
    params = state.params
    stream = state.stream[e]
    settings = params.settings[0]
    task = -1
    role = -1
    budget_s = 0.0
    if stream.live == IS_DUE:
        slot = int(stream.slot)
        node = int(stream.node)
        query = state.query[e, slot]
        task = int(query.task)
        budget_s = remaining_budget_s(state, e, slot, node)
        context.arrival_s = query.arrival_s
        context.budget_s = query.budget_s
        context.query = query.ordinal
        context.task = task
        context.topology = query.topology
        context.num_agents = query.num_agents
        context.num_nodes = query.num_nodes
        context.domain = query.domain
        if node == PLAN_NODE:
            context.kind = PLAN
            context.node = 0
            context.wave = 0
            context.num_waves = 0
            context.role = -1
        else:
            role = int(state.node[e, slot, node].role)
            waves = params.graphs.waves[query.topology, query.num_agents - 1]
            context.kind = ROUTE
            context.node = node
            context.wave = waves[node]
            context.num_waves = waves[query.num_nodes - 1] + 1
            context.role = role
    context.time_s = stream.now_s
    context.telemetry_age_s = stream.now_s - stream.last_poll_s
    context.poll = stream.polls
    context.models_up = stream.models_up

    head = 2
    if settings.embeddings:
        head = 2 * EMBED_DIM
        for i in range(EMBED_DIM):
            row[i] = params.task_embedding[task, i] if task >= 0 else np.float32(0.0)
        for i in range(EMBED_DIM):
            row[EMBED_DIM + i] = params.role_embedding[role, i] if role >= 0 else np.float32(0.0)
    else:
        row[0] = np.float32(task)
        row[1] = np.float32(role)
    row[head] = np.float32(math.log(max(budget_s, 1.0)) / LOG_SCALE)
    models = seen.shape[2]
    for f in range(params.features.shape[0]):
        at = head + 1 + f * models
        feature = params.features[f]
        for m in range(models):
            if feature == IN_FLIGHT:  # the agent's calls that are not answered
                row[at + m] = np.float32(state.in_flight[e, CONTROLLED, m] / settings.queue_norm)
            else:
                row[at + m] = seen[e, feature, m]
    if settings.level > LEVEL_PLANNER:  # joint: which of the two kinds of decision it is
        row[row.shape[0] - 1] = np.float32(
            1.0 if stream.live == IS_DUE and stream.node == PLAN_NODE else 0.0
        )


@jit
def drive(
    state: EnvState,
    cluster: Cluster,
    mode: int,
    rows: NDArray[np.int64],
    starts: NDArray[Any],
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
    contexts: NDArray[Any],
    rewards: NDArray[np.float64],
    costs: NDArray[np.float64],
    status: NDArray[np.int64],
    first: int,
    last: int,
) -> None:
    """Bring the environments `rows[first:last]` to their next decision, in one of three ways.

    One entry point and not three, because each would compile the whole closed loop again.

    Args:
        mode: BEGIN a new stream, as `starts` (k,) says; RESUME: let the stream go on until the next
            tagged query has arrived; STEP: carry out `actions` (E, a).
        rows: (k,) environments.
        observations: (E, d), contexts (E,), rewards (E,), costs (E,), status (E,): written at
            `rows`. `status` is DECISION, STREAM_OVER or TAGGED_QUERY_OVER.
        first, last: range of `rows` to work on: a thread's share.
    """
    one_query = state.params.settings[0].one_query
    share = rows[first:last]
    for i in range(share.shape[0]):
        if mode == STEP:
            fetch_ahead(state, cluster, share, i, actions, observations)
        e = share[i]
        stream = state.stream[e]
        if mode == BEGIN:
            reset_cluster(cluster, e)
            start_stream(state, e, starts[first + i])
        begin_step(state, e)
        if mode == RESUME:
            stream.expecting = 1
        elif mode == STEP:
            act(state, e, actions[e])
        status[e] = advance(state, cluster, e)
        rewards[e], costs[e] = step_reward(state, e)
        if one_query and mode == STEP and status[e] == DECISION:
            costs[e] += running_cost(state, e)
        observe(state, cluster.seen, e, observations[e], contexts[e])


@jit
def show(
    state: EnvState,
    seen: NDArray[np.float32],
    charged: bool,
    observation: NDArray[np.float32],
    context: NDArray[Any],
    reward: NDArray[np.float64],
    cost: NDArray[np.float64],
) -> None:
    """Write the results of a step of environment 0: observation, decision, reward and cost.

    Args:
        seen: (1, 3, M) normalised metrics.
        charged: the tagged query still runs and pays for its latency so far.
        observation: (d,), context (1,), reward (1,), cost (1,): written.
    """
    reward[0], cost[0] = step_reward(state, 0)
    if charged:
        cost[0] += running_cost(state, 0)
    observe(state, seen, 0, observation, context[0])


# Prefetching, which changes the time of a step and no result


@inner
def fetch_ahead(
    state: EnvState,
    cluster: Cluster,
    share: NDArray[np.int64],
    i: int,
    actions: NDArray[np.int64],
    observations: NDArray[np.float32],
) -> None:
    """Prefetch the next environments' data; furthest ahead, the records that point to the rest."""
    ahead = share.shape[0] - i
    models, requests = cluster.server.shape[1], cluster.request.shape[1]
    if ahead > HEADS:
        e = share[i + HEADS]
        fetch_record(state.stream, e)
        fetch_row(state.in_flight, e)
        fetch_row(cluster.counts, e)
        fetch_row(cluster.end_s, e)
        fetch_row(cluster.seen, e)
    if ahead > SERVERS:  # the query that waits for a decision, and the servers that it meets
        e = share[i + SERVERS]
        stream = state.stream[e]
        fetch_query(state, e, stream.slot)
        prefetch(state.ready, e * state.ready.shape[1] + stream.ready_head, 0)
        prefetch(cluster.free, e * cluster.free.shape[1] + cluster.counts[e, FREE_IDS] - 1, 0)
        if time_passes(state, e):
            for of_servers in (cluster.running, cluster.finish_clock, cluster.base_tokens):
                fetch_row(of_servers, e)
            for m in range(models):
                fetch_record(cluster.server, e * models + m)
            prefetch(state.arrival_s, e * state.arrival_s.shape[1] + stream.arrived, 0)
            prefetch(state.task, e * state.task.shape[1] + stream.arrived, 0)
        else:
            fetch_record(cluster.server, e * models + routed_to(state, actions[e]))
    if ahead > REQUESTS:  # the call's place in its queue, and the requests that end next
        e = share[i + REQUESTS]
        routed = routed_to(state, actions[e])
        prefetch(cluster.request, e * requests + next_request(cluster, e), 0)
        queue = (e * models + routed) * requests
        prefetch(cluster.waiting, queue + cluster.server[e, routed].waiting, 0)
        prefetch(cluster.waiting, queue + ((cluster.server[e, routed].waiting + 1) >> 1), 0)
        if time_passes(state, e):
            for m in range(models):
                prefetch(cluster.request, e * requests + cluster.server[e, m].ending, 0)
                prefetch(cluster.waiting, (e * models + m) * requests, 0)
    if ahead > QUERIES:  # the queries of the calls that end next, and of those that begin
        e = share[i + QUERIES]
        fetch_row(observations, e)
        if time_passes(state, e):
            for m in range(models):
                server = cluster.server[e, m]
                fetch_query(state, e, cluster.request[e, server.ending].query)
                if server.waiting > 0:
                    first = cluster.waiting[e, m, 0].request
                    prefetch(cluster.request, e * requests + first, 0)


@inner
def fetch_record(array: NDArray[Any], element: int) -> None:
    """Prefetch a flat element of an array of records."""
    for line in range(0, array.itemsize, CACHE_LINE):
        prefetch(array, element, line)


@inner
def fetch_row(array: NDArray[Any], e: int) -> None:
    """Prefetch all elements of environment `e` in an array in C order."""
    elements = array.size // array.shape[0]
    for first in range(0, elements, CACHE_LINE // array.itemsize):
        prefetch(array, e * elements + first, 0)


@inner
def time_passes(state: EnvState, e: int) -> bool:
    """Return whether no other decision of environment `e` can be made at the present instant."""
    stream = state.stream[e]
    return bool(stream.ready_head == stream.ready_tail)


@inner
def fetch_query(state: EnvState, e: int, slot: int) -> None:
    """Prefetch a query and its first nodes."""
    place = e * state.query.shape[1] + slot
    fetch_record(state.query, place)
    for node in range(0, FEW_NODES, 2):
        prefetch(state.node, place * MAX_NODES + node, 0)
