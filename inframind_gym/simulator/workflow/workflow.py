"""The workflow of one query as a state machine: who may speak next, and when it is over.

Pure rules, whichever backend serves the calls: nothing here knows of servers. A backend's driver
starts a query, hands in plans and routes, and reports each call that is done; the machine answers
which call follows and puts the decisions that became possible into the ready ring.

Three kinds of execution. `parallel`: the nodes that are ready run at once and latency is wall-clock
time from arrival to the end of the deciding call. `sequential`, as in the measured runs of the
published system: one call of a query is in flight at a time, nodes in order; latency is counted
along the slowest line of ancestors, and the deciding call loads the servers but is not counted.
`serial`: one call at a time, too, but latency is wall-clock time to the end of the deciding call.

Where the workload says so (`AgentProfile`), roles can make two calls a node, and a node that reads
proven code hands it on without a call of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.rng import STREAM_TESTS, uniform
from inframind_gym.simulator.workflow.params import EnvParams
from inframind_gym.simulator.workflow.state import NOTHING, OVER, PLAN_NODE, EnvState
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, SECOND

PARALLEL = 0  # indices into EXECUTIONS
SEQUENTIAL = 1
_ONE = np.uint32(1)


@inner
def new_slot(state: EnvState, e: int) -> int:
    """A free slot of the pool of queries."""
    stream = state.stream[e]
    if stream.free_slots > 0:
        stream.free_slots -= 1
        return int(state.free[e, stream.free_slots])
    stream.used_slots += 1
    return int(stream.used_slots) - 1


@inner
def release_slot(state: EnvState, e: int, slot: int) -> None:
    """Give a slot back."""
    stream = state.stream[e]
    state.free[e, stream.free_slots] = slot
    stream.free_slots += 1


@inner
def push_ready(state: EnvState, e: int, slot: int, node: int) -> None:
    """A decision has become possible."""
    stream = state.stream[e]
    state.ready[e, stream.ready_tail & (state.ready.shape[1] - 1)] = slot << 8 | node
    stream.ready_tail += 1


@inner
def pop_ready(state: EnvState, e: int) -> tuple[int, int]:
    """The oldest decision that waits, as (slot, node)."""
    stream = state.stream[e]
    entry = state.ready[e, stream.ready_head & (state.ready.shape[1] - 1)]
    stream.ready_head += 1
    if stream.ready_head == stream.ready_tail:  # empty: stay in the same lines of memory
        stream.ready_head = 0
        stream.ready_tail = 0
    return int(entry >> 8), int(entry & 0xFF)


@inner
def set_plan(
    params: EnvParams, state: EnvState, e: int, slot: int, topology: int, num_agents: int
) -> None:
    """Give the query its topology and agents; its first decisions become possible.

    The caller has written the roles of the agents, counted within the query's domain, into the
    first nodes; here they become indices into ROLES, one for every node.

    Args:
        topology: index into TOPOLOGIES.
        num_agents: 1..MAX_AGENTS.
    """
    query = state.query[e, slot]
    graphs = params.graphs
    query.topology = topology
    query.num_agents = num_agents
    query.num_nodes = graphs.num_nodes[topology, num_agents - 1]
    first = params.role_start[query.domain]
    count = params.role_count[query.domain]
    for node in range(query.num_nodes):
        agent = graphs.agents[topology, num_agents - 1, node]
        role = state.node[e, slot, agent].role
        state.node[e, slot, node].role = first + role % count if agent == node else role
    push_next(params, state, e, slot)


@inner
def push_next(params: EnvParams, state: EnvState, e: int, slot: int) -> None:
    """Push the decisions of the query that can be made now and were not before."""
    query = state.query[e, slot]
    predecessors = params.graphs.predecessors[query.topology, query.num_agents - 1]
    one_by_one = params.settings[0].execution != PARALLEL
    if one_by_one and query.pushed != query.done:
        return
    for node in range(query.num_nodes):
        bit = _ONE << np.uint32(node)
        if not query.pushed & bit and predecessors[node] & ~query.done == 0:
            query.pushed |= bit
            push_ready(state, e, slot, node)
            if one_by_one:
                return


@inner
def remaining_budget_s(params: EnvParams, state: EnvState, e: int, slot: int, node: int) -> float:
    """Seconds left of the query's budget when `node` is decided; negative when it is late."""
    query = state.query[e, slot]
    if params.settings[0].execution != SEQUENTIAL:
        return float(query.budget_s - (state.stream[e].now_s - query.arrival_s))
    if node == PLAN_NODE:
        return float(query.budget_s)
    return float(query.budget_s - ancestors_s(params, state, e, slot, node))


@inner
def ancestors_s(params: EnvParams, state: EnvState, e: int, slot: int, node: int) -> float:
    """Latency of the slowest line of ancestors of `node`."""
    query = state.query[e, slot]
    mask = params.graphs.predecessors[query.topology, query.num_agents - 1, node]
    slowest = 0.0
    for other in range(node):
        if mask >> np.uint32(other) & _ONE:
            slowest = max(slowest, state.node[e, slot, other].path_s)
    return slowest


@inner
def decide(state: EnvState, e: int, slot: int, node: int, model: int, strategy: int) -> None:
    """Route the execution `node`: its first call can be sent."""
    execution = state.node[e, slot, node]
    execution.model = model
    execution.strategy = strategy
    execution.start_s = state.stream[e].now_s


@inner
def most_used_model(nodes: Any) -> int:
    """The model that most of the executions went to; among equals, the one used first."""
    best = int(nodes[0].model)
    most = 0
    for node in range(len(nodes)):
        uses = 0
        for other in range(node, len(nodes)):
            uses += nodes[other].model == nodes[node].model
        if uses > most:
            most = uses
            best = int(nodes[node].model)
    return best


@inner
def complete_call(
    params: EnvParams,
    state: EnvState,
    e: int,
    slot: int,
    node: int,
    phase: int,
    tokens: int,
    right: bool,
    failed: bool,
) -> int:
    """A call of the query is done, now.

    Args:
        node: the execution it belonged to.
        phase: FIRST, SECOND or FINAL.
        tokens: length of the answer.
        right: whether the answer is right, where the backend can tell.
        failed: there is no answer.

    Returns:
        The phase of the call that follows from this one (SECOND of the same node, or FINAL);
        NOTHING; or OVER when the query is done. Further decisions are in the ready ring.
    """
    query = state.query[e, slot]
    query.calls += 1
    query.output_tokens += tokens
    if phase == FINAL:
        query.solved = 1 if right else 0
        if params.settings[0].execution != SEQUENTIAL:
            query.latency_s = state.stream[e].now_s - query.arrival_s
        return OVER
    role = state.node[e, slot, node].role
    proven = right and params.role_codes[role] == 1
    note_answer(state, e, slot, node, node, tokens, right, proven)
    bit = _ONE << np.uint32(node)
    query.lost = query.lost | bit if failed else query.lost & ~bit
    if phase == FIRST and (
        params.graphs.calls_per_node[query.topology] == 2
        or params.role_calls[query.profile, role] == 2
    ):
        return SECOND
    return finish_node(params, state, e, slot, node)


@inner
def note_answer(
    state: EnvState,
    e: int,
    slot: int,
    node: int,
    source: int,
    tokens: int,
    right: bool,
    proven: bool,
) -> None:
    """The node has an answer, which `source` wrote, until it has another one."""
    query, execution = state.query[e, slot], state.node[e, slot, node]
    execution.source = source
    execution.tokens = tokens
    bit = _ONE << np.uint32(node)
    query.right = query.right | bit if right else query.right & ~bit
    query.proven = query.proven | bit if proven else query.proven & ~bit


@inner
def finish_node(params: EnvParams, state: EnvState, e: int, slot: int, node: int) -> int:
    """The node has its last answer, now; returns as `complete_call` does."""
    query = state.query[e, slot]
    stream, execution = state.stream[e], state.node[e, slot, node]
    query.done |= _ONE << np.uint32(node)
    latency_s = stream.now_s - execution.start_s
    execution.latency_s = latency_s
    if params.settings[0].execution == SEQUENTIAL:
        execution.path_s = ancestors_s(params, state, e, slot, node) + latency_s
        query.latency_s = max(query.latency_s, execution.path_s)
    else:
        query.latency_s = stream.now_s - query.arrival_s
    if query.done == (_ONE << np.uint32(query.num_nodes)) - _ONE:
        query.final_model = most_used_model(state.node[e, slot, : query.num_nodes])
        if query.num_nodes == 1 and params.single_call[query.profile] == 1:
            query.solved = query.right & _ONE
            return OVER
        return FINAL
    push_next(params, state, e, slot)
    return NOTHING


@inner
def hand_on(params: EnvParams, state: EnvState, e: int, slot: int, node: int) -> int:
    """The node has been routed: where it reads proven code, it hands that on without a call.

    Agents can prove code where the task shows its tests (MasRouter, ACL 2025).

    Returns:
        FIRST: it has to make its first call; else what follows, as of `complete_call`.
    """
    query = state.query[e, slot]
    share = params.visible_tests[query.profile]
    if share <= 0.0:
        return FIRST
    reads = params.graphs.predecessors[query.topology, query.num_agents - 1, node] & query.proven
    if not reads or uniform(state.stream[e].key, STREAM_TESTS, query.task, 0) >= share:
        return FIRST
    first = 0
    while not reads >> np.uint32(first) & _ONE:
        first += 1
    read = state.node[e, slot, first]
    note_answer(state, e, slot, node, read.source, read.tokens, True, True)
    return finish_node(params, state, e, slot, node)
