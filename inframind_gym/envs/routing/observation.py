"""Observations of the routing environments: their space, and the code that writes them.

The layout, number by number and in units, is `ObservationLayout` (`layout`). As a Dict, for set
encoders and SB3's `MultiInputPolicy`, they hold the same numbers, in the same scales:

| entry | shape | |
|---|---|---|
| `query` | (384,) | embedding of the query |
| `role` | (384,) | embedding of the role; in the scope "call" |
| `budget` | (1,) | remaining budget |
| `servers` | (M, F) | a row a model, a column a system feature in their order |
| `plan` | (1,) | 1 where a plan is due; at the joint level |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from inframind_gym.envs.routing.layout import EMBED_DIM, LOG_SCALE_S
from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.server.telemetry import IN_FLIGHT, LOG_SCALE
from inframind_gym.simulator.workflow.lifecycle import LEVEL_PLANNER
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.roles import ROLES
from inframind_gym.simulator.workflow.state import (
    CONTROLLED,
    IS_DUE,
    PLAN,
    PLAN_NODE,
    ROUTE,
    EnvState,
)
from inframind_gym.simulator.workflow.workflow import remaining_budget_s

if TYPE_CHECKING:
    from inframind_gym.envs.observations import Places
    from inframind_gym.envs.routing.simulation import Simulation

LONGEST_S = 1e6  # bound of the time features: nothing observed lasts longer


def observation_space(simulation: Simulation) -> spaces.Box:
    """Box (d,) float32 with the bounds of every feature; `ObservationLayout` says where each is."""
    layout = simulation.layout
    low = np.zeros(simulation.observation_size, np.float32)
    high = np.ones(simulation.observation_size, np.float32)
    low[layout.query] = low[layout.role] = -1.0
    if layout.embedding == "index":
        high[layout.query] = len(simulation.tasks) - 1
        high[layout.role] = len(ROLES) - 1
    longest = np.log(LONGEST_S) / np.log(LOG_SCALE_S)
    if layout.scope != "query":
        high[layout.budget] = longest
    for counted in ("queue", "in_flight"):
        if layout.has(counted):
            high[layout.system(counted)] = simulation.max_queue
    if layout.has("e2e"):
        high[layout.system("e2e")] = longest
    return spaces.Box(low, high, dtype=np.float32)


def places(simulation: Simulation) -> Places | None:
    """Places of the entries of a Dict observation; None where observations are flat."""
    if simulation.config.observation != "dict":
        return None
    layout, every = simulation.layout, np.arange(simulation.observation_size)
    found = {"query": every[layout.query], "role": every[layout.role]}
    if layout.scope != "query":
        resource = every[layout.resource]
        found["budget"] = resource[:1]
        found["servers"] = resource[1:].reshape(-1, layout.num_models).T
        found["plan"] = every[layout.size :]
    return {name: at for name, at in found.items() if at.size}


@inner
def observe(params: EnvParams, state: EnvState, seen: Any, e: int, row: Any, context: Any) -> None:
    """Write the observation and the context of the decision that waits, or of a stream's end.

    Args:
        params: constants.
        state: state.
        seen: (E, 3, M) telemetry as it was noted last.
        e: environment of the batch.
        row: (d,) the observation.
        context: a CONTEXT record.
    """
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
        budget_s = remaining_budget_s(params, state, e, slot, node)
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
        if task >= 0:
            for i in range(EMBED_DIM):
                row[i] = params.task_embedding[task, i]
        else:
            for i in range(EMBED_DIM):
                row[i] = np.float32(0.0)
        if role >= 0:
            for i in range(EMBED_DIM):
                row[EMBED_DIM + i] = params.role_embedding[role, i]
        else:
            for i in range(EMBED_DIM):
                row[EMBED_DIM + i] = np.float32(0.0)
    else:
        row[0] = np.float32(task)
        row[1] = np.float32(role)
    row[head] = np.float32(math.log(max(budget_s, 1.0)) / LOG_SCALE)
    in_flight = state.in_flight[e, CONTROLLED]
    write_system(row[head + 1 :], seen, e, params.features, in_flight, settings.queue_norm)
    if settings.level > LEVEL_PLANNER:  # joint: which of the two kinds of decision it is
        row[row.shape[0] - 1] = np.float32(
            1.0 if stream.live == IS_DUE and stream.node == PLAN_NODE else 0.0
        )


@inner
def write_system(
    out: Any, seen: Any, e: int, features: Any, in_flight: Any, queue_norm: float
) -> None:
    """Write what is known of the servers into `out`, a float32 array, M numbers a feature.

    Args:
        out: (F · M,) at least.
        seen: (E, 3, M).
        e: environment of the batch.
        features: (F,) which features, in order: QUEUE, E2E, KV or IN_FLIGHT.
        in_flight: (M,) the agent's calls, sent to each model and not answered.
        queue_norm: calls at which IN_FLIGHT is 1.
    """
    models = seen.shape[2]
    for f in range(features.shape[0]):
        if features[f] == IN_FLIGHT:
            for m in range(models):
                out[f * models + m] = np.float32(in_flight[m] / queue_norm)
        else:
            for m in range(models):
                out[f * models + m] = seen[e, features[f], m]
