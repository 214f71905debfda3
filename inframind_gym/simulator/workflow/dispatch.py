"""Dispatch: who decides what and when, in which order calls are sent.

The rules are the same for every backend; see `lifecycle`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.rng import STREAM_BACKGROUND, uniform
from inframind_gym.simulator.workflow.lifecycle import LEVEL_EXECUTOR, LEVEL_PLANNER, draw
from inframind_gym.simulator.workflow.params import World
from inframind_gym.simulator.workflow.state import (
    IS_DUE,
    IS_OVER,
    IS_TAKEN,
    MAX_MODELS,
    NO_SLOT,
    PLAN_NODE,
    Workflows,
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

BEGIN, RESUME, STEP = 0, 1, 2  # how a step is entered: a new sweep, the next query, an action

# What comes next (`next_turn`).
DECISION = 0  # a decision of the agent's is due
SWEEP_OVER = 1  # no query is left
OWN_QUERY_OVER = 2  # one-agent mode: the agent's query is done
SEND = 3  # a call can be sent
WAIT = 4  # nothing can be done at this instant: let time run
SEND_FINAL = 5  # the deciding call can be sent


@inner
def start_sweep(world: World, flows: Workflows, e: int, start: Any) -> None:
    """Set all counters back; the sweep's arrivals and tasks have been written."""
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
    sweep.arrived = 0
    sweep.finished = 0
    sweep.free_slots = 0
    sweep.used_slots = 0
    sweep.ready_head = 0
    sweep.ready_tail = 0
    sweep.recorded_calls = 0
    sweep.routed = 0
    sweep.own_routed = 0
    sweep.own_slot = NO_SLOT
    sweep.expecting = 1 if world.settings[0].one_query else 0
    sweep.live = IS_OVER
    for m in range(MAX_MODELS):
        sweep.in_flight[m] = 0
        sweep.own_in_flight[m] = 0


@inner
def begin_step(flows: Workflows, e: int) -> None:
    """Begin to count the queries that end in this step."""
    sweep = flows.sweep[e]
    sweep.reported = sweep.finished


@inner
def next_turn(world: World, flows: Workflows, e: int) -> tuple[int, int, int]:
    """What comes next at this instant.

    Returns:
        (DECISION, slot, node): the agent's, kept in `sweep`; (SEND, slot, node): the first call
        of a node that the agent or the built-in router has routed; (SEND_FINAL, slot, 0): the
        deciding call, after a node that handed on what it read; or SWEEP_OVER, OWN_QUERY_OVER or
        WAIT.
    """
    sweep = flows.sweep[e]
    settings = world.settings[0]
    while sweep.live == IS_TAKEN or sweep.ready_head != sweep.ready_tail:
        if sweep.live == IS_TAKEN:
            sweep.live = IS_OVER
            slot, node = int(sweep.slot), int(sweep.node)
        else:
            slot, node = pop_ready(flows, e)
            if flows.query[e, slot].agents and (
                node == PLAN_NODE or settings.level != LEVEL_PLANNER
            ):
                sweep.slot = slot
                sweep.node = node
                sweep.live = IS_DUE
                return DECISION, slot, node
            route_by_rule(world, flows, e, slot, node)
        follows = hand_on(world, flows, e, slot, node)
        if follows == FIRST:
            return SEND, slot, node
        if follows == FINAL:
            return SEND_FINAL, slot, 0
    if settings.one_query and not sweep.expecting and sweep.own_slot == NO_SLOT:
        return OWN_QUERY_OVER, NO_SLOT, 0
    if sweep.finished == sweep.num_queries or (
        settings.one_query and sweep.expecting and sweep.arrived == sweep.num_queries
    ):
        return SWEEP_OVER, NO_SLOT, 0
    return WAIT, NO_SLOT, 0


@inner
def route_by_rule(world: World, flows: Workflows, e: int, slot: int, node: int) -> None:
    """Route an execution that isn't the agent's by the built-in router of the settings.

    The agent's queries have a router of their own at level "planner"; where both are the same kind
    they are one router, which takes turns with one count.
    """
    sweep = flows.sweep[e]
    query = flows.query[e, slot]
    p = int(query.profile)
    settings = world.settings[0]
    own = query.agents == 1 and settings.own_router != settings.router
    router = settings.own_router if own else settings.router
    place = int(query.ordinal) * 64 + node
    strategy = draw(world.strategy_cdf[p], uniform(sweep.key, STREAM_BACKGROUND, place, 1))
    models = world.max_prompt_tokens.shape[0]
    if router == STATIC_MIX:
        model = draw(world.model_cdf[p], uniform(sweep.key, STREAM_BACKGROUND, place, 0))
    elif router == ROUND_ROBIN:
        model = int(sweep.own_routed if own else sweep.routed) % models
    else:
        model = int(uniform(sweep.key, STREAM_BACKGROUND, place, 2) * models)
        for other in range(models):
            if sweep.models_up >> np.uint32(other) & _ONE and (
                load(world, flows, e, other) < load(world, flows, e, model)
                or not sweep.models_up >> np.uint32(model) & _ONE
            ):
                model = other
    if own:
        sweep.own_routed += 1
    else:
        sweep.routed += 1
    decide(flows, e, slot, node, model, strategy)


@inner
def load(world: World, flows: Workflows, e: int, m: int) -> float:
    """Calls in flight to the model, per slot of its server."""
    return float(flows.sweep[e].in_flight[m] / world.settings[0].slots[m])


@inner
def act(world: World, flows: Workflows, e: int, action: Any) -> None:
    """Carry out the agent's action (a,) for the decision that is due, if one is."""
    sweep = flows.sweep[e]
    if sweep.live != IS_DUE:
        return
    sweep.live = IS_OVER
    slot = int(sweep.slot)
    if sweep.node == PLAN_NODE:
        for agent in range(MAX_AGENTS):
            flows.query[e, slot].role[agent] = action[2 + agent]
        set_plan(world, flows, e, slot, action[0], action[1] + 1)
        return
    routed = action[0] if world.settings[0].level == LEVEL_EXECUTOR else action[PLAN_ACTIONS]
    strategies = world.strategy_cdf.shape[1]
    decide(flows, e, slot, sweep.node, routed // strategies, routed % strategies)
    sweep.live = IS_TAKEN
