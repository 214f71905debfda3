"""Jobs: graphs of calls, which of them are ready, and how much work each is.

A job is one of the six topologies (`inframind_gym.simulator.workflow.topology`) for 1 to 6 agents.
Every node is one call; in Reflection each is followed by the same agent's revising call; a last
call, which reads all answers that no other call reads, decides. All calls of an agent need the
agent's model; the call that decides has a model of its own. A call reads the job's prompt and the
answers of the calls before it.

The *work* of a call is a number of engine steps, one for every token of its answer. Its prompt is
computed within the first of them: `prefill_s` is by how much that step is longer than one at batch
1, and 0 for a prompt so short that reading the weights takes longer than computing it.

A call becomes ready at the instant when its job arrives or the last answer it reads is there; it is
put into `waiting_for_scheduling` at the next tick and stamped with it. Ages count from the stamp;
the waiting that the reward charges counts from the instant.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.placement.compiled import inner
from inframind_gym.simulator.placement.state import DAG, NONE, ClusterParams, ClusterState
from inframind_gym.simulator.rng import normal, uniform
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, graph

STREAM_TOPOLOGY: Final = 101
STREAM_AGENTS: Final = 102
STREAM_MODEL: Final = 103
STREAM_OUTPUT: Final = 104
STREAM_PROMPT: Final = 105

_ONE: Final = np.uint32(1)


def dag_table() -> NDArray[Any]:
    """Return the graphs, (topologies * MAX_AGENTS,) DAG: row topology * MAX_AGENTS + agents - 1.

    Calls are in an order in which each follows those that it reads.
    """
    table = np.zeros(len(TOPOLOGIES) * MAX_AGENTS, DAG)
    for t, topology in enumerate(TOPOLOGIES):
        for agents in range(1, MAX_AGENTS + 1):
            masks, callers = _calls(topology, agents)
            row = table[t * MAX_AGENTS + agents - 1]
            row["calls"] = len(masks)
            row["predecessors"][: len(masks)] = masks
            row["agent"][: len(masks)] = callers
            for call, mask in enumerate(masks):
                for other in range(call):
                    if mask >> other & 1:
                        row["successors"][other] |= 1 << call
    return table


def _calls(topology: str, agents: int) -> tuple[list[int], list[int]]:
    """Return, per call, a bit mask of the calls that it reads, and its agent."""
    shape = graph(topology, agents)
    masks, callers = list(shape.predecessors), list(shape.agents)
    if shape.calls_per_node == 2:  # nodes read nothing: their second calls follow them
        masks += [1 << node for node in range(len(callers))]
        callers += callers
    read = 0
    for mask in masks:
        read |= mask
    unread = sum(1 << call for call in range(len(masks)) if not read >> call & 1)
    return [*masks, unread], [*callers, MAX_AGENTS]


@inner
def pick(cdf: NDArray[np.float64], u: float) -> int:
    """Return the index of the first entry above `u`."""
    i = 0
    while i < cdf.shape[0] - 1 and u >= cdf[i]:
        i += 1
    return i


@inner
def model_asked(world: ClusterParams, cluster: ClusterState, e: int, u: float, now_s: float) -> int:
    """Return the model that a call needs: a rank drawn by `u`, in the ranking of that moment."""
    settings = world.settings[0]
    rank = pick(world.mix_cdf, u) + int(now_s // settings.shift_s) * settings.shift_by
    return int(cluster.rank[e, rank % world.model.shape[0]])


@inner
def tokens(log_median: float, sigma: float, z: float, most: float) -> float:
    """Return a log-normal whole number of tokens in 1..most."""
    return float(min(max(math.floor(math.exp(log_median + sigma * z)), 1.0), most))


@inner
def take_slot(cluster: ClusterState, e: int) -> int:
    """Return a free slot for a job that comes."""
    episode = cluster.episode[e]
    if episode.free_jobs > 0:
        episode.free_jobs -= 1
        return int(cluster.free_job[e, episode.free_jobs])
    slot = int(episode.used_jobs)
    episode.used_jobs += 1
    return slot


@inner
def enter_job(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    slot: int,
    ordinal: int,
    arrival_s: float,
    ideal_s: float,
    deadline_s: float,
    tick_s: float,
    end_s: float,
) -> None:
    """Begin a job whose graph, models and work are written: its first calls wait.

    Args:
        tick_s: the tick at which its calls are stamped.
        end_s: end of the decision interval.
    """
    job = cluster.job[e, slot]
    dag = world.dag[job.dag]
    job.arrival_s = arrival_s
    job.ideal_s = ideal_s
    job.deadline_s = deadline_s
    job.ordinal = ordinal
    job.left = dag.calls
    job.late = 0
    job.done = np.uint32(0)
    cluster.deadline_s[e, slot] = deadline_s
    for call in range(dag.calls):
        cluster.waiting[e, job.model[call]].potential += 1
    for call in range(dag.calls):
        if dag.predecessors[call] == np.uint32(0):
            make_ready(cluster, e, slot, call, arrival_s, tick_s, end_s)


@inner
def create_job(
    world: ClusterParams, cluster: ClusterState, e: int, ordinal: int, tick_s: float, end_s: float
) -> int:
    """Let job `ordinal` of the episode come: draw it, and make its first calls wait.

    Args:
        tick_s: the tick at which its calls are stamped.
        end_s: end of the decision interval.

    Returns:
        Its place. The tokens of its calls are in `cluster.prompt` and `cluster.output` until the
        next job comes.
    """
    settings = world.settings[0]
    key = cluster.episode[e].key
    slot = take_slot(cluster, e)
    job = cluster.job[e, slot]
    arrival_s = cluster.arrival_s[e, ordinal]
    topology = pick(world.topology_cdf, uniform(key, STREAM_TOPOLOGY, ordinal, 0))
    agents = pick(world.agents_cdf, uniform(key, STREAM_AGENTS, ordinal, 0)) + 1
    job.dag = topology * MAX_AGENTS + agents - 1
    dag = world.dag[job.dag]
    row = cluster.trace_row[e, ordinal]
    if settings.traced:
        prompt = min(max(world.trace_prompt[row], 1.0), settings.max_tokens)
    else:
        z = normal(key, STREAM_PROMPT, ordinal, 0)
        prompt = tokens(settings.prompt_log, settings.prompt_sigma, z, settings.max_tokens)
    longest_s = 0.0
    for call in range(dag.calls):
        m = model_asked(
            world, cluster, e, uniform(key, STREAM_MODEL, ordinal, dag.agent[call]), arrival_s
        )
        model = world.model[m]
        if settings.traced:
            output = min(max(world.trace_output[row], 1.0), settings.max_tokens)
        else:
            z = normal(key, STREAM_OUTPUT, ordinal, call)
            output = tokens(settings.output_log, settings.output_sigma, z, settings.max_tokens)
        read = prompt
        before_s = 0.0
        for other in range(call):
            if dag.predecessors[call] >> np.uint32(other) & _ONE:
                read += cluster.output[other]
                before_s = max(before_s, cluster.path_s[other])
        read = min(read, settings.max_tokens)
        cluster.prompt[call] = read
        cluster.output[call] = output
        step_s = model.base_s + model.per_seq_s
        prefill_s = max(read * model.prefill_token_s - step_s, 0.0)
        cluster.path_s[call] = before_s + prefill_s + output * step_s
        longest_s = max(longest_s, cluster.path_s[call])
        job.model[call] = m
        job.work[call] = output
        job.prefill_s[call] = prefill_s
    deadline_s = arrival_s + settings.slo_factor * longest_s + settings.slo_grace_s
    enter_job(world, cluster, e, slot, ordinal, arrival_s, longest_s, deadline_s, tick_s, end_s)
    return slot


@inner
def make_ready(
    cluster: ClusterState, e: int, slot: int, call: int, ready_s: float, tick_s: float, end_s: float
) -> None:
    """Move a call from `potential` to the end of its model's `waiting_for_scheduling`."""
    episode = cluster.episode[e]
    if episode.free_requests > 0:
        episode.free_requests -= 1
        identity = int(cluster.free_request[e, episode.free_requests])
    else:
        identity = int(episode.used_requests)
        episode.used_requests += 1
    request = cluster.request[e, identity]
    job = cluster.job[e, slot]
    request.ready_s = ready_s
    request.stamp_s = tick_s
    request.work = job.work[call]
    request.prefill_s = job.prefill_s[call]
    request.job = slot
    request.call = call
    request.next = NONE
    waiting = cluster.waiting[e, job.model[call]]
    if waiting.count == 0:
        waiting.head = identity
        waiting.stamp_sum_s = 0.0
    else:
        cluster.request[e, waiting.tail].next = identity
    waiting.tail = identity
    waiting.count += 1
    waiting.stamp_sum_s += tick_s
    waiting.potential -= 1
    waiting.arrived += 1
    episode.waiting += 1
    episode.requests_made += 1
    episode.waiting_s += end_s - ready_s


@inner
def call_done(
    world: ClusterParams,
    cluster: ClusterState,
    e: int,
    identity: int,
    now_s: float,
    tick_s: float,
    end_s: float,
) -> None:
    """Note that a request was answered: its successors become ready, or its job is over."""
    episode = cluster.episode[e]
    request = cluster.request[e, identity]
    slot = int(request.job)
    call = int(request.call)
    job = cluster.job[e, slot]
    dag = world.dag[job.dag]
    cluster.free_request[e, episode.free_requests] = identity
    episode.free_requests += 1
    episode.requests_done += 1
    job.done |= _ONE << np.uint32(call)
    job.left -= 1
    if job.left == 0:
        finish_job(cluster, e, slot, dag.calls, now_s)
        return
    for other in range(call + 1, dag.calls):
        if dag.successors[call] >> np.uint32(other) & _ONE:
            reads = dag.predecessors[other]
            if job.done & reads == reads:
                make_ready(cluster, e, slot, other, now_s, tick_s, end_s)


@inner
def mark_late(cluster: ClusterState, e: int, slot: int) -> None:
    """Note that a job is late, once."""
    job = cluster.job[e, slot]
    if not job.late:
        job.late = 1
        cluster.episode[e].late += 1
        cluster.episode[e].jobs_late += 1
        cluster.deadline_s[e, slot] = np.inf


@inner
def finish_job(cluster: ClusterState, e: int, slot: int, calls: int, now_s: float) -> None:
    """Record a job that is over and give its place back."""
    episode = cluster.episode[e]
    job = cluster.job[e, slot]
    if now_s > job.deadline_s:
        mark_late(cluster, e, slot)
    done = cluster.done[e, episode.jobs_done]
    done.arrival_s = job.arrival_s
    done.finish_s = now_s
    done.latency_s = now_s - job.arrival_s
    done.ideal_s = job.ideal_s
    done.slo_s = job.deadline_s - job.arrival_s
    done.job = job.ordinal
    done.calls = calls
    done.late = job.late
    done.topology = job.dag // MAX_AGENTS
    done.num_agents = job.dag % MAX_AGENTS + 1
    episode.jobs_done += 1
    cluster.deadline_s[e, slot] = np.inf
    cluster.free_job[e, episode.free_jobs] = slot
    episode.free_jobs += 1


@inner
def pass_deadlines(cluster: ClusterState, e: int, now_s: float) -> None:
    """Note the jobs in the cluster whose deadline has passed by now, each once."""
    for slot in range(cluster.episode[e].used_jobs):
        if cluster.deadline_s[e, slot] <= now_s:
            mark_late(cluster, e, slot)
