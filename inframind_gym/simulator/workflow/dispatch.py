"""Dispatch: who decides what and when, in which order calls are sent.

The rules are the same for every backend; see `lifecycle`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.rng import STREAM_BACKGROUND, uniform
from inframind_gym.simulator.workflow.lifecycle import LEVEL_EXECUTOR, LEVEL_PLANNER, draw
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.state import (
    ALL,
    CONTROLLED,
    IS_DUE,
    IS_OVER,
    IS_TAKEN,
    NO_SLOT,
    PLAN_NODE,
    EnvState,
)
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_AGENTS
from inframind_gym.simulator.workflow.workflow import (
    decide,
    hand_on,
    pop_ready,
    set_plan,
)

STATIC_MIX = 0  # indices into ROUTERS
ROUND_ROBIN = 1
PLAN_ACTIONS = 2 + MAX_AGENTS  # topology, agents - 1, role of each agent
_ONE = np.uint32(1)

BEGIN, RESUME, STEP = 0, 1, 2  # how a step is entered: a new stream, the next query, an action

# What comes next (`next_event`).
DECISION = 0  # a decision of the agent's is due
STREAM_OVER = 1  # no query is left
TAGGED_QUERY_OVER = 2  # tagged-query mode: the agent's query is done
SEND = 3  # a call can be sent
WAIT = 4  # nothing can be done at this instant: let time run
SEND_FINAL = 5  # the deciding call can be sent


@inner
def start_stream(params: EnvParams, state: EnvState, e: int, start: Any) -> None:
    """Set all counters back; the stream's arrivals and tasks have been written."""
    stream = state.stream[e]
    stream.key = start.key
    stream.budget_s = start.budget_s
    stream.num_queries = start.num_queries
    stream.models_up = start.models_up
    stream.tagged_from = start.tagged_from
    stream.now_s = 0.0
    stream.last_poll_s = 0.0
    stream.next_poll_s = params.settings[0].poll_s
    stream.polls = 0
    stream.arrived = 0
    stream.finished = 0
    stream.free_slots = 0
    stream.used_slots = 0
    stream.ready_head = 0
    stream.ready_tail = 0
    stream.recorded_calls = 0
    stream.routed = 0
    stream.controlled_routed = 0
    stream.tagged_slot = NO_SLOT
    stream.expecting = 1 if params.settings[0].one_query else 0
    stream.live = IS_OVER
    for m in range(state.in_flight.shape[2]):
        state.in_flight[e, ALL, m] = 0
        state.in_flight[e, CONTROLLED, m] = 0


@inner
def begin_step(state: EnvState, e: int) -> None:
    """Begin to count the queries that end in this step."""
    stream = state.stream[e]
    stream.reported = stream.finished


@inner
def next_event(params: EnvParams, state: EnvState, e: int) -> tuple[int, int, int]:
    """The next event at this instant.

    Returns:
        (DECISION, slot, node): the agent's, kept in `stream`; (SEND, slot, node): the first call
        of a node that the agent or the built-in router has routed; (SEND_FINAL, slot, 0): the
        deciding call, after a node that handed on what it read; or STREAM_OVER,
        TAGGED_QUERY_OVER or WAIT.
    """
    stream = state.stream[e]
    settings = params.settings[0]
    while stream.live == IS_TAKEN or stream.ready_head != stream.ready_tail:
        if stream.live == IS_TAKEN:
            stream.live = IS_OVER
            slot, node = int(stream.slot), int(stream.node)
        elif stream.models_up == 0:  # nothing to choose from: decisions are held back
            return WAIT, NO_SLOT, 0
        else:
            slot, node = pop_ready(state, e)
            if state.query[e, slot].is_controlled and (
                node == PLAN_NODE or settings.level != LEVEL_PLANNER
            ):
                stream.slot = slot
                stream.node = node
                stream.live = IS_DUE
                return DECISION, slot, node
            route_by_rule(params, state, e, slot, node)
        follows = hand_on(params, state, e, slot, node)
        if follows == FIRST:
            return SEND, slot, node
        if follows == FINAL:
            return SEND_FINAL, slot, 0
    if settings.one_query and not stream.expecting and stream.tagged_slot == NO_SLOT:
        return TAGGED_QUERY_OVER, NO_SLOT, 0
    if stream.finished == stream.num_queries or (
        settings.one_query and stream.expecting and stream.arrived == stream.num_queries
    ):
        return STREAM_OVER, NO_SLOT, 0
    return WAIT, NO_SLOT, 0


@inner
def route_by_rule(params: EnvParams, state: EnvState, e: int, slot: int, node: int) -> None:
    """Route an execution that isn't the agent's by the built-in router of the settings.

    The agent's queries have a router of their own at level "planner"; where both are the same kind
    they are one router, which takes turns with one count.
    """
    stream = state.stream[e]
    query = state.query[e, slot]
    p = int(query.profile)
    settings = params.settings[0]
    own = query.is_controlled == 1 and settings.controlled_router != settings.router
    router = settings.controlled_router if own else settings.router
    place = int(query.ordinal) * 64 + node
    strategy = draw(params.strategy_cdf[p], uniform(stream.key, STREAM_BACKGROUND, place, 1))
    models = params.max_prompt_tokens.shape[0]
    if router == STATIC_MIX:
        model = draw(params.model_cdf[p], uniform(stream.key, STREAM_BACKGROUND, place, 0))
    elif router == ROUND_ROBIN:
        model = int(stream.controlled_routed if own else stream.routed) % models
    else:
        model = int(uniform(stream.key, STREAM_BACKGROUND, place, 2) * models)
        for other in range(models):
            if stream.models_up >> np.uint32(other) & _ONE and (
                load(params, state, e, other) < load(params, state, e, model)
                or not stream.models_up >> np.uint32(model) & _ONE
            ):
                model = other
    if own:
        stream.controlled_routed += 1
    else:
        stream.routed += 1
    decide(state, e, slot, node, model, strategy)


@inner
def load(params: EnvParams, state: EnvState, e: int, m: int) -> float:
    """Calls in flight to the model, per slot of its server."""
    return float(state.in_flight[e, ALL, m] / params.settings[0].slots[m])


@inner
def act(params: EnvParams, state: EnvState, e: int, action: Any) -> None:
    """Carry out the agent's action (a,) for the decision that is due, if one is."""
    stream = state.stream[e]
    if stream.live != IS_DUE:
        return
    stream.live = IS_OVER
    slot = int(stream.slot)
    if stream.node == PLAN_NODE:
        for agent in range(MAX_AGENTS):
            state.node[e, slot, agent].role = action[2 + agent]
        set_plan(params, state, e, slot, action[0], action[1] + 1)
        return
    route = route_in(params, action)
    strategies = params.strategy_cdf.shape[1]
    decide(state, e, slot, stream.node, route // strategies, route % strategies)
    stream.live = IS_TAKEN


@inner
def route_in(params: EnvParams, action: Any) -> int:
    """Return the route in an action (a,), model times strategies plus strategy; 0 where none is."""
    level = params.settings[0].level
    if level == LEVEL_PLANNER:
        return 0
    return int(action[0] if level == LEVEL_EXECUTOR else action[PLAN_ACTIONS])


@inner
def routed_to(params: EnvParams, action: Any) -> int:
    """Return the model that an action (a,) sends a call to, if it sends one."""
    return int(route_in(params, action) // params.strategy_cdf.shape[1])
