"""The life of one query: its arrival, its plan, its calls, its record.

Pure rules, the same for every backend: nothing here depends on servers. An event loop starts a
query (`start_query`), sets its plan and routes (`set_plan`, `decide`), and reports the end of each
call (`end_call`), which returns the call that follows and puts decisions that became possible into
the ready ring. A call's prompt, its priority and its record are defined here, once.

Three kinds of execution. `parallel`: the nodes that are ready run at once and latency is wall-clock
time from arrival to the end of the deciding call. `sequential`, as in the measured runs of the
published system: one call of a query is in flight at a time, nodes in order; latency is counted
along the slowest line of ancestors, and the deciding call loads the servers but is not counted.
`serial`: one call at a time, too, but latency is wall-clock time to the end of the deciding call.

By the workload's `AgentProfile`, some roles make two calls in a node, and a node that reads proven
code hands it on without a call of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.quality import FINAL_STRATEGY, query_length_z
from inframind_gym.simulator.rng import (
    STREAM_AGENTS,
    STREAM_BUDGET,
    STREAM_ROLE,
    STREAM_TESTS,
    STREAM_TOPOLOGY,
    draw,
    uniform,
)
from inframind_gym.simulator.workflow.state import (
    ALL,
    CONTROLLED,
    NO_LIMIT,
    NO_SLOT,
    NOTHING,
    OVER,
    PLAN_NODE,
    QUERY,
    EnvState,
)
from inframind_gym.simulator.workflow.topology import FINAL, FIRST, MAX_NODES, SECOND

PARALLEL = 0  # indices into EXECUTIONS
SEQUENTIAL = 1
EDF = 0  # indices into SCHEDULERS
EDF_LATE_LAST = 1
LEVEL_EXECUTOR = 0  # indices into LEVELS
LEVEL_PLANNER = 1
LATE_S = 1e9  # added to the priority of work that is past its deadline
_DEBATE = 3  # index into TOPOLOGIES
_ONE = np.uint32(1)
_QUERY = np.zeros(1, QUERY)  # one that arrives


@inner
def start_query(state: EnvState, e: int) -> None:
    """Let the next query of the stream arrive; draw its plan unless the agent makes it."""
    params = state.params
    stream = state.stream[e]
    settings = params.settings[0]
    ordinal = int(stream.arrived)
    own = stream.expecting == 1 and ordinal >= stream.tagged_from
    agents = own or not settings.one_query
    stream.arrived += 1
    slot = int(stream.used_slots)
    if stream.free_slots > 0:
        stream.free_slots -= 1
        slot = int(state.free[e, stream.free_slots])
    else:
        stream.used_slots += 1
    state.query[e, slot] = _QUERY[0]
    query = state.query[e, slot]
    key = stream.key
    task = state.task[e, ordinal]
    query.ordinal = ordinal
    query.task = task
    query.arrival_s = state.arrival_s[e, ordinal]
    budget_s = stream.budget_s
    if budget_s != budget_s:
        tiers = params.budget_tiers_s
        budget_s = tiers[int(uniform(key, STREAM_BUDGET, ordinal, 0) * tiers.shape[0])]
    query.budget_s = budget_s
    query.length_z = query_length_z(key, ordinal)
    query.domain = params.task_domain[task]
    profile = int(params.response.task_profile[task])
    query.profile = profile
    query.is_controlled = 1 if agents else 0
    if agents and settings.one_query:
        stream.tagged_slot = slot
        stream.expecting = 0
    if agents and settings.level != LEVEL_EXECUTOR:
        push_ready(state, e, slot, PLAN_NODE)
        return
    topology = int(settings.fixed_topology)
    if topology < 0:
        topology = draw(params.topology_cdf[profile], uniform(key, STREAM_TOPOLOGY, ordinal, 0))
    num_agents = int(settings.fixed_agents)
    if num_agents < 0:
        num_agents = 1 + draw(params.agents_cdf[profile], uniform(key, STREAM_AGENTS, ordinal, 0))
    count = params.role_count[query.domain]
    for agent in range(num_agents):
        state.node[e, slot, agent].role = int(uniform(key, STREAM_ROLE, ordinal, agent) * count)
    set_plan(state, e, slot, topology, num_agents)


@inner
def push_ready(state: EnvState, e: int, slot: int, node: int) -> None:
    """Append a decision that has become possible to the ready ring."""
    stream = state.stream[e]
    state.ready[e, stream.ready_tail & (state.ready.shape[1] - 1)] = slot << 8 | node
    stream.ready_tail += 1


@inner
def pop_ready(state: EnvState, e: int) -> tuple[int, int]:
    """Remove the oldest decision from the ready ring; return (slot, node)."""
    stream = state.stream[e]
    entry = state.ready[e, stream.ready_head & (state.ready.shape[1] - 1)]
    stream.ready_head += 1
    if stream.ready_head == stream.ready_tail:  # empty: start over in the same cache lines
        stream.ready_head = 0
        stream.ready_tail = 0
    return int(entry >> 8), int(entry & 0xFF)


@inner
def set_plan(state: EnvState, e: int, slot: int, topology: int, num_agents: int) -> None:
    """Set the query's topology and agents, and push its first decisions.

    The caller has written the agents' roles, as numbers within the query's domain (taken modulo
    their count), into the first nodes; here every node gets its index into ROLES.
    """
    query = state.query[e, slot]
    graphs = state.params.graphs
    query.topology = topology
    query.num_agents = num_agents
    query.num_nodes = graphs.num_nodes[topology, num_agents - 1]
    first = state.params.role_start[query.domain]
    count = state.params.role_count[query.domain]
    for node in range(query.num_nodes):
        agent = graphs.agents[topology, num_agents - 1, node]
        role = state.node[e, slot, agent].role
        state.node[e, slot, node].role = first + role % count if agent == node else role
    push_next(state, e, slot)


@inner
def push_next(state: EnvState, e: int, slot: int) -> None:
    """Push the decisions of the query that have become possible."""
    query = state.query[e, slot]
    predecessors = state.params.graphs.predecessors[query.topology, query.num_agents - 1]
    one_by_one = state.params.settings[0].execution != PARALLEL
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
def remaining_budget_s(state: EnvState, e: int, slot: int, node: int) -> float:
    """Return the seconds left of the query's budget when `node` is decided; negative if late."""
    query = state.query[e, slot]
    if state.params.settings[0].execution != SEQUENTIAL:
        return float(query.budget_s - (state.stream[e].now_s - query.arrival_s))
    if node == PLAN_NODE:
        return float(query.budget_s)
    return float(query.budget_s - ancestors_s(state, e, slot, node))


@inner
def ancestors_s(state: EnvState, e: int, slot: int, node: int) -> float:
    """Return the latency of the slowest line of ancestors of `node`."""
    query = state.query[e, slot]
    mask = state.params.graphs.predecessors[query.topology, query.num_agents - 1, node]
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
    """Return the model that most of the executions went to; ties go to the one used first."""
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
    """Set the node's present answer, which node `source` wrote."""
    query, execution = state.query[e, slot], state.node[e, slot, node]
    execution.source = source
    execution.tokens = tokens
    bit = _ONE << np.uint32(node)
    query.right = query.right | bit if right else query.right & ~bit
    query.proven = query.proven | bit if proven else query.proven & ~bit


@inner
def finish_node(state: EnvState, e: int, slot: int, node: int) -> int:
    """End a node that has its last answer, now; return what follows, as `end_call` does."""
    query = state.query[e, slot]
    stream, execution = state.stream[e], state.node[e, slot, node]
    query.done |= _ONE << np.uint32(node)
    latency_s = stream.now_s - execution.start_s
    execution.latency_s = latency_s
    if state.params.settings[0].execution == SEQUENTIAL:
        execution.path_s = ancestors_s(state, e, slot, node) + latency_s
        query.latency_s = max(query.latency_s, execution.path_s)
    else:
        query.latency_s = stream.now_s - query.arrival_s
    if query.done == (_ONE << np.uint32(query.num_nodes)) - _ONE:
        query.final_model = most_used_model(state.node[e, slot, : query.num_nodes])
        if query.num_nodes == 1 and state.params.single_call[query.profile] == 1:
            query.solved = query.right & _ONE
            return OVER
        return FINAL
    push_next(state, e, slot)
    return NOTHING


@inner
def hand_on(state: EnvState, e: int, slot: int, node: int) -> int:
    """End a node that has been routed without a call if it reads proven code, which it hands on.

    Agents can prove code where the task shows its tests (MasRouter, ACL 2025).

    Returns:
        FIRST: the node has to make its first call; else what follows, as of `end_call`.
    """
    query = state.query[e, slot]
    share = state.params.visible_tests[query.profile]
    if share <= 0.0:
        return FIRST
    before = state.params.graphs.predecessors[query.topology, query.num_agents - 1, node]
    reads = before & query.proven
    if not reads or uniform(state.stream[e].key, STREAM_TESTS, query.task, 0) >= share:
        return FIRST
    first = 0
    while not reads >> np.uint32(first) & _ONE:
        first += 1
    read = state.node[e, slot, first]
    note_answer(state, e, slot, node, read.source, read.tokens, True, True)
    return finish_node(state, e, slot, node)


@inner
def priority(state: EnvState, deadline_s: float, now_s: float) -> float:
    """Return the priority of a call sent now for a query with a deadline; lower goes first."""
    scheduler = state.params.settings[0].scheduler
    if scheduler == EDF:
        return deadline_s
    if scheduler == EDF_LATE_LAST:
        return deadline_s if now_s < deadline_s else deadline_s + LATE_S
    return 0.0


@inner
def route_of(state: EnvState, e: int, slot: int, node: int, phase: int) -> tuple[int, int]:
    """Return model and strategy of a call of the query."""
    if phase == FINAL:
        return int(state.query[e, slot].final_model), FINAL_STRATEGY
    execution = state.node[e, slot, node]
    return int(execution.model), int(execution.strategy)


@inner
def nodes_read(state: EnvState, query: Any, node: int, phase: int) -> Any:
    """Return the bit mask of the nodes whose answers are in the prompt of a call.

    The deciding call reads every agent's last answer; a second call reads its own first answer,
    too. A node whose call failed has no answer to read.
    """
    if phase == FINAL:
        everyone = (_ONE << np.uint32(query.num_nodes)) - _ONE
        if query.topology == _DEBATE:
            everyone &= ~((_ONE << np.uint32(query.num_agents)) - _ONE)
        return everyone & ~query.lost
    before = state.params.graphs.predecessors[query.topology, query.num_agents - 1, node]
    if phase == SECOND:
        before |= _ONE << np.uint32(node)
    return before & ~query.lost


@inner
def is_judged(state: EnvState, query: Any) -> bool:
    """Return whether it matters if the query's answers are right.

    For background traffic it does only where its own agents prove code.
    """
    return bool(query.is_controlled == 1 or state.params.visible_tests[query.profile] > 0.0)


@inner
def prepare_call(
    state: EnvState, e: int, slot: int, node: int, phase: int
) -> tuple[int, int, int, float]:
    """Prepare a call to be sent now; the next model that is up replaces one that is down.

    Returns:
        (model, strategy, prompt tokens, priority).
    """
    params = state.params
    query = state.query[e, slot]
    stream = state.stream[e]
    model, strategy = route_of(state, e, slot, node, phase)
    models = params.max_prompt_tokens.shape[0]
    for step in range(models):  # the model itself where none is up
        other = int(model + step) % models
        if stream.models_up >> np.uint32(other) & _ONE:
            model = other
            break
    if phase == FINAL:
        query.final_model = model
    else:
        state.node[e, slot, node].model = model
    reads = nodes_read(state, query, node, phase)
    limit = params.final_message_tokens[query.profile] if phase == FINAL else NO_LIMIT
    messages = 0
    for other in range(query.num_nodes):
        if reads >> np.uint32(other) & _ONE:
            messages += min(int(state.node[e, slot, other].tokens), limit)
    prompt = (
        params.task_tokens[query.task]
        + params.overhead_tokens[query.profile]
        + int(params.message_frac[query.profile] * messages)
    )
    prompt = min(prompt, params.max_prompt_tokens[model])
    query.prompt_tokens += prompt
    state.in_flight[e, ALL, model] += 1
    state.in_flight[e, CONTROLLED, model] += query.is_controlled
    rank = priority(state, query.arrival_s + query.budget_s, stream.now_s)
    return model, strategy, int(prompt), rank


@inner
def end_call(
    state: EnvState, e: int, answer: Any, truncated: bool, failed: bool, right: bool, again: bool
) -> int:
    """End a call, now: record it and let the workflow go on.

    Args:
        answer: a record with the call's `query` (slot), `node` and `phase`, and the server's
            results: a REQUEST of the surrogate or a CALL of another backend.
        right: whether the answer is right; False where that does not matter (`is_judged`).
        again: send a failed call again.

    Returns:
        The phase of the call that follows from this one: the same if it is to be sent again,
        SECOND of the same node, or FINAL. Otherwise NOTHING, or OVER when the query is done.
        Decisions that became possible are in the ready ring.
    """
    stream = state.stream[e]
    slot, node, phase = int(answer.query), int(answer.node), int(answer.phase)
    query = state.query[e, slot]
    model, strategy = route_of(state, e, slot, node, phase)
    state.in_flight[e, ALL, model] -= 1
    state.in_flight[e, CONTROLLED, model] -= query.is_controlled
    if truncated:
        query.truncated_calls += 1
    if failed:
        query.failed_calls += 1
    if stream.recorded_calls < state.call.shape[1]:
        record = state.call[e, stream.recorded_calls]
        stream.recorded_calls += 1
        record.submit_s = answer.submit_s
        record.admitted_s = answer.admitted_s
        record.first_token_s = answer.first_token_s
        record.finish_s = stream.now_s
        record.priority = answer.priority
        record.query = query.ordinal
        record.prompt_tokens = answer.prompt_tokens
        record.output_tokens = answer.output_tokens
        record.evictions = answer.evictions
        record.node = node
        record.phase = phase
        record.model = model
        record.strategy = strategy
        record.truncated = 1 if truncated else 0
        record.failed = 1 if failed else 0
        record.right = 1 if right else 0
    query.calls += 1
    if failed and again:
        return phase
    query.output_tokens += answer.output_tokens
    right = right and not failed
    follows = OVER
    if phase == FINAL:
        query.solved = 1 if right else 0
        if state.params.settings[0].execution != SEQUENTIAL:
            query.latency_s = stream.now_s - query.arrival_s
    else:
        role = state.node[e, slot, node].role
        proven = right and state.params.role_codes[role] == 1
        note_answer(state, e, slot, node, node, int(answer.output_tokens), right, proven)
        bit = _ONE << np.uint32(node)
        query.lost = query.lost | bit if failed else query.lost & ~bit
        if phase == FIRST and (
            state.params.graphs.calls_per_node[query.topology] == 2
            or state.params.role_calls[query.profile, role] == 2
        ):
            return SECOND
        follows = finish_node(state, e, slot, node)
    if follows == OVER:
        query_over(state, e, slot)
    return int(follows)


@inner
def query_over(state: EnvState, e: int, slot: int) -> None:
    """End a query whose last call is done: write its record and free its slot."""
    query = state.query[e, slot]
    stream = state.stream[e]
    record = state.completed[e, stream.finished]
    stream.finished += 1
    record.arrival_s = query.arrival_s
    record.finish_s = stream.now_s
    record.latency_s = query.latency_s
    record.budget_s = query.budget_s
    record.cost = query.latency_s / query.budget_s
    record.query = query.ordinal
    record.task = query.task
    record.prompt_tokens = query.prompt_tokens
    record.output_tokens = query.output_tokens
    record.right = query.right
    record.calls = query.calls
    record.truncated_calls = query.truncated_calls
    record.failed_calls = query.failed_calls
    record.domain = query.domain
    record.topology = query.topology
    record.num_agents = query.num_agents
    record.num_nodes = query.num_nodes
    record.solved = query.solved
    record.final_model = query.final_model
    record.is_controlled = query.is_controlled
    for node in range(query.num_nodes):
        execution = state.node[e, slot, node]
        record.model[node] = execution.model
        record.strategy[node] = execution.strategy
        record.role[node] = execution.role
        record.node_latency_s[node] = execution.latency_s
    for node in range(query.num_nodes, MAX_NODES):
        record.model[node] = -1
        record.strategy[node] = -1
        record.role[node] = -1
        record.node_latency_s[node] = 0.0
    if query.is_controlled and state.params.settings[0].one_query:
        stream.tagged_slot = NO_SLOT
    state.free[e, stream.free_slots] = slot
    stream.free_slots += 1
