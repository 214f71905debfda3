"""The closed loop on the surrogate: arrivals, workflows and servers advanced together, compiled.

This is the driver that the live backend has in wall-clock time: it starts queries when they arrive,
sends the calls that the state machine asks for and reports back the ones that are done. It stops
whenever a decision of the agent's is due.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inframind_gym._jit import inner
from inframind_gym.orchestration.machine import (
    complete_call,
    decide,
    new_slot,
    pop_ready,
    push_ready,
    release_slot,
    set_plan,
)
from inframind_gym.orchestration.state import (
    FINAL,
    NO_SLOT,
    NOTHING,
    OVER,
    PLAN_NODE,
    SECOND,
    Workflows,
)
from inframind_gym.orchestration.world import World
from inframind_gym.quality.response import (
    FINAL_STRATEGY,
    answer_right,
    answer_tokens,
    call_id,
)
from inframind_gym.rng import (
    STREAM_AGENTS,
    STREAM_BACKGROUND,
    STREAM_BUDGET,
    STREAM_QUERY_LENGTH,
    STREAM_ROLE,
    STREAM_TOPOLOGY,
    normal,
    uniform,
)
from inframind_gym.serving.surrogate.engine import (
    finish_stretch,
    flush,
    next_end,
    release_request,
    submit,
)
from inframind_gym.serving.surrogate.state import DIRTY, NEVER_S, Cluster
from inframind_gym.serving.surrogate.telemetry import poll
from inframind_gym.topology.graphs import MAX_NODES

EDF = 0  # indices into SCHEDULERS
EDF_LATE_LAST = 1
STATIC_MIX = 0  # indices into ROUTERS
ROUND_ROBIN = 1
LEVEL_EXECUTOR = 0  # indices into LEVELS
LEVEL_PLANNER = 1
LATE_S = 1e9  # added to the priority of work that is past its deadline
_ONE = np.uint32(1)
_RIGHT_MASK_DEBATE = 3  # index of Debate in TOPOLOGIES

DECISION = 0  # answers of `advance`
SWEEP_OVER = 1
OWN_QUERY_OVER = 2


@inner
def draw(cdf: Any, u: float) -> int:
    """Index of the first cumulative share above u."""
    for i in range(cdf.shape[0] - 1):
        if u < cdf[i]:
            return i
    return int(cdf.shape[0]) - 1


@inner
def start_query(world: World, flows: Workflows, e: int, agents: bool) -> None:
    """The next query of the sweep arrives, now."""
    sweep = flows.sweep[e]
    settings = world.settings[0]
    ordinal = int(sweep.arrived)
    sweep.arrived += 1
    slot = new_slot(flows, e)
    query = flows.query[e, slot]
    key = sweep.key
    task = flows.task[e, ordinal]
    query.ordinal = ordinal
    query.task = task
    query.arrival_s = sweep.now_s
    budget_s = sweep.budget_s
    if budget_s != budget_s:
        tiers = world.budget_tiers_s
        budget_s = tiers[int(uniform(key, STREAM_BUDGET, ordinal, 0) * tiers.shape[0])]
    query.budget_s = budget_s
    query.latency_s = 0.0
    query.charged_s = 0.0
    query.length_z = np.float32(normal(key, STREAM_QUERY_LENGTH, ordinal, 0))
    query.domain = world.task_domain[task]
    profile = int(world.response.task_profile[task])
    query.profile = profile
    query.agents = 1 if agents else 0
    query.solved = 0
    query.pushed = 0
    query.done = 0
    query.right = 0
    query.prompt_tokens = 0
    query.output_tokens = 0
    query.calls = 0
    query.truncated_calls = 0
    query.num_nodes = 0
    if agents and settings.one_query:
        sweep.own_slot = slot
        sweep.expecting = 0
    if agents and settings.level != LEVEL_EXECUTOR:
        query.topology = 0
        query.num_agents = 0
        push_ready(flows, e, slot, PLAN_NODE)
        return
    topology = int(settings.fixed_topology)
    if topology < 0:
        topology = draw(world.topology_cdf[profile], uniform(key, STREAM_TOPOLOGY, ordinal, 0))
    num_agents = int(settings.fixed_agents)
    if num_agents < 0:
        num_agents = 1 + draw(world.agents_cdf[profile], uniform(key, STREAM_AGENTS, ordinal, 0))
    count = world.role_count[query.domain]
    for agent in range(num_agents):
        query.role[agent] = int(uniform(key, STREAM_ROLE, ordinal, agent) * count)
    set_plan(world, flows, e, slot, topology, num_agents)


@inner
def priority(world: World, deadline_s: float, now_s: float) -> float:
    """Priority of a call sent now for a query with the given deadline; lower is served first."""
    scheduler = world.settings[0].scheduler
    if scheduler == EDF:
        return deadline_s
    if scheduler == EDF_LATE_LAST:
        return deadline_s if now_s < deadline_s else deadline_s + LATE_S
    return 0.0


@inner
def send_call(
    world: World, flows: Workflows, cluster: Cluster, e: int, slot: int, node: int, phase: int
) -> None:
    """Send a call of the query to the server it was routed to."""
    query = flows.query[e, slot]
    sweep = flows.sweep[e]
    profile = int(query.profile)
    graphs = world.graphs
    if phase == FINAL:
        model = int(query.final_model)
        strategy = FINAL_STRATEGY
        reads = deciding_nodes(query)
    else:
        model = int(query.model[node])
        strategy = int(query.strategy[node])
        reads = graphs.predecessors[query.topology, query.num_agents - 1, node]
        if phase == SECOND:
            reads |= _ONE << np.uint32(node)
    messages = 0
    for other in range(query.num_nodes):
        if reads >> np.uint32(other) & _ONE:
            messages += query.node_tokens[other]
    prompt = (
        world.task_tokens[query.task]
        + world.overhead_tokens[profile]
        + int(world.message_frac[profile] * messages)
    )
    prompt = min(prompt, world.max_prompt_tokens[model])
    call = call_id(node, phase, model, strategy)
    tokens, _ = answer_tokens(
        world.response,
        sweep.key,
        query.ordinal,
        query.task,
        query.length_z,
        call,
        model,
        strategy,
    )
    query.prompt_tokens += prompt
    deadline_s = query.arrival_s + query.budget_s
    identity = submit(
        cluster,
        e,
        model,
        sweep.now_s,
        priority(world, deadline_s, sweep.now_s),
        prompt,
        tokens,
    )
    request = cluster.request[e, identity]
    request.query = slot
    request.node = node
    request.phase = phase


@inner
def deciding_nodes(query: Any) -> Any:
    """Bit mask of the nodes whose answers the deciding call reads: every agent's last one."""
    everyone = (_ONE << np.uint32(query.num_nodes)) - _ONE
    if query.topology == _RIGHT_MASK_DEBATE:
        return everyone & ~((_ONE << np.uint32(query.num_agents)) - _ONE)
    return everyone


@inner
def bonus_of(world: World, query: Any, node: int, phase: int) -> float:
    """What helps an answer beyond the model's own ability, in logits.

    Its strategy, its role and the answers it reads: right ones help and wrong ones mislead.
    """
    tables = world.response
    p = int(query.profile)
    profile = tables.profile[p]
    if phase == FINAL:
        reads = deciding_nodes(query)
        gain = profile.final_info_gain
        bonus = tables.strategy_gain[p, FINAL_STRATEGY]
    else:
        reads = world.graphs.predecessors[query.topology, query.num_agents - 1, node]
        gain = profile.info_gain
        bonus = tables.strategy_gain[p, query.strategy[node]]
        bonus += profile.role_gain * world.role_fit[query.task, query.role[node]]
        if phase == SECOND:
            bonus += profile.reflection_gain
    right = 0
    count = 0
    for other in range(query.num_nodes):
        bit = _ONE << np.uint32(other)
        if reads & bit:
            count += 1
            if query.right & bit:
                right += 1
    if count > 0:
        bonus += gain * (2.0 * right / count - 1.0)
    return float(bonus)


@inner
def call_done(world: World, flows: Workflows, cluster: Cluster, e: int, identity: int) -> None:
    """A server has finished a call: judge the answer and do what follows from it."""
    request = cluster.request[e, identity]
    slot = int(request.query)
    node = int(request.node)
    phase = int(request.phase)
    tokens = int(request.output_tokens)
    sweep = flows.sweep[e]
    query = flows.query[e, slot]
    if phase == FINAL:
        model = int(query.final_model)
        strategy = FINAL_STRATEGY
    else:
        model = int(query.model[node])
        strategy = int(query.strategy[node])
    # An answer that fills the limit was cut.
    truncated = tokens >= world.settings[0].max_output_tokens
    right = False
    if query.agents:  # nobody reads the outcome of background traffic
        right = answer_right(
            world.response,
            sweep.key,
            query.ordinal,
            query.task,
            call_id(node, phase, model, strategy),
            model,
            bonus_of(world, query, node, phase),
            truncated,
        )
    if truncated:
        query.truncated_calls += 1
    if flows.call.shape[1] > 0:
        record_call(flows, cluster, e, identity, model, strategy, truncated, right)
    follows = complete_call(world, flows, e, slot, node, phase, tokens, right)
    if follows == OVER:
        query_over(world, flows, e, slot)
    elif follows != NOTHING:
        send_call(world, flows, cluster, e, slot, node if follows == SECOND else 0, follows)


@inner
def record_call(
    flows: Workflows,
    cluster: Cluster,
    e: int,
    identity: int,
    model: int,
    strategy: int,
    truncated: bool,
    right: bool,
) -> None:
    """Keep the record of a call that is done."""
    request = cluster.request[e, identity]
    sweep = flows.sweep[e]
    record = flows.call[e, sweep.recorded_calls]
    sweep.recorded_calls += 1
    record.submit_s = request.submit_s
    record.admitted_s = request.admitted_s
    record.first_token_s = request.first_token_s
    record.finish_s = sweep.now_s
    record.priority = request.priority
    record.query = flows.query[e, request.query].ordinal
    record.prompt_tokens = request.prompt_tokens
    record.output_tokens = request.output_tokens
    record.evictions = request.evictions
    record.node = request.node
    record.phase = request.phase
    record.model = model
    record.strategy = strategy
    record.truncated = 1 if truncated else 0
    record.right = 1 if right else 0


@inner
def query_over(world: World, flows: Workflows, e: int, slot: int) -> None:
    """The query's last call is done: keep its record and free its slot."""
    query = flows.query[e, slot]
    sweep = flows.sweep[e]
    record = flows.completed[e, sweep.finished]
    sweep.finished += 1
    record.arrival_s = query.arrival_s
    record.finish_s = sweep.now_s
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
    record.domain = query.domain
    record.topology = query.topology
    record.num_agents = query.num_agents
    record.num_nodes = query.num_nodes
    record.solved = query.solved
    record.final_model = query.final_model
    record.agents = query.agents
    for node in range(query.num_nodes):
        record.model[node] = query.model[node]
        record.strategy[node] = query.strategy[node]
        record.role[node] = query.role[node]
        record.node_latency_s[node] = query.node_latency_s[node]
    for node in range(query.num_nodes, MAX_NODES):
        record.model[node] = -1
        record.strategy[node] = -1
        record.role[node] = -1
        record.node_latency_s[node] = 0.0
    if query.agents:
        sweep.reward += query.solved
        if world.settings[0].one_query:
            sweep.cost += (query.latency_s - query.charged_s) / query.budget_s
            sweep.own_slot = NO_SLOT
        else:
            sweep.cost += record.cost
    release_slot(flows, e, slot)


@inner
def route(
    world: World,
    flows: Workflows,
    cluster: Cluster,
    e: int,
    slot: int,
    node: int,
    model: int,
    strategy: int,
) -> None:
    """Carry out a routing decision. A model that is down is replaced by the next one that is up."""
    up = flows.sweep[e].models_up
    models = cluster.card.shape[0]
    while not up >> np.uint32(model) & _ONE:
        model = (model + 1) % models
    decide(flows, e, slot, node, model, strategy)
    send_call(world, flows, cluster, e, slot, node, 0)


@inner
def route_by_rule(
    world: World, flows: Workflows, cluster: Cluster, e: int, slot: int, node: int
) -> None:
    """Route an execution that isn't the agent's by the built-in router of the settings."""
    sweep = flows.sweep[e]
    query = flows.query[e, slot]
    p = int(query.profile)
    router = world.settings[0].router
    place = int(query.ordinal) * 64 + node
    strategy = draw(world.strategy_cdf[p], uniform(sweep.key, STREAM_BACKGROUND, place, 1))
    models = cluster.card.shape[0]
    if router == STATIC_MIX:
        model = draw(world.model_cdf[p], uniform(sweep.key, STREAM_BACKGROUND, place, 0))
    elif router == ROUND_ROBIN:
        model = int(sweep.routed) % models
    else:
        model = int(uniform(sweep.key, STREAM_BACKGROUND, place, 2) * models)
        for other in range(models):
            if sweep.models_up >> np.uint32(other) & _ONE and (
                load(cluster, e, other) < load(cluster, e, model)
                or not sweep.models_up >> np.uint32(model) & _ONE
            ):
                model = other
    sweep.routed += 1
    route(world, flows, cluster, e, slot, node, model, strategy)


@inner
def load(cluster: Cluster, e: int, m: int) -> float:
    """Requests in the server per slot."""
    server = cluster.server[e, m]
    return float((server.running + server.waiting) / cluster.card[m].max_num_seqs)


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
        while sweep.ready_head != sweep.ready_tail:
            slot, node = pop_ready(flows, e)
            query = flows.query[e, slot]
            if query.agents and (node == PLAN_NODE or settings.level != LEVEL_PLANNER):
                sweep.slot = slot
                sweep.node = node
                sweep.live = 1
                return DECISION
            route_by_rule(world, flows, cluster, e, slot, node)
        if settings.one_query and not sweep.expecting and sweep.own_slot == NO_SLOT:
            return OWN_QUERY_OVER
        end_s, m = next_end(cluster, e)
        arrival_s = NEVER_S
        if sweep.arrived < sweep.num_queries:
            arrival_s = flows.arrival_s[e, sweep.arrived]
        next_s = min(end_s, min(arrival_s, sweep.next_poll_s))
        if cluster.counts[e, DIRTY] and next_s > sweep.now_s:
            flush(cluster, e, sweep.now_s)
            continue
        if sweep.finished == sweep.num_queries or (
            settings.one_query and sweep.expecting and sweep.arrived == sweep.num_queries
        ):
            return SWEEP_OVER
        sweep.now_s = next_s
        if end_s == next_s:
            for i in range(finish_stretch(cluster, e, m, next_s)):
                identity = int(cluster.done[i])
                call_done(world, flows, cluster, e, identity)
                release_request(cluster, e, identity)
        elif arrival_s == next_s:
            own = sweep.expecting == 1 and sweep.arrived >= sweep.own_from
            start_query(world, flows, e, own or not settings.one_query)
        else:
            poll(cluster, e, next_s, settings.queue_norm, settings.queue_high)
            sweep.polls += 1
            sweep.last_poll_s = next_s
            sweep.next_poll_s = settings.poll_s * (sweep.polls + 1)
