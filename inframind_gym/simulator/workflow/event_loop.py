"""The closed loop on the surrogate: arrivals, workflows and servers advanced together, compiled.

This is the driver that any other backend has in `driver.py`: it starts queries when they arrive,
sends the calls that the workflows ask for and reports back the ones that are done. It stops
whenever a decision of the agent's is due.
"""

from __future__ import annotations

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
from inframind_gym.simulator.server.state import DIRTY, NEVER_S, Cluster
from inframind_gym.simulator.server.telemetry import poll
from inframind_gym.simulator.workflow.dispatch import SEND, SEND_FINAL, WAIT, next_turn
from inframind_gym.simulator.workflow.lifecycle import (
    end_call,
    is_judged,
    nodes_read,
    prepare_call,
    route_of,
    start_query,
)
from inframind_gym.simulator.workflow.params import World
from inframind_gym.simulator.workflow.state import Workflows
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, SECOND


@inner
def send_call(
    world: World, flows: Workflows, cluster: Cluster, e: int, slot: int, node: int, phase: int
) -> None:
    """Send a call of the query to the server it was routed to."""
    query = flows.query[e, slot]
    sweep = flows.sweep[e]
    model, strategy, prompt, rank = prepare_call(world, flows, e, slot, node, phase)
    tokens, _ = answer_tokens(
        world.response,
        sweep.key,
        query.ordinal,
        query.task,
        query.length_z,
        call_id(node, phase, model, strategy),
        model,
        strategy,
    )
    identity = submit(cluster, e, model, sweep.now_s, rank, prompt, tokens)
    request = cluster.request[e, identity]
    request.query = slot
    request.node = node
    request.phase = phase


@inner
def call_done(world: World, flows: Workflows, cluster: Cluster, e: int, identity: int) -> None:
    """A server has finished a call: judge the answer and do what follows from it."""
    request = cluster.request[e, identity]
    slot, node, phase = int(request.query), int(request.node), int(request.phase)
    query = flows.query[e, slot]
    model, strategy = route_of(query, node, phase)
    truncated = was_cut(world.response, request.output_tokens)
    right = False
    if is_judged(world, query):
        right = answer_right(
            world.response,
            flows.sweep[e].key,
            query.ordinal,
            query.task,
            call_id(node, phase, model, strategy),
            model,
            answer_bonus(
                world.response,
                world.role_fit,
                query.task,
                query.role[node],
                node,
                phase,
                strategy,
                nodes_read(world, query, node, phase),
                query.right,
            ),
            truncated,
        )
    follows = end_call(world, flows, e, request, truncated, False, right, False)
    if follows <= FINAL:
        send_call(world, flows, cluster, e, slot, node if follows == SECOND else 0, follows)


@inner
def advance(world: World, flows: Workflows, cluster: Cluster, e: int) -> int:
    """Let time run until a decision of the agent's is due.

    Returns:
        DECISION: `sweep.slot` and `sweep.node` say which; OWN_QUERY_OVER: the agent's query is done
        (one-agent mode); SWEEP_OVER: no query is left.
    """
    sweep = flows.sweep[e]
    settings = world.settings[0]
    while True:
        turn, slot, node = next_turn(world, flows, e)
        if turn in (SEND, SEND_FINAL):
            send_call(world, flows, cluster, e, slot, node, FIRST if turn == SEND else FINAL)
            continue
        if turn != WAIT:
            return turn
        end_s, m = next_end(cluster, e)
        arrival_s = NEVER_S
        if sweep.arrived < sweep.num_queries:
            arrival_s = flows.arrival_s[e, sweep.arrived]
        next_s = min(end_s, min(arrival_s, sweep.next_poll_s))
        if cluster.counts[e, DIRTY] and next_s > sweep.now_s:
            flush(cluster, e, sweep.now_s)
            continue
        sweep.now_s = next_s
        if end_s == next_s:
            for i in range(finish_stretch(cluster, e, m, next_s)):
                identity = int(cluster.done[i])
                call_done(world, flows, cluster, e, identity)
                release_request(cluster, e, identity)
        elif arrival_s == next_s:
            start_query(world, flows, e)
        else:
            poll(cluster, e, next_s, world.features, settings.queue_norm, settings.queue_high)
            sweep.polls += 1
            sweep.last_poll_s = next_s
            sweep.next_poll_s = settings.poll_s * (sweep.polls + 1)
