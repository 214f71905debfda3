"""Compiled entry points of the routing environments: act, let time run, reward, observe.

`drive` works on a whole batch of simulated environments; a single one is a batch of one. `show`
ends the step of an environment on any other backend.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inframind_gym.envs.routing.observation import observe
from inframind_gym.envs.routing.reward import running_cost, step_reward
from inframind_gym.simulator.jit import inner, jit, prefetch
from inframind_gym.simulator.server.engine import next_end, reset_cluster
from inframind_gym.simulator.server.state import Cluster
from inframind_gym.simulator.workflow.dispatch import (
    BEGIN,
    DECISION,
    RESUME,
    STEP,
    act,
    begin_step,
    start_stream,
)
from inframind_gym.simulator.workflow.event_loop import advance
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.state import EnvState

CACHE_LINE = 64  # bytes
AHEAD, FAR_AHEAD = 1, 3  # environments: how far prefetching runs in front


@inner
def fetch_soon(state: EnvState, cluster: Cluster, e: int) -> None:
    """Prefetch the heads of environment `e`: its stream and what tells the next event."""
    for line in range(0, state.stream.itemsize, CACHE_LINE):
        prefetch(state.stream, e, line)
    models = cluster.end_s.shape[1]
    prefetch(cluster.end_s, e * models, 0)
    prefetch(cluster.counts, e * cluster.counts.shape[1], 0)


@inner
def fetch_next(state: EnvState, cluster: Cluster, e: int) -> None:
    """Prefetch what environment `e` works on first; its heads have arrived by now."""
    slot = int(state.stream[e].slot)
    for line in range(0, state.query.itemsize, CACHE_LINE):
        prefetch(state.query, e * state.query.shape[1] + slot, line)
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
    params: EnvParams,
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
) -> None:
    """Bring the environments `rows` to their next decision, in one of three ways.

    One entry point and not three, because each would compile the whole closed loop again.

    Args:
        mode: BEGIN a new stream, as `starts` (k,) says; RESUME: let the stream go on until the next
            tagged query has arrived; STEP: carry out `actions` (E, a).
        rows: (k,) environments.
        observations: (E, d), contexts (E,), rewards (E,), costs (E,), status (E,): written at
            `rows`. `status` is DECISION, STREAM_OVER or TAGGED_QUERY_OVER.
    """
    one_query = params.settings[0].one_query
    count = rows.shape[0]
    for i in range(count):
        if mode == STEP:
            if i + FAR_AHEAD < count:
                fetch_soon(state, cluster, rows[i + FAR_AHEAD])
            if i + AHEAD < count:
                fetch_next(state, cluster, rows[i + AHEAD])
        e = rows[i]
        stream = state.stream[e]
        if mode == BEGIN:
            reset_cluster(cluster, e)
            start_stream(params, state, e, starts[i])
        begin_step(state, e)
        if mode == RESUME:
            stream.expecting = 1
        elif mode == STEP:
            act(params, state, e, actions[e])
        status[e] = advance(params, state, cluster, e)
        rewards[e], costs[e] = step_reward(params, state, e)
        if one_query and mode == STEP and status[e] == DECISION:
            costs[e] += running_cost(params, state, e)
        observe(params, state, cluster.seen, e, observations[e], contexts[e])


@jit
def show(
    params: EnvParams,
    state: EnvState,
    seen: NDArray[np.float32],
    charged: bool,
    observation: NDArray[np.float32],
    context: NDArray[Any],
    reward: NDArray[np.float64],
    cost: NDArray[np.float64],
) -> None:
    """Write what a step of environment 0 ends with.

    Args:
        params: constants.
        state: state.
        seen: (1, 3, M) normalised metrics.
        charged: the tagged query still runs and pays for its latency so far.
        observation: (d,), context (1,), reward (1,), cost (1,): written.
    """
    reward[0], cost[0] = step_reward(params, state, 0)
    if charged:
        cost[0] += running_cost(params, state, 0)
    observe(params, state, seen, 0, observation, context[0])
