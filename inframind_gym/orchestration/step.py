"""Entry point of the compiled closed loop: start sweeps, carry out actions, observe.

It works on a whole batch of environments; a single environment is a batch of one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym._jit import inner, jit, prefetch
from inframind_gym.orchestration.machine import PUBLISHED, remaining_budget_s, set_plan
from inframind_gym.orchestration.state import NO_SLOT, PLAN, PLAN_NODE, ROUTE, Workflows
from inframind_gym.orchestration.surrogate import (
    DECISION,
    LEVEL_EXECUTOR,
    LEVEL_PLANNER,
    advance,
    route,
)
from inframind_gym.orchestration.world import World
from inframind_gym.serving.surrogate.engine import next_end, reset_cluster
from inframind_gym.serving.surrogate.state import Cluster
from inframind_gym.serving.surrogate.telemetry import LOG_SCALE, write_system
from inframind_gym.topology.graphs import MAX_AGENTS

START, RESUME, STEP = 0, 1, 2  # modes of `drive`
EMBEDDING = 384
CACHE_LINE = 64  # bytes
AHEAD, FAR_AHEAD = 1, 3  # environments: how far prefetching runs in front
PLAN_ACTIONS = 2 + MAX_AGENTS  # topology, agents - 1, role of each agent


@inner
def start_sweep(world: World, flows: Workflows, cluster: Cluster, e: int, start: Any) -> None:
    """Empty servers and counters; the sweep's arrivals and tasks have been written."""
    reset_cluster(cluster, e)
    sweep = flows.sweep[e]
    sweep.key = start.key
    sweep.budget_s = start.budget_s
    sweep.num_queries = start.num_queries
    sweep.models_up = start.models_up
    sweep.own_from = start.own_from
    sweep.now_s = 0.0
    sweep.last_poll_s = 0.0
    sweep.next_poll_s = world.settings[0].poll_s
    sweep.polls = 0
    sweep.reward = 0.0
    sweep.cost = 0.0
    sweep.arrived = 0
    sweep.finished = 0
    sweep.reported = 0
    sweep.free_slots = 0
    sweep.used_slots = 0
    sweep.ready_head = 0
    sweep.ready_tail = 0
    sweep.recorded_calls = 0
    sweep.routed = 0
    sweep.own_slot = NO_SLOT
    sweep.expecting = 1 if world.settings[0].one_query else 0
    sweep.live = 0


@inner
def act(world: World, flows: Workflows, cluster: Cluster, e: int, action: Any) -> None:
    """Carry out the agent's action for the decision that waits."""
    sweep = flows.sweep[e]
    if not sweep.live:
        return
    sweep.live = 0
    slot = int(sweep.slot)
    if sweep.node == PLAN_NODE:
        for agent in range(MAX_AGENTS):
            flows.query[e, slot].role[agent] = action[2 + agent]
        set_plan(world, flows, e, slot, action[0], action[1] + 1)
        return
    routed = action[0] if world.settings[0].level == LEVEL_EXECUTOR else action[PLAN_ACTIONS]
    strategies = world.strategy_cdf.shape[1]
    route(world, flows, cluster, e, slot, sweep.node, routed // strategies, routed % strategies)


@inner
def observe(
    world: World, flows: Workflows, cluster: Cluster, e: int, row: Any, context: Any
) -> None:
    """Write the observation and the context of the decision that waits, or of a sweep's end."""
    sweep = flows.sweep[e]
    settings = world.settings[0]
    task = -1
    role = -1
    budget_s = 0.0
    if sweep.live:
        slot = int(sweep.slot)
        node = int(sweep.node)
        query = flows.query[e, slot]
        task = int(query.task)
        budget_s = remaining_budget_s(world, flows, e, slot, node)
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
            role = int(query.role[node])
            waves = world.graphs.waves[query.topology, query.num_agents - 1]
            context.kind = ROUTE
            context.node = node
            context.wave = waves[node]
            context.num_waves = waves[query.num_nodes - 1] + 1
            context.role = role
    context.time_s = sweep.now_s
    context.telemetry_age_s = sweep.now_s - sweep.last_poll_s
    context.poll = sweep.polls
    context.models_up = sweep.models_up

    head = 2
    if settings.embeddings:
        head = 2 * EMBEDDING
        if task >= 0:
            for i in range(EMBEDDING):
                row[i] = world.task_embedding[task, i]
        else:
            for i in range(EMBEDDING):
                row[i] = np.float32(0.0)
        if role >= 0:
            for i in range(EMBEDDING):
                row[EMBEDDING + i] = world.role_embedding[role, i]
        else:
            for i in range(EMBEDDING):
                row[EMBEDDING + i] = np.float32(0.0)
    else:
        row[0] = np.float32(task)
        row[1] = np.float32(role)
    row[head] = np.float32(math.log(max(budget_s, 1.0)) / LOG_SCALE)
    write_system(row[head + 1 :], cluster, e, world.features)
    if settings.level > LEVEL_PLANNER:  # joint: which of the two kinds of decision it is
        row[row.shape[0] - 1] = np.float32(1.0 if sweep.live and sweep.node == PLAN_NODE else 0.0)


@inner
def charge(world: World, flows: Workflows, e: int) -> None:
    """One-agent mode: the step pays for the latency that its query has gained since the last."""
    sweep = flows.sweep[e]
    query = flows.query[e, sweep.slot]
    latency_s = query.latency_s
    if world.settings[0].protocol != PUBLISHED:
        latency_s = sweep.now_s - query.arrival_s
    sweep.cost += (latency_s - query.charged_s) / query.budget_s
    query.charged_s = latency_s


@inner
def fetch_soon(flows: Workflows, cluster: Cluster, e: int) -> None:
    """Prefetch the heads of environment `e`: its sweep and what tells the next event."""
    for line in range(0, flows.sweep.itemsize, CACHE_LINE):
        prefetch(flows.sweep, e, line)
    models = cluster.end_s.shape[1]
    prefetch(cluster.end_s, e * models, 0)
    prefetch(cluster.counts, e * cluster.counts.shape[1], 0)


@inner
def fetch_next(flows: Workflows, cluster: Cluster, e: int) -> None:
    """Prefetch what environment `e` works on first; its heads have arrived by now."""
    slot = int(flows.sweep[e].slot)
    for line in range(0, flows.query.itemsize, CACHE_LINE):
        prefetch(flows.query, e * flows.query.shape[1] + slot, line)
    models = cluster.server.shape[1]
    for m in range(models):
        for line in range(0, cluster.server.itemsize, CACHE_LINE):
            prefetch(cluster.server, e * models + m, line)
    _, m = next_end(cluster, e)
    slots = (e * models + m) * cluster.running.shape[2]
    prefetch(cluster.running, slots, 0)
    prefetch(cluster.finish_clock, slots, 0)
    prefetch(cluster.base_tokens, slots, 0)
    prefetch(cluster.waiting, (e * models + m) * cluster.waiting.shape[2], 0)
    prefetch(cluster.seen, e * cluster.seen.shape[1] * models, 0)


@jit
def drive(
    world: World,
    flows: Workflows,
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
) -> None:
    """Bring the environments `rows` to their next decision, in one of three ways.

    One entry point and not three, because each would compile the whole closed loop again.

    Args:
        mode: START a new sweep, as `starts` (k,) says; RESUME: one-agent mode, let the sweep go on
            until the agent's next query has arrived; STEP: carry out `actions` (E, a).
        rows: (k,) environments.
        observations: (E, d), contexts (E,), rewards (E,), costs (E,), status (E,): written at
            `rows`. `status` is DECISION, SWEEP_OVER or OWN_QUERY_OVER.
    """
    one_query = world.settings[0].one_query
    count = rows.shape[0]
    for i in range(count):
        if mode == STEP:
            if i + FAR_AHEAD < count:
                fetch_soon(flows, cluster, rows[i + FAR_AHEAD])
            if i + AHEAD < count:
                fetch_next(flows, cluster, rows[i + AHEAD])
        e = rows[i]
        sweep = flows.sweep[e]
        if mode == START:
            start_sweep(world, flows, cluster, e, starts[i])
        sweep.reward = 0.0
        sweep.cost = 0.0
        sweep.reported = sweep.finished
        if mode == RESUME:
            sweep.expecting = 1
        elif mode == STEP:
            act(world, flows, cluster, e, actions[e])
        status[e] = advance(world, flows, cluster, e)
        if one_query and mode == STEP and status[e] == DECISION:
            charge(world, flows, e)
        rewards[e] = sweep.reward
        costs[e] = sweep.cost
        observe(world, flows, cluster, e, observations[e], contexts[e])
