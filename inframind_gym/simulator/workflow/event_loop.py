"""The event loop on simulated servers: arrivals, workflows and servers advanced together, compiled.

Queries start when they arrive, the calls that workflows ask for are submitted, completions are
reported back, and the loop stops whenever a decision of the agent is due. `backend_loop` does the
same on any other backend.
"""

from __future__ import annotations

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.quality import (
    answer_bonus,
    answer_right,
    answer_tokens,
    call_id,
    was_cut,
)
from inframind_gym.simulator.server.engine import (
    finish_stretch,
    flush,
    next_end,
    release_request,
    submit,
)
from inframind_gym.simulator.server.faults import (
    ABORTED,
    abort,
    change_condition,
    empty_servers_down,
    forget_future,
    is_down,
    next_fault_s,
    next_timeout,
    oldest_reading_s,
    read_metrics,
    show_news,
    unwatch,
    watch,
)
from inframind_gym.simulator.server.state import (
    DIRTY,
    NEVER_S,
    NEWEST,
    NEXT_SEQ,
    NO_REQUEST,
    OLDEST,
    Cluster,
)
from inframind_gym.simulator.server.telemetry import poll, with_kv
from inframind_gym.simulator.workflow.dispatch import SEND, SEND_FINAL, WAIT, next_event
from inframind_gym.simulator.workflow.lifecycle import (
    end_call,
    is_judged,
    nodes_read,
    prepare_call,
    route_of,
    start_query,
)
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.state import EnvState
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, SECOND

_ONE = np.uint32(1)


@inner
def send_call(
    params: EnvParams,
    state: EnvState,
    cluster: Cluster,
    e: int,
    slot: int,
    node: int,
    phase: int,
    attempt: int,
) -> None:
    """Send a call of the query to the server it was routed to; `attempt` counts from 1."""
    query = state.query[e, slot]
    stream = state.stream[e]
    model, strategy, prompt, rank = prepare_call(params, state, e, slot, node, phase)
    tokens, _ = answer_tokens(
        params.response,
        stream.key,
        query.ordinal,
        query.task,
        query.length_z,
        call_id(node, phase, model, strategy),
        phase,
        model,
        strategy,
    )
    identity = submit(cluster, e, model, stream.now_s, rank, prompt, tokens)
    request = cluster.request[e, identity]
    request.query = slot
    request.node = node
    request.phase = phase
    if params.settings[0].call_timeout_s < NEVER_S or cluster.fault.shape[1] > 0:
        watch(cluster, e, identity, attempt)


@inner
def call_done(params: EnvParams, state: EnvState, cluster: Cluster, e: int, identity: int) -> None:
    """A server has finished a call: judge the answer and do what follows from it."""
    if params.settings[0].call_timeout_s < NEVER_S or cluster.fault.shape[1] > 0:
        unwatch(cluster, e, identity)
    request = cluster.request[e, identity]
    slot, node, phase = int(request.query), int(request.node), int(request.phase)
    query = state.query[e, slot]
    model, strategy = route_of(state, e, slot, node, phase)
    truncated = was_cut(params.response, request.output_tokens)
    right = False
    if is_judged(params, query):
        right = answer_right(
            params.response,
            state.stream[e].key,
            query.ordinal,
            query.task,
            call_id(node, phase, model, strategy),
            model,
            answer_bonus(
                params.response,
                params.role_fit,
                query.task,
                state.node[e, slot, node].role,
                node,
                phase,
                strategy,
                params.graphs.structure[query.topology, query.num_agents - 1],
                nodes_read(params, query, node, phase),
                query.right,
            ),
            truncated,
        )
    follows = end_call(params, state, e, request, truncated, False, right, False)
    if follows <= FINAL:
        send_call(params, state, cluster, e, slot, node if follows == SECOND else 0, follows, 1)


@inner
def call_times_out(
    params: EnvParams, state: EnvState, cluster: Cluster, e: int, identity: int
) -> None:
    """The client has waited for a call long enough: abort it, and send it again or do without."""
    request = cluster.request[e, identity]
    stream = state.stream[e]
    settings = params.settings[0]
    unwatch(cluster, e, identity)
    if settings.call_streams and request.first_token_s <= stream.now_s:
        return
    call_fails(params, state, cluster, e, identity, False)


@inner
def call_fails(
    params: EnvParams, state: EnvState, cluster: Cluster, e: int, identity: int, lost: bool
) -> None:
    """No answer will come of a call: send it again or do without.

    Args:
        params: constants.
        state: state.
        cluster: the servers.
        e: environment of the batch.
        identity: its request, which nobody waits for any more.
        lost: its server has gone down; otherwise it is aborted there.
    """
    request = cluster.request[e, identity]
    stream = state.stream[e]
    slot, node, phase = int(request.query), int(request.node), int(request.phase)
    attempt = int(cluster.timer[e, identity].attempt)
    again = attempt < params.settings[0].call_attempts
    request.output_tokens = 0
    follows = end_call(params, state, e, request, False, True, False, again)
    if lost:
        release_request(cluster, e, identity)
    else:
        abort(cluster, e, identity, stream.now_s)
    if again:
        send_call(params, state, cluster, e, slot, node, phase, attempt + 1)
    elif follows <= FINAL:
        send_call(params, state, cluster, e, slot, node if follows == SECOND else 0, follows, 1)


@inner
def fault_happens(params: EnvParams, state: EnvState, cluster: Cluster, e: int) -> None:
    """A server goes down, comes back, changes its pace or the way of its metrics."""
    stream = state.stream[e]
    settings = params.settings[0]
    models = cluster.card.shape[0]
    m = change_condition(cluster, e, stream.now_s, stream.polls)
    if m >= models:
        m -= models
        stream.models_up |= _ONE << np.uint32(m)
        show_news(cluster, e, m, stream.polls, settings.queue_norm, settings.queue_high)
    elif is_down(cluster, e, m) and stream.models_up >> np.uint32(m) & _ONE:
        stream.models_up &= ~(_ONE << np.uint32(m))
        calls_are_lost(params, state, cluster, e)
    if stream.polls > 0:
        stream.last_poll_s = oldest_reading_s(cluster, e, stream.models_up)


@inner
def calls_are_lost(params: EnvParams, state: EnvState, cluster: Cluster, e: int) -> None:
    """Give up the calls at servers that are down, in the order in which they were sent.

    While no model is up, a call that is sent again is lost again, until it has failed for good.
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
            call_fails(params, state, cluster, e, identity, True)
            if following == NO_REQUEST and counts[NEXT_SEQ] > newest:
                following = int(counts[NEWEST])
        identity = following
    empty_servers_down(cluster, e)


@inner
def advance(params: EnvParams, state: EnvState, cluster: Cluster, e: int) -> int:
    """Let time run until a decision of the agent's is due.

    Returns:
        DECISION: `stream.slot` and `stream.node` say which; TAGGED_QUERY_OVER: the tagged query is
        done; STREAM_OVER: no query is left.
    """
    stream = state.stream[e]
    settings = params.settings[0]
    while True:
        event, slot, node = next_event(params, state, e)
        if event in (SEND, SEND_FINAL):
            send_call(params, state, cluster, e, slot, node, FIRST if event == SEND else FINAL, 1)
            continue
        if event != WAIT:
            return event
        end_s, m = next_end(cluster, e)
        arrival_s = NEVER_S
        if stream.arrived < stream.num_queries:
            arrival_s = state.arrival_s[e, stream.arrived]
        timeout_s, late = NEVER_S, 0
        if settings.call_timeout_s < NEVER_S:
            timeout_s, late = next_timeout(cluster, e, settings.call_timeout_s)
        fault_s = next_fault_s(cluster, e)
        next_s = min(min(end_s, fault_s), min(arrival_s, stream.next_poll_s))
        if cluster.counts[e, DIRTY] and next_s > stream.now_s:
            flush(cluster, e, stream.now_s)
            continue
        next_s = min(next_s, timeout_s)
        stream.now_s = next_s
        if end_s == next_s:
            for i in range(finish_stretch(cluster, e, m, next_s)):
                identity = int(cluster.done[i])
                if cluster.request[e, identity].query != ABORTED:
                    call_done(params, state, cluster, e, identity)
                release_request(cluster, e, identity)
        elif arrival_s == next_s:
            start_query(params, state, e)
        elif fault_s == next_s:
            fault_happens(params, state, cluster, e)
        elif timeout_s == next_s:
            call_times_out(params, state, cluster, e, late)
        else:
            stream.polls += 1
            stream.last_poll_s = next_s
            if cluster.fault.shape[1] == 0:
                poll(cluster, e, next_s, params.features, settings.queue_norm, settings.queue_high)
            else:
                read_metrics(cluster, e, next_s, stream.polls, with_kv(params.features))
                for server in range(cluster.card.shape[0]):
                    show_news(
                        cluster,
                        e,
                        server,
                        stream.polls,
                        settings.queue_norm,
                        settings.queue_high,
                    )
                stream.last_poll_s = oldest_reading_s(cluster, e, stream.models_up)
            stream.next_poll_s = settings.poll_s * (stream.polls + 1)
