"""Dispatch and time: which decision is due, which calls are sent, and what the servers do.

The rules of dispatch are the same for every backend (`next_decision`, `act`). `advance` is the
event loop on simulated servers: arrivals, workflows and servers are advanced together, and it stops
whenever a decision of the agent is due. `backend_loop` does the same on any other backend.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.quality import (
    answer_bonus,
    answer_right,
    answer_tokens,
    call_id,
    was_cut,
)
from inframind_gym.simulator.rng import STREAM_BACKGROUND, draw, uniform
from inframind_gym.simulator.server.engine import finish_stretch, release_request, submit
from inframind_gym.simulator.server.faults import (
    ABORTED,
    CHANGES,
    OUTSIDE,
    STRETCH_ENDS,
    TIMES_OUT,
    abort,
    change_condition,
    empty_servers_down,
    forget_future,
    is_down,
    next_event,
    unwatch,
    watch,
)
from inframind_gym.simulator.server.state import (
    KV,
    NEVER_S,
    NEWEST,
    NEXT_SEQ,
    NO_REQUEST,
    OLDEST,
    Cluster,
)
from inframind_gym.simulator.server.telemetry import oldest_reading_s, read_metrics, show_news
from inframind_gym.simulator.workflow.lifecycle import (
    LEVEL_EXECUTOR,
    LEVEL_PLANNER,
    decide,
    end_call,
    hand_on,
    is_judged,
    nodes_read,
    pop_ready,
    prepare_call,
    route_of,
    set_plan,
    start_query,
)
from inframind_gym.simulator.workflow.state import (
    ALL,
    CONTROLLED,
    IS_DUE,
    IS_OVER,
    IS_TAKEN,
    NO_SLOT,
    PLAN_NODE,
    STREAM,
    EnvState,
)
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_AGENTS, SECOND

STATIC_MIX = 0  # indices into ROUTERS
ROUND_ROBIN = 1
PLAN_ACTIONS = 2 + MAX_AGENTS  # topology, agents - 1, role of each agent
_ONE = np.uint32(1)
_STREAM = np.zeros(1, STREAM)  # one that begins

BEGIN, RESUME, STEP = 0, 1, 2  # how a step is entered: a new stream, the next query, an action

# Events (`next_decision`).
DECISION = 0  # a decision of the agent is due
STREAM_OVER = 1  # no query is left
TAGGED_QUERY_OVER = 2  # tagged-query mode: the agent's query is done
SEND = 3  # a call can be sent
WAIT = 4  # nothing can be done at this instant: let time run
SEND_FINAL = 5  # the deciding call can be sent


@inner
def start_stream(state: EnvState, e: int, start: Any) -> None:
    """Reset the state for a new stream, whose arrivals and tasks have been written."""
    state.stream[e] = _STREAM[0]
    stream = state.stream[e]
    stream.key = start.key
    stream.budget_s = start.budget_s
    stream.num_queries = start.num_queries
    stream.models_up = start.models_up
    stream.tagged_from = start.tagged_from
    stream.next_poll_s = state.params.settings[0].poll_s
    stream.tagged_slot = NO_SLOT
    stream.expecting = 1 if state.params.settings[0].one_query else 0
    stream.live = IS_OVER
    for m in range(state.in_flight.shape[2]):
        state.in_flight[e, ALL, m] = 0
        state.in_flight[e, CONTROLLED, m] = 0


@inner
def begin_step(state: EnvState, e: int) -> None:
    """Begin a step: queries that end from now on are reported by it."""
    stream = state.stream[e]
    stream.reported = stream.finished


@inner
def next_decision(state: EnvState, e: int) -> tuple[int, int, int]:
    """Return the next event at this instant.

    Returns:
        (DECISION, slot, node): the agent's decision, also in `stream`; (SEND, slot, node): the
        first call of a node that the agent or the built-in router has routed; (SEND_FINAL, slot,
        0): the deciding call, after a node that handed on what it read; or STREAM_OVER,
        TAGGED_QUERY_OVER or WAIT.
    """
    stream = state.stream[e]
    settings = state.params.settings[0]
    while stream.live == IS_TAKEN or stream.ready_head != stream.ready_tail:
        if stream.live == IS_TAKEN:
            stream.live = IS_OVER
            slot, node = int(stream.slot), int(stream.node)
        elif stream.models_up == 0:  # nothing to choose from: decisions wait
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
            route_by_rule(state, e, slot, node)
        follows = hand_on(state, e, slot, node)
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
def route_by_rule(state: EnvState, e: int, slot: int, node: int) -> None:
    """Route an execution that isn't the agent's by the built-in router of the settings.

    At level "planner" the agent's queries may have another router than the background; if both are
    of the same kind, they are one router with one count of turns.
    """
    stream = state.stream[e]
    query = state.query[e, slot]
    p = int(query.profile)
    settings = state.params.settings[0]
    own = query.is_controlled == 1 and settings.controlled_router != settings.router
    router = settings.controlled_router if own else settings.router
    place = int(query.ordinal) * 64 + node
    strategy = draw(state.params.strategy_cdf[p], uniform(stream.key, STREAM_BACKGROUND, place, 1))
    models = state.params.max_prompt_tokens.shape[0]
    if router == STATIC_MIX:
        model = draw(state.params.model_cdf[p], uniform(stream.key, STREAM_BACKGROUND, place, 0))
    elif router == ROUND_ROBIN:
        model = int(stream.controlled_routed if own else stream.routed) % models
    else:
        model = int(uniform(stream.key, STREAM_BACKGROUND, place, 2) * models)
        for other in range(models):
            if stream.models_up >> np.uint32(other) & _ONE and (
                load(state, e, other) < load(state, e, model)
                or not stream.models_up >> np.uint32(model) & _ONE
            ):
                model = other
    if own:
        stream.controlled_routed += 1
    else:
        stream.routed += 1
    decide(state, e, slot, node, model, strategy)


@inner
def load(state: EnvState, e: int, m: int) -> float:
    """Return the calls in flight to the model, per slot of its server."""
    return float(state.in_flight[e, ALL, m] / state.params.settings[0].slots[m])


@inner
def act(state: EnvState, e: int, action: Any) -> None:
    """Carry out the agent's action (a,) for the decision that is due, if one is."""
    stream = state.stream[e]
    if stream.live != IS_DUE:
        return
    stream.live = IS_OVER
    slot = int(stream.slot)
    if stream.node == PLAN_NODE:
        for agent in range(MAX_AGENTS):
            state.node[e, slot, agent].role = action[2 + agent]
        set_plan(state, e, slot, action[0], action[1] + 1)
        return
    route = route_in(state, action)
    strategies = state.params.strategy_cdf.shape[1]
    decide(state, e, slot, stream.node, route // strategies, route % strategies)
    stream.live = IS_TAKEN


@inner
def route_in(state: EnvState, action: Any) -> int:
    """Return the route in an action (a,), model · S + strategy; 0 at level "planner"."""
    level = state.params.settings[0].level
    if level == LEVEL_PLANNER:
        return 0
    return int(action[0] if level == LEVEL_EXECUTOR else action[PLAN_ACTIONS])


@inner
def routed_to(state: EnvState, action: Any) -> int:
    """Return the model that an action (a,) sends a call to, if it sends one."""
    return int(route_in(state, action) // state.params.strategy_cdf.shape[1])


# Simulated servers


@inner
def send_call(
    state: EnvState, cluster: Cluster, e: int, slot: int, node: int, phase: int, attempt: int
) -> None:
    """Send a call of the query to the server it was routed to; `attempt` counts from 1."""
    query = state.query[e, slot]
    stream = state.stream[e]
    model, strategy, prompt, rank = prepare_call(state, e, slot, node, phase)
    tables, key, ordinal, task = state.params.response, stream.key, query.ordinal, query.task
    call, z = call_id(node, phase, model, strategy), query.length_z
    tokens, _ = answer_tokens(tables, key, ordinal, task, z, call, phase, model, strategy)
    identity = submit(cluster, e, model, stream.now_s, rank, prompt, tokens)
    request = cluster.request[e, identity]
    request.query = slot
    request.node = node
    request.phase = phase
    if state.params.settings[0].call_timeout_s < NEVER_S or cluster.fault.shape[1] > 0:
        watch(cluster, e, identity, attempt)


@inner
def call_done(state: EnvState, cluster: Cluster, e: int, identity: int) -> None:
    """End a call that a server has finished: judge the answer, send the call that follows."""
    params = state.params
    if params.settings[0].call_timeout_s < NEVER_S or cluster.fault.shape[1] > 0:
        unwatch(cluster, e, identity)
    request = cluster.request[e, identity]
    slot, node, phase = int(request.query), int(request.node), int(request.phase)
    query = state.query[e, slot]
    model, strategy = route_of(state, e, slot, node, phase)
    truncated = was_cut(params.response, request.output_tokens)
    right = False
    if is_judged(state, query):
        tables, fit, task, good = params.response, params.role_fit, query.task, query.right
        role, reads = state.node[e, slot, node].role, nodes_read(state, query, node, phase)
        graph = params.graphs.structure[query.topology, query.num_agents - 1]
        bonus = answer_bonus(tables, fit, task, role, node, phase, strategy, graph, reads, good)
        key, call = state.stream[e].key, call_id(node, phase, model, strategy)
        right = answer_right(tables, key, query.ordinal, task, call, model, bonus, truncated)
    follows = end_call(state, e, request, truncated, False, right, False)
    if follows <= FINAL:
        send_call(state, cluster, e, slot, node if follows == SECOND else 0, follows, 1)


@inner
def call_fails(state: EnvState, cluster: Cluster, e: int, identity: int, lost: bool) -> None:
    """End a call without an answer: send it again, or go on without one.

    Its request is `lost` with its server, or else aborted there.
    """
    request = cluster.request[e, identity]
    stream = state.stream[e]
    slot, node, phase = int(request.query), int(request.node), int(request.phase)
    attempt = int(cluster.timer[e, identity].attempt)
    again = attempt < state.params.settings[0].call_attempts
    request.output_tokens = 0
    follows = end_call(state, e, request, False, True, False, again)
    if lost:
        release_request(cluster, e, identity)
    else:
        abort(cluster, e, identity, stream.now_s)
    if again:
        send_call(state, cluster, e, slot, node, phase, attempt + 1)
    elif follows <= FINAL:
        send_call(state, cluster, e, slot, node if follows == SECOND else 0, follows, 1)


@inner
def fault_happens(state: EnvState, cluster: Cluster, e: int) -> None:
    """Apply the next fault: a server goes down or comes back, its speed or its metrics change."""
    stream = state.stream[e]
    settings = state.params.settings[0]
    models = cluster.card.shape[0]
    m = change_condition(cluster, e, stream.now_s, stream.polls)
    if m >= models:
        m -= models
        stream.models_up |= _ONE << np.uint32(m)
        show_news(cluster, e, m, stream.polls, settings)
    elif is_down(cluster, e, m) and stream.models_up >> np.uint32(m) & _ONE:
        stream.models_up &= ~(_ONE << np.uint32(m))
        calls_are_lost(state, cluster, e)
    if stream.polls > 0:
        stream.last_poll_s = oldest_reading_s(cluster, e, stream.models_up)


@inner
def calls_are_lost(state: EnvState, cluster: Cluster, e: int) -> None:
    """Fail the calls at servers that are down, in the order in which they were sent.

    While no model is up, a call that is sent again is lost again, up to `call_attempts`.
    """
    counts = cluster.counts[e]
    now_s = state.stream[e].now_s
    identity = int(counts[OLDEST])
    while identity != NO_REQUEST:
        following = int(cluster.timer[e, identity].newer)
        if is_down(cluster, e, cluster.request[e, identity].server):
            unwatch(cluster, e, identity)
            forget_future(cluster, e, identity, now_s)
            newest = counts[NEXT_SEQ]
            call_fails(state, cluster, e, identity, True)
            if following == NO_REQUEST and counts[NEXT_SEQ] > newest:
                following = int(counts[NEWEST])
        identity = following
    empty_servers_down(cluster, e)


@inner
def advance(state: EnvState, cluster: Cluster, e: int) -> int:
    """Let time run until a decision of the agent is due.

    Returns:
        DECISION: the one of `stream.slot` and `stream.node`; TAGGED_QUERY_OVER: the tagged query is
        done; STREAM_OVER: no query is left.
    """
    stream = state.stream[e]
    settings = state.params.settings[0]
    while True:
        event, slot, node = next_decision(state, e)
        if event in (SEND, SEND_FINAL):
            send_call(state, cluster, e, slot, node, FIRST if event == SEND else FINAL, 1)
            continue
        if event != WAIT:
            return event
        arrival_s = NEVER_S
        if stream.arrived < stream.num_queries:
            arrival_s = state.arrival_s[e, stream.arrived]
        kind, next_s, which = next_event(
            cluster, e, stream.now_s, arrival_s, stream.next_poll_s, settings.call_timeout_s
        )
        stream.now_s = next_s
        if kind == STRETCH_ENDS:
            for i in range(finish_stretch(cluster, e, which, next_s)):
                identity = int(cluster.done[i])
                if cluster.request[e, identity].query != ABORTED:
                    call_done(state, cluster, e, identity)
                release_request(cluster, e, identity)
        elif kind == OUTSIDE:
            start_query(state, e)
        elif kind == CHANGES:
            fault_happens(state, cluster, e)
        elif kind == TIMES_OUT:
            unwatch(cluster, e, which)
            begun_s = cluster.request[e, which].first_token_s
            if not (settings.call_streams and begun_s <= next_s):  # it streams: the client waits on
                call_fails(state, cluster, e, which, False)
        else:
            poll(state, cluster, e)


@inner
def poll(state: EnvState, cluster: Cluster, e: int) -> None:
    """Poll the metrics of all servers, and show those that have arrived."""
    stream = state.stream[e]
    settings = state.params.settings[0]
    with_kv = False
    for f in range(state.params.features.shape[0]):
        with_kv = with_kv or state.params.features[f] == KV
    stream.polls += 1
    read_metrics(cluster, e, stream.now_s, stream.polls, with_kv)
    for m in range(cluster.card.shape[0]):
        show_news(cluster, e, m, stream.polls, settings)
    stream.last_poll_s = oldest_reading_s(cluster, e, stream.models_up)
    stream.next_poll_s = settings.poll_s * (stream.polls + 1)
