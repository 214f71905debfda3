"""An episode: its beginning, its jobs, and the order of events in its intervals.

One decision interval from t to t + δt2, in order:

1. The decision is carried out (`instances`).
2. For each tick T = t, t + δt1, …: waiting calls are routed and servers run from T to T + δt1;
   transitions that end by T + δt1 end (`instances`); jobs that arrived in (T, T + δt1] come in;
   where it is due, foreign memory is redrawn.
3. Servers are polled, and deadlines that have passed are noted.

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

*Routing*, every δt1. A model's calls go in the order in which they began to wait, each to the
ACTIVE instance of least drain latency (the lowest GPU among equals), and what was sent counts at
once. An instance takes as many calls as it has slots and queue places; the others go on waiting
with the router. Without that limit copies made later would find no work, since what was sent cannot
be fetched back, and a server that is to sleep would drain for minutes.

*Serving*. B running calls advance together: an engine step takes `base_s + per_seq_s · B` and gives
each a token, so that a call takes longer in a fuller batch. The step that computes a prompt takes
longer, and all that run wait for it: a call that starts first stops the engine's clock for its
`prefill_s`. Otherwise the clock runs evenly between two events of a server, and the next call to
end is the one of least finish clock: time jumps from end to end. A call whose slot is taken waits
in the server, first come first served. Servers do not see each other within a routing interval,
because calls are routed at ticks only. docs/placement.md compares this with the kernel of the
routing environments.

Argument `tick_s`: the tick at which calls that become ready are stamped.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inframind_gym.simulator.jit import inner
from inframind_gym.simulator.placement.instances import (
    STREAM_SPREAD,
    advance,
    redraw_foreign,
    wake_up,
)
from inframind_gym.simulator.placement.state import (
    ACTIVE,
    DAG,
    EPISODE,
    EVERYWHERE,
    FIRST_SLEEP,
    INSTANCE,
    NONE,
    QUEUE,
    SERVER,
    SLEEP,
    SPREAD,
    TIMES,
    ClusterState,
    tick_time_s,
)
from inframind_gym.simulator.rng import draw, normal, uniform
from inframind_gym.simulator.workflow.topology import MAX_AGENTS, TOPOLOGIES, graph

STREAM_TOPOLOGY, STREAM_AGENTS, STREAM_MODEL, STREAM_OUTPUT, STREAM_PROMPT = range(101, 106)
STREAM_START: Final = 109

ONE_STEP: Final = 1e-9  # on the clock: answers that are so close end with the same step

_ONE: Final = np.uint32(1)
# Records of an empty cluster: all numbers are 0, an instance is ABSENT.
_EPISODE: Final = np.zeros(1, EPISODE)
_INSTANCE: Final = np.zeros(1, INSTANCE)
_SERVER: Final = np.zeros(1, SERVER)
_QUEUE: Final = np.zeros(1, QUEUE)


# Its beginning


@inner
def clear(cluster: ClusterState, e: int) -> None:
    """Write an empty cluster at time 0; key, ranking and arrivals are kept."""
    key = cluster.episode[e].key
    cluster.episode[e] = _EPISODE[0]
    cluster.episode[e].key = key
    for g in range(cluster.world.gpu.shape[0]):
        cluster.host[e, g] = NONE
        cluster.moving[e, g] = 0
        cluster.clear_s[e, g] = 0.0
        cluster.foreign_mb[e, g] = 0.0
        cluster.server[e, g] = _SERVER[0]
        cluster.server[e, g].model = NONE
        for m in range(cluster.world.model.shape[0]):
            cluster.instance[e, g, m] = _INSTANCE[0]
    for m in range(cluster.world.model.shape[0]):
        cluster.waiting[e, m] = _QUEUE[0]
        cluster.waiting[e, m].latency_s = cluster.world.model[m].latency_s


@inner
def fits_here(cluster: ClusterState, g: int, m: int) -> bool:
    """Return whether a block of model `m` begins at GPU `g` of an empty cluster and fits there."""
    model = cluster.world.model[m]
    if g % model.tp != 0 or g + model.tp > cluster.world.gpu.shape[0]:
        return False
    for other in range(g, g + model.tp):
        if model.active_mb > cluster.world.gpu[other].vram_mb:
            return False
    return True


@inner
def begin_awake(cluster: ClusterState, e: int, g: int, m: int) -> None:
    """Let an episode begin with model `m` awake on the block from GPU `g` on."""
    cluster.instance[e, g, m].state = ACTIVE
    wake_up(cluster, e, g, m, 0.0)


@inner
def spread_models(cluster: ClusterState, e: int) -> None:
    """Make models awake from GPU 0 on, in the order of the list from a random one on."""
    gpus, models = cluster.world.gpu.shape[0], cluster.world.model.shape[0]
    m = int(uniform(cluster.episode[e].key, STREAM_START, 0, 0) * models)
    g = 0
    while g < gpus:
        tried = 0
        while tried < models and not fits_here(cluster, g, m):
            m = (m + 1) % models
            tried += 1
        if tried == models:
            g += 1
            continue
        begin_awake(cluster, e, g, m)
        g += int(cluster.world.model[m].tp)
        m = (m + 1) % models


@inner
def begin_episode(cluster: ClusterState, e: int) -> None:
    """Begin an episode; key, ranking and arrivals are in place."""
    settings = cluster.world.settings[0]
    gpus, models = cluster.world.gpu.shape[0], cluster.world.model.shape[0]
    clear(cluster, e)
    for m in range(models):  # by how much true times differ from the card, which the agent believes
        for kind in range(TIMES):
            z = normal(cluster.episode[e].key, STREAM_SPREAD, m, kind)
            cluster.spread[e, m, kind] = math.exp(settings.timing_spread * z)
            cluster.seen_s[e, m, kind] = cluster.world.model[m].time_s[kind]
        cluster.spread[e, m, FIRST_SLEEP] = cluster.spread[e, m, SLEEP]
    if settings.initial == SPREAD:
        spread_models(cluster, e)
    elif settings.initial == EVERYWHERE:  # each model on an equal share of the GPUs, of its own
        share = gpus // models
        for m in range(models):
            for g in range(m * share, (m + 1) * share, cluster.world.model[m].tp):
                begin_awake(cluster, e, g, m)
    redraw_foreign(cluster, e, 0)


# Its intervals


@inner
def open_interval(cluster: ClusterState, e: int, end_s: float) -> None:
    """Begin a decision interval: its counts start from what is in the cluster."""
    episode = cluster.episode[e]
    length_s = end_s - tick_time_s(cluster, e)
    episode.end_s = end_s
    episode.waiting_s = episode.waiting * length_s
    episode.service_s = episode.serving * length_s
    episode.late = 0
    episode.jobs_done_before = episode.jobs_done
    for m in range(cluster.world.model.shape[0]):
        cluster.waiting[e, m].arrived = 0


@inner
def run_tick(cluster: ClusterState, e: int) -> None:
    """Run one routing interval."""
    episode = cluster.episode[e]
    now_s = tick_time_s(cluster, e)
    episode.tick += 1
    next_s = tick_time_s(cluster, e)
    route(cluster, e, now_s)
    for g in range(cluster.world.gpu.shape[0]):
        serve(cluster, e, g, now_s, next_s)
    advance(cluster, e, next_s)
    while cluster.arrival_s[e, episode.next_job] <= next_s:
        create_job(cluster, e, episode.next_job, next_s)
        episode.next_job += 1
    if episode.tick % cluster.world.settings[0].foreign_ticks == 0:
        redraw_foreign(cluster, e, episode.tick)


@inner
def close_interval(cluster: ClusterState, e: int) -> None:
    """End a decision interval: poll the servers, note what is late, add up request-seconds."""
    episode = cluster.episode[e]
    now_s = tick_time_s(cluster, e)
    ema = cluster.world.settings[0].ema
    for g in range(cluster.world.gpu.shape[0]):
        server = cluster.server[e, g]
        if server.model == NONE:
            continue
        count = server.latency_count - server.polled_count
        if count > 0:
            server.mean_s = (server.latency_sum_s - server.polled_sum_s) / count
            waiting = cluster.waiting[e, server.model]
            waiting.latency_s = (1.0 - ema) * waiting.latency_s + ema * server.mean_s
        server.polled_sum_s = server.latency_sum_s
        server.polled_count = server.latency_count
    for slot in range(episode.used_jobs):
        if cluster.deadline_s[e, slot] <= now_s:
            mark_late(cluster, e, slot)
    episode.decision += 1
    episode.waiting_s = max(episode.waiting_s, 0.0)  # rounding may leave a little less than none
    episode.service_s = max(episode.service_s, 0.0)
    episode.spent_s += episode.waiting_s + episode.service_s


# Jobs and their calls


def dag_table() -> NDArray[Any]:
    """Return the graphs, (topologies * MAX_AGENTS,) DAG: row topology * MAX_AGENTS + agents - 1.

    Calls are in an order in which each follows those that it reads.
    """
    table = np.zeros(len(TOPOLOGIES) * MAX_AGENTS, DAG)
    for t, topology in enumerate(TOPOLOGIES):
        for agents in range(1, MAX_AGENTS + 1):
            shape = graph(topology, agents)
            masks, callers = list(shape.predecessors), list(shape.agents)
            if shape.calls_per_node == 2:  # nodes read nothing: their second calls follow them
                masks += [1 << node for node in range(len(callers))]
                callers += callers
            read = reduce(or_, masks)
            masks.append(sum(1 << call for call in range(len(masks)) if not read >> call & 1))
            callers.append(MAX_AGENTS)
            row = table[t * MAX_AGENTS + agents - 1]
            row["calls"] = len(masks)
            row["predecessors"][: len(masks)] = masks
            row["agent"][: len(masks)] = callers
    return table


@inner
def tokens(log_median: float, sigma: float, z: float, most: float) -> float:
    """Return a log-normal whole number of tokens in 1..most."""
    return float(min(max(math.floor(math.exp(log_median + sigma * z)), 1.0), most))


@inner
def create_job(cluster: ClusterState, e: int, ordinal: int, tick_s: float) -> int:
    """Let job `ordinal` of the episode come: draw it, and make its first calls wait.

    Returns:
        Its place. The tokens of its calls are in `cluster.prompt` and `cluster.output` until the
        next job comes.
    """
    world, settings = cluster.world, cluster.world.settings[0]
    episode = cluster.episode[e]
    key = episode.key
    slot = int(episode.used_jobs)
    if episode.free_jobs > 0:
        episode.free_jobs -= 1
        slot = int(cluster.free_job[e, episode.free_jobs])
    else:
        episode.used_jobs += 1
    job = cluster.job[e, slot]
    arrival_s = cluster.arrival_s[e, ordinal]
    topology = draw(world.topology_cdf, uniform(key, STREAM_TOPOLOGY, ordinal, 0))
    agents = draw(world.agents_cdf, uniform(key, STREAM_AGENTS, ordinal, 0)) + 1
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
        u = uniform(key, STREAM_MODEL, ordinal, dag.agent[call])
        rank = draw(world.mix_cdf, u) + int(arrival_s // settings.shift_s) * settings.shift_by
        m = int(cluster.rank[e, rank % world.model.shape[0]])
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
    job.arrival_s = arrival_s
    job.ideal_s = longest_s
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
            make_ready(cluster, e, slot, call, arrival_s, tick_s)
    return slot


@inner
def make_ready(
    cluster: ClusterState, e: int, slot: int, call: int, ready_s: float, tick_s: float
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
    episode.waiting_s += episode.end_s - ready_s


@inner
def call_done(cluster: ClusterState, e: int, identity: int, now_s: float, tick_s: float) -> None:
    """Note that a request was answered: its successors become ready, or its job is over."""
    episode = cluster.episode[e]
    request = cluster.request[e, identity]
    slot = int(request.job)
    call = int(request.call)
    job = cluster.job[e, slot]
    dag = cluster.world.dag[job.dag]
    cluster.free_request[e, episode.free_requests] = identity
    episode.free_requests += 1
    episode.requests_done += 1
    job.done |= _ONE << np.uint32(call)
    job.left -= 1
    if job.left > 0:
        for other in range(call + 1, dag.calls):
            reads = dag.predecessors[other]
            if reads >> np.uint32(call) & _ONE and job.done & reads == reads:
                make_ready(cluster, e, slot, other, now_s, tick_s)
        return
    if now_s > job.deadline_s:
        mark_late(cluster, e, slot)
    done = cluster.done[e, episode.jobs_done]
    done.arrival_s = job.arrival_s
    done.finish_s = now_s
    done.latency_s = now_s - job.arrival_s
    done.ideal_s = job.ideal_s
    done.slo_s = job.deadline_s - job.arrival_s
    done.job = job.ordinal
    done.calls = dag.calls
    done.late = job.late
    done.topology = job.dag // MAX_AGENTS
    done.num_agents = job.dag % MAX_AGENTS + 1
    episode.jobs_done += 1
    cluster.deadline_s[e, slot] = np.inf
    cluster.free_job[e, episode.free_jobs] = slot
    episode.free_jobs += 1


@inner
def mark_late(cluster: ClusterState, e: int, slot: int) -> None:
    """Note that a job is late, once."""
    job = cluster.job[e, slot]
    if not job.late:
        job.late = 1
        cluster.episode[e].late += 1
        cluster.episode[e].jobs_late += 1
        cluster.deadline_s[e, slot] = np.inf


# Routing and serving


@inner
def drain_latency(cluster: ClusterState, e: int, g: int) -> float:
    """Return num_requests · Δlatency_sum / Δlatency_count of the server at leader `g`.

    The deltas are those of the last decision interval in which a call ended.
    """
    server = cluster.server[e, g]
    return float((server.running + server.queued) * server.mean_s)


@inner
def has_room(cluster: ClusterState, e: int, g: int) -> bool:
    """Return whether the server takes one more call."""
    server = cluster.server[e, g]
    model = cluster.world.model[server.model]
    return bool(server.running + server.queued < model.slots + model.queue)


@inner
def start(cluster: ClusterState, e: int, g: int, identity: int, now_s: float) -> None:
    """Let a request run in a free slot."""
    server = cluster.server[e, g]
    episode = cluster.episode[e]
    server.prefill_s += cluster.request[e, identity].prefill_s
    finish = server.clock + cluster.request[e, identity].work
    cluster.run_finish[e, g, server.running] = finish
    cluster.run_request[e, g, server.running] = identity
    if finish < server.next_finish:
        server.next_finish = finish
        server.next_slot = server.running
    server.running += 1
    left_s = episode.end_s - now_s
    episode.waiting -= 1
    episode.waiting_s -= left_s
    episode.serving += 1
    episode.service_s += left_s


@inner
def take_out(cluster: ClusterState, e: int, g: int, now_s: float) -> int:
    """Remove the running call at `next_slot`, keeping the order of the others: its request."""
    server = cluster.server[e, g]
    episode = cluster.episode[e]
    slot = int(server.next_slot)
    identity = int(cluster.run_request[e, g, slot])
    server.running -= 1
    for i in range(slot, server.running):
        cluster.run_request[e, g, i] = cluster.run_request[e, g, i + 1]
        cluster.run_finish[e, g, i] = cluster.run_finish[e, g, i + 1]
    least = np.inf
    where = NONE
    for i in range(server.running):
        if cluster.run_finish[e, g, i] < least:
            least = cluster.run_finish[e, g, i]
            where = i
    server.next_finish = least
    server.next_slot = where
    episode.serving -= 1
    episode.service_s -= episode.end_s - now_s
    return identity


@inner
def start_next(cluster: ClusterState, e: int, g: int, now_s: float) -> None:
    """Give the slot that has become free to the call that waits longest in the server, if any."""
    server = cluster.server[e, g]
    if server.queued > 0:
        following = int(cluster.queue[e, g, server.queue_head])
        server.queue_head = (server.queue_head + 1) % cluster.queue.shape[2]
        server.queued -= 1
        start(cluster, e, g, following, now_s)


@inner
def count_answer(cluster: ClusterState, e: int, g: int, identity: int, now_s: float) -> None:
    """Count a call that the server at leader `g` has answered into its metrics."""
    server = cluster.server[e, g]
    server.latency_sum_s += now_s - cluster.request[e, identity].submit_s
    server.latency_count += 1
    server.last_s = now_s


@inner
def serve(cluster: ClusterState, e: int, g: int, from_s: float, to_s: float) -> None:
    """Run the server at leader `g` from one tick to the next, `to_s`."""
    server = cluster.server[e, g]
    if server.running == 0:
        return
    model = cluster.world.model[server.model]
    now_s = from_s
    while server.running > 0:
        step_s = model.base_s + model.per_seq_s * server.running
        left_s = server.prefill_s + (server.next_finish - server.clock) * step_s
        finish_s = max(now_s, now_s + left_s)
        if finish_s > to_s:
            prefill_s = min(server.prefill_s, to_s - now_s)
            server.prefill_s -= prefill_s
            server.clock += (to_s - now_s - prefill_s) / step_s
            return
        now_s = finish_s
        server.prefill_s = 0.0
        server.clock = server.next_finish
        ended = 0
        while server.next_finish <= server.clock + ONE_STEP:
            identity = take_out(cluster, e, g, now_s)
            count_answer(cluster, e, g, identity, now_s)
            call_done(cluster, e, identity, now_s, to_s)
            ended += 1
        for _ in range(ended):
            start_next(cluster, e, g, now_s)


@inner
def route(cluster: ClusterState, e: int, now_s: float) -> None:
    """Route the waiting calls of every model that is awake somewhere."""
    for m in range(cluster.world.model.shape[0]):
        waiting = cluster.waiting[e, m]
        if waiting.count == 0 or waiting.active == 0:
            continue
        open_servers = 0
        for g in range(0, cluster.world.gpu.shape[0], cluster.world.model[m].tp):
            if cluster.instance[e, g, m].state == ACTIVE and has_room(cluster, e, g):
                cluster.target[open_servers] = g
                open_servers += 1
        while waiting.count > 0 and open_servers > 0:
            least_s = np.inf
            where = 0
            for i in range(open_servers):
                drain_s = drain_latency(cluster, e, cluster.target[i])
                if drain_s < least_s:
                    least_s = drain_s
                    where = i
            identity = int(waiting.head)
            request = cluster.request[e, identity]
            waiting.head = request.next
            waiting.count -= 1
            waiting.stamp_sum_s -= request.stamp_s
            request.next = NONE
            g = int(cluster.target[where])
            server = cluster.server[e, g]
            request.submit_s = now_s
            if server.running < cluster.world.model[m].slots:
                start(cluster, e, g, identity, now_s)
            else:
                places = cluster.queue.shape[2]
                cluster.queue[e, g, (server.queue_head + server.queued) % places] = identity
                server.queued += 1
            if not has_room(cluster, e, g):
                open_servers -= 1
                for i in range(where, open_servers):
                    cluster.target[i] = cluster.target[i + 1]
