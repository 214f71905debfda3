"""The cluster in plain Python: objects, lists and dictionaries, one thing after the other.

Written from the docstrings of the modules of `inframind_gym.simulator.placement`; it shares only
the random numbers with the kernel, because the two are compared number by number. Memory is counted
from the states of instances, never kept as a running sum; waiting time is added up request by
request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from inframind_gym.envs.placement import PlacementSimulation
from inframind_gym.simulator.placement.episode import STREAM_START
from inframind_gym.simulator.placement.instances import STREAM_FOREIGN, STREAM_NOISE, STREAM_SPREAD
from inframind_gym.simulator.placement.jobs import (
    ONE_STEP,
    STREAM_AGENTS,
    STREAM_MODEL,
    STREAM_OUTPUT,
    STREAM_PROMPT,
    STREAM_TOPOLOGY,
)
from inframind_gym.simulator.rng import uniform_array
from inframind_gym.simulator.workflow.topology import TOPOLOGIES, graph

KINDS = ("wake", "sleep", "load", "offload")
LEAVING = ("draining", "sleeping", "vanishing")
COMING = ("queued", "waking", "loading")
PHASES = {  # kind of time, and the state that follows
    "sleeping": ("sleep", "slept"),
    "vanishing": ("offload", "absent"),
    "waking": ("wake", "active"),
    "loading": ("load", "active"),
}


@dataclass(eq=False)
class Call:
    job: Job
    model: int
    agent: int
    reads: list[Call]
    prefill_s: float = 0.0
    path_s: float = 0.0
    output: float = 0.0
    is_ready: bool = False
    is_done: bool = False
    ready_s: float = math.nan
    stamp_s: float = math.nan
    submit_s: float = math.nan
    start_s: float = math.nan
    finish_s: float = math.nan
    left: float = 0.0  # engine steps to go
    times_served: int = 0


@dataclass(eq=False)
class Job:
    ordinal: int
    arrival_s: float
    calls: list[Call] = field(default_factory=list)
    ideal_s: float = 0.0
    deadline_s: float = 0.0
    is_late: bool = False
    finish_s: float = math.nan


@dataclass(eq=False)
class Instance:
    model: int
    gpus: range
    state: str = "absent"
    begun_s: float = 0.0
    until_s: float = 0.0
    goes_for_good: bool = False
    slept_before: bool = False
    was_asleep: bool = False
    held_active: bool = False
    turns: int = 0
    running: list[Call] = field(default_factory=list)
    queue: list[Call] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    polled: int = 0
    mean_s: float = 0.0
    last_s: float = 0.0
    prefill_s: float = 0.0

    @property
    def moves(self) -> bool:
        return self.state in LEAVING or self.state in COMING

    @property
    def drain_s(self) -> float:
        return (len(self.running) + len(self.queue)) * self.mean_s


class ReferenceCluster:
    """Environment 0 of a simulation that has just been started, replayed from its beginning."""

    def __init__(self, simulation: PlacementSimulation) -> None:
        state = simulation.state
        self.config, self.cards = simulation.config, simulation.cards
        self.demand = simulation.demand
        self.key = np.array([state.episode[0]["key"]], np.uint64)
        self.rank = state.rank[0].tolist()
        self.arrivals = [t for t in state.arrival_s[0].tolist() if t < math.inf]
        self.trace_rows = state.trace_row[0].tolist()
        self.trace = simulation.arrivals.tokens
        self.request_norm = float(simulation.world.settings[0]["request_norm"])
        gpus = [g for g in simulation.cluster_config.gpus for _ in range(g.count)]
        self.vram, self.alpha = [g.vram_total_MB for g in gpus], [g.alpha for g in gpus]
        self.num_gpus, self.num_models = len(self.vram), len(self.cards)
        self.tick = 0
        self.next_job = 0
        self.jobs: list[Job] = []
        self.done: list[Job] = []
        self.late_now = 0
        self.illegal = 0
        self.waiting: list[list[Call]] = [[] for _ in self.cards]
        self.latency_s = simulation.world.model["latency_s"].tolist()
        self.arrived = [0] * self.num_models
        self.foreign = [0.0] * self.num_gpus
        counted = (*(kind + "s" for kind in KINDS), "failed_wakes", "failed_loads")
        self.count = dict.fromkeys(counted, 0)
        self.clear_s = [0.0] * self.num_gpus
        self.instances: dict[tuple[int, int], Instance] = {}
        for m, card in enumerate(self.cards):
            for first in range(0, self.num_gpus - card.tp_min + 1, card.tp_min):
                self.instances[first, m] = Instance(m, range(first, first + card.tp_min))
        self.seen = [{kind: getattr(c, f"t_{kind}_s") for kind in KINDS} for c in self.cards]
        self.factor = [
            {
                kind: math.exp(self.config.timing_spread * self.normal(STREAM_SPREAD, m, k))
                for k, kind in enumerate(KINDS)
            }
            for m in range(self.num_models)
        ]
        if self.config.initial == "spread":
            self.spread()
        self.redraw_foreign()
        self.masks = self.mask()

    # Random numbers

    def uniform(self, stream: int, a: int, b: int) -> float:
        return float(uniform_array(self.key, stream, np.array([a]), np.array([b]))[0])

    def normal(self, stream: int, a: int, b: int) -> float:
        return NormalDist().inv_cdf(self.uniform(stream, a, b))

    # The order of things

    @property
    def now_s(self) -> float:
        return self.tick * self.config.routing_interval_s

    def step(self, action: list[int]) -> tuple[float, float, float]:
        began_s = self.now_s
        self.late_now = 0
        self.arrived = [0] * self.num_models
        self.decide(action)
        for _ in range(self.config.ticks):
            tick_s = self.now_s
            self.tick += 1
            self.route(tick_s)
            for instance in self.by_gpu():
                self.serve(instance, tick_s, self.now_s)
            self.advance(self.now_s)
            while self.next_job < len(self.arrivals) and (
                self.arrivals[self.next_job] <= self.now_s
            ):
                self.new_job(self.next_job)
                self.next_job += 1
            every = round(self.config.foreign_memory.every_s / self.config.routing_interval_s)
            if self.tick % every == 0:
                self.redraw_foreign()
        self.poll()
        for job in self.jobs:
            if not job.is_late and math.isnan(job.finish_s) and job.deadline_s <= self.now_s:
                job.is_late = True
                self.late_now += 1
        self.masks = self.mask()
        waiting_s = service_s = 0.0
        for job in self.jobs:
            for call in job.calls:
                if call.is_ready:
                    waiting_s += self.overlap(call.ready_s, call.start_s, began_s)
                    service_s += self.overlap(call.start_s, call.finish_s, began_s)
        return (
            -waiting_s / self.request_norm,
            -service_s / self.request_norm,
            -self.config.illegal_penalty * self.illegal / self.num_gpus,
        )

    def overlap(self, start_s: float, end_s: float, began_s: float) -> float:
        """How much of the time between start and end (NaN: not yet) lies in the interval."""
        start_s = self.now_s if math.isnan(start_s) else start_s
        end_s = self.now_s if math.isnan(end_s) else end_s
        return max(0.0, min(end_s, self.now_s) - max(start_s, began_s))

    def by_gpu(self) -> list[Instance]:
        """All instances in the order of their first GPU, then of their model."""
        return [self.instances[place] for place in sorted(self.instances)]

    # Jobs

    def new_job(self, ordinal: int) -> None:
        demand = self.demand
        job = Job(ordinal, self.arrivals[ordinal])
        shapes = [demand.topologies.get(name, 0.0) for name in TOPOLOGIES]
        counts = [demand.num_agents.get(k, 0.0) for k in range(1, 7)]
        topology = TOPOLOGIES[self.weighted(shapes, self.uniform(STREAM_TOPOLOGY, ordinal, 0))]
        agents = 1 + self.weighted(counts, self.uniform(STREAM_AGENTS, ordinal, 0))
        shape = graph(topology, agents)
        for node in range(shape.num_nodes):
            reads = [job.calls[i] for i in range(node) if shape.predecessors[node] >> i & 1]
            self.add_call(job, shape.agents[node], reads)
        if topology == "Reflection":
            for node in range(shape.num_nodes):
                self.add_call(job, shape.agents[node], [job.calls[node]])
        read = {id(call) for other in job.calls for call in other.reads}
        self.add_call(job, 6, [call for call in job.calls if id(call) not in read])

        traced = demand.arrivals == "trace" or (
            isinstance(demand.arrivals, dict) and demand.arrivals["kind"] == "trace"
        )
        row = self.trace_rows[ordinal]
        prompt = self.length(demand.prompt_tokens, self.normal(STREAM_PROMPT, ordinal, 0))
        if traced:
            prompt = min(max(float(self.trace.prompt[row]), 1.0), demand.max_tokens)
        for index, call in enumerate(job.calls):
            card = self.cards[call.model]
            call.output = self.length(
                demand.output_tokens, self.normal(STREAM_OUTPUT, ordinal, index)
            )
            if traced:
                call.output = min(max(float(self.trace.output[row]), 1.0), demand.max_tokens)
            whole = min(prompt + sum(other.output for other in call.reads), demand.max_tokens)
            alone_s = card.base_s + card.per_seq_s
            call.prefill_s = max(whole / card.prefill_tokens_per_s - alone_s, 0.0)
            before_s = max((other.path_s for other in call.reads), default=0.0)
            call.path_s = before_s + call.prefill_s + call.output * alone_s
        job.ideal_s = max(call.path_s for call in job.calls)
        job.deadline_s = job.arrival_s + demand.slo.factor * job.ideal_s + demand.slo.grace_s
        self.jobs.append(job)
        for call in job.calls:
            if not call.reads:
                self.make_ready(call, job.arrival_s)

    def add_call(self, job: Job, agent: int, reads: list[Call]) -> None:
        ranks = [(r + 1) ** -self.demand.zipf for r in range(self.num_models)]
        rank = self.weighted(ranks, self.uniform(STREAM_MODEL, job.ordinal, agent))
        if self.demand.shift is not None:
            rank += int(job.arrival_s // self.demand.shift.every_s) * self.demand.shift.by
        job.calls.append(Call(job, self.rank[rank % self.num_models], agent, reads))

    def weighted(self, weights: list[float], u: float) -> int:
        below = 0.0
        for index, weight in enumerate(weights):
            below += weight
            if u < below / sum(weights):
                return index
        return len(weights) - 1

    def length(self, lengths: Any, z: float) -> float:
        drawn = math.floor(math.exp(math.log(lengths.median) + lengths.sigma * z))
        return float(min(max(drawn, 1), self.demand.max_tokens))

    def make_ready(self, call: Call, ready_s: float) -> None:
        call.is_ready = True
        call.ready_s = ready_s
        call.stamp_s = self.now_s
        self.waiting[call.model].append(call)
        self.arrived[call.model] += 1

    # Routing and serving

    def room(self, instance: Instance) -> int:
        card = self.cards[instance.model]
        return card.slots + card.queue - len(instance.running) - len(instance.queue)

    def route(self, now_s: float) -> None:
        for m, calls in enumerate(self.waiting):
            while calls:
                awake = [
                    i
                    for i in self.by_gpu()
                    if i.model == m and i.state == "active" and self.room(i) > 0
                ]
                if not awake:
                    break
                instance = min(awake, key=lambda i: (i.drain_s, i.gpus[0]))
                call = calls.pop(0)
                call.submit_s = now_s
                instance.queue.append(call)
                self.fill(instance, now_s)

    def fill(self, instance: Instance, now_s: float) -> None:
        while instance.queue and len(instance.running) < self.cards[instance.model].slots:
            call = instance.queue.pop(0)
            call.start_s = now_s
            call.left = call.output
            instance.prefill_s += call.prefill_s
            call.times_served += 1
            instance.running.append(call)

    def serve(self, instance: Instance, now_s: float, to_s: float) -> None:
        card = self.cards[instance.model]
        while instance.running:
            assert instance.state in ("active", "draining")
            step_s = card.base_s + card.per_seq_s * len(instance.running)
            call = min(instance.running, key=lambda c: c.left)
            steps = call.left
            if now_s + instance.prefill_s + steps * step_s > to_s:
                stopped_s = min(instance.prefill_s, to_s - now_s)
                instance.prefill_s -= stopped_s
                steps = (to_s - now_s - stopped_s) / step_s
                for other in instance.running:
                    other.left -= steps
                return
            now_s += instance.prefill_s + steps * step_s
            instance.prefill_s = 0.0
            for other in instance.running:
                other.left -= steps
            for other in [other for other in instance.running if other.left <= ONE_STEP]:
                instance.running.remove(other)
                self.finish(instance, other, now_s)
            self.fill(instance, now_s)

    def finish(self, instance: Instance, call: Call, now_s: float) -> None:
        call.is_done = True
        call.finish_s = now_s
        instance.last_s = now_s
        instance.latencies_s.append(now_s - call.submit_s)
        job = call.job
        if all(other.is_done for other in job.calls):
            job.finish_s = now_s
            if now_s > job.deadline_s and not job.is_late:
                job.is_late = True
                self.late_now += 1
            self.done.append(job)
        for other in job.calls:
            if call in other.reads and all(read.is_done for read in other.reads):
                self.make_ready(other, now_s)

    def poll(self) -> None:
        for instance in self.by_gpu():
            new = instance.latencies_s[instance.polled :]
            if instance.state in ("active", "draining"):
                if new:
                    instance.mean_s = math.fsum(new) / len(new)
                    old = self.latency_s[instance.model]
                    self.latency_s[instance.model] += self.config.ema * (instance.mean_s - old)
                instance.polled = len(instance.latencies_s)

    # Instances

    def on(self, g: int) -> list[Instance]:
        """The instances that have GPU `g` in their block, by model."""
        return sorted((i for i in self.instances.values() if g in i.gpus), key=lambda i: i.model)

    def stable(self, g: int) -> bool:
        return not any(instance.moves for instance in self.on(g))

    def asleep_mb(self, m: int) -> float:
        card = self.cards[m]
        return card.slept_mem_tp1_MB if card.tp_min == 1 else card.slept_mem_tpg1_MB

    def held(self, instance: Instance) -> float:
        asleep = self.asleep_mb(instance.model)
        match instance.state:
            case "absent":
                return 0.0
            case "slept":
                return asleep
            case "queued":
                return asleep if instance.was_asleep else 0.0
            case "vanishing" if not instance.held_active:
                return asleep
        return self.cards[instance.model].active_mem_MB

    def spread(self) -> None:
        m = int(self.uniform(STREAM_START, 0, 0) * self.num_models)
        g = 0
        while g < self.num_gpus:
            order = [(m + k) % self.num_models for k in range(self.num_models)]
            begin_here = [self.instances[g, k] for k in order if (g, k) in self.instances]
            fitting = [i for i in begin_here if self.fits(i, [0.0] * self.num_gpus)]
            if not fitting:
                g += 1
                continue
            fitting[0].state = "active"
            self.open(fitting[0], 0.0)
            g += len(fitting[0].gpus)
            m = (fitting[0].model + 1) % self.num_models

    def fits(self, instance: Instance, others_mb: list[float]) -> bool:
        """Return whether an awake instance fits on its GPUs beside what others hold there."""
        need = self.cards[instance.model].active_mem_MB
        return all(others_mb[g] + need <= self.vram[g] for g in instance.gpus)

    def open(self, instance: Instance, now_s: float) -> None:
        instance.latencies_s, instance.polled, instance.last_s = [], 0, now_s
        instance.mean_s = self.latency_s[instance.model]

    def redraw_foreign(self) -> None:
        for g in range(self.num_gpus):
            wanted = self.config.foreign_memory.max_MB * self.uniform(STREAM_FOREIGN, self.tick, g)
            free = self.vram[g] - sum(self.held(i) for i in self.on(g))
            self.foreign[g] = max(0.0, min(wanted, free))

    def time(self, instance: Instance, kind: str) -> float:
        first = kind == "sleep" and not instance.slept_before
        by_card = getattr(self.cards[instance.model], f"t_{'first_' * first}{kind}_s")
        instance.turns += 1
        place = instance.gpus[0] * self.num_models + instance.model
        noise = math.exp(
            self.config.timing_noise * self.normal(STREAM_NOISE, place, instance.turns)
        )
        return float(by_card * self.factor[instance.model][kind] * noise)

    def begin(self, instance: Instance, state: str, now_s: float, kind: str = "") -> None:
        instance.state, instance.begun_s = state, now_s
        if kind:
            instance.until_s = now_s + self.time(instance, kind)

    def rest(self, instance: Instance, state: str, now_s: float) -> None:
        instance.state, instance.begun_s = state, now_s
        for g in instance.gpus:
            self.clear_s[g] = max(self.clear_s[g], now_s)

    def advance(self, now_s: float) -> None:
        for instance in self.by_gpu():
            if instance.state == "draining" and not instance.running:
                drained_s = max(instance.begun_s, instance.last_s)
                if instance.goes_for_good:
                    instance.held_active = True
                    self.begin(instance, "vanishing", drained_s, "offload")
                else:
                    self.begin(instance, "sleeping", drained_s, "sleep")
            if instance.state in LEAVING:
                self.end(instance, now_s)
        for instance in self.by_gpu():
            if instance.state in COMING:
                self.come(instance, now_s)

    def come(self, instance: Instance, now_s: float) -> None:
        if instance.state == "queued":
            others = [i for g in instance.gpus for i in self.on(g) if i is not instance]
            if any(other.moves for other in others):
                return
            clear_s = max(instance.begun_s, *(self.clear_s[g] for g in instance.gpus))
            others_mb = [
                sum(self.held(i) for i in self.on(g) if i is not instance) + self.foreign[g]
                for g in range(self.num_gpus)
            ]
            if not self.fits(instance, others_mb):
                self.count["failed_wakes" if instance.was_asleep else "failed_loads"] += 1
                self.rest(instance, "slept" if instance.was_asleep else "absent", clear_s)
                return
            if instance.was_asleep:
                self.begin(instance, "waking", clear_s, "wake")
            else:
                self.begin(instance, "loading", clear_s, "load")
        self.end(instance, now_s)

    def end(self, instance: Instance, now_s: float) -> None:
        if instance.state not in PHASES or instance.until_s > now_s:
            return
        kind, state = PHASES[instance.state]
        if kind != "sleep" or instance.slept_before:
            took_s, seen = instance.until_s - instance.begun_s, self.seen[instance.model]
            seen[kind] += self.config.ema * (took_s - seen[kind])
        if kind in ("sleep", "offload"):
            instance.slept_before = kind == "sleep"
        self.count[kind + "s"] += 1
        self.rest(instance, state, instance.until_s)
        if state == "active":
            self.open(instance, instance.until_s)

    # Decisions

    def block(self, g: int, m: int) -> Instance | None:
        tp = self.cards[m].tp_min
        return self.instances.get((g // tp * tp, m))

    def is_loading(self, m: int) -> bool:
        return any(i.model == m and i.state in COMING for i in self.instances.values())

    def mask(self) -> list[list[bool]]:
        masks = []
        for g in range(self.num_gpus):
            row = [True]
            for m in range(self.num_models):
                instance = self.block(g, m)
                if instance is None:
                    row.append(False)
                elif instance.state == "active":
                    row.append(self.stable(g))
                else:
                    stable = all(self.stable(h) for h in instance.gpus)
                    row.append(
                        stable and not self.is_loading(m) and self.fits(instance, self.foreign)
                    )
            masks.append(row)
        return masks

    def decide(self, action: list[int]) -> None:
        now_s = self.now_s
        coming = []
        self.illegal = 0
        for g, choice in enumerate(action):
            if choice == 0:
                continue
            instance = self.block(g, choice - 1)
            if not self.masks[g][choice] or instance is None:
                self.illegal += 1
            elif instance.state != "active":
                if any(action[h] != choice for h in instance.gpus):
                    self.illegal += 1
                elif instance not in coming:
                    coming.append(instance)
        for instance in coming:
            for g in instance.gpus:
                for other in self.on(g):
                    if other.state == "active":
                        other.goes_for_good = False
                        self.begin(other, "draining", now_s)
        for instance in coming:
            instance.was_asleep = instance.state == "slept"
            self.begin(instance, "queued", now_s)
        if not coming:
            return
        for g in range(self.num_gpus):
            while not self.stable(g) and self.too_much(g):
                instances = [i for i in self.on(g) if self.would_sleep(i)]
                if not instances:
                    break
                cheapest = min(instances, key=self.offload_cost)
                if cheapest.state == "draining":
                    cheapest.goes_for_good = True
                else:
                    cheapest.held_active = False
                    self.begin(cheapest, "vanishing", now_s, "offload")

    def would_sleep(self, instance: Instance) -> bool:
        drains_to_sleep = instance.state == "draining" and not instance.goes_for_good
        return instance.state == "slept" or drains_to_sleep

    def too_much(self, g: int) -> bool:
        slept, total = 0.0, self.foreign[g]
        for instance in self.on(g):
            asleep = self.asleep_mb(instance.model)
            if self.would_sleep(instance):
                slept += asleep
                total += asleep
            elif instance.state == "queued":
                slept += asleep
                total += self.cards[instance.model].active_mem_MB
        return slept > self.alpha[g] * self.vram[g] or total > self.vram[g]

    def outstanding(self, m: int) -> int:
        return len(self.waiting[m]) + sum(
            call.model == m and not call.is_ready
            for job in self.jobs
            if math.isnan(job.finish_s)
            for call in job.calls
        )

    def offload_cost(self, instance: Instance) -> float:
        seen = self.seen[instance.model]
        return float(seen["offload"] + self.outstanding(instance.model) * seen["load"])

    # What the agent sees

    def observation(self) -> list[float]:
        def log(x: float) -> float:
            return math.log(1.0 + x) / math.log(301.0)

        def count(n: float) -> float:
            return math.log(1.0 + n) / math.log(101.0)

        numbers: list[float] = []
        for g in range(self.num_gpus):
            begun = []
            for m in range(self.num_models):
                instance = self.block(g, m)
                state = "absent" if instance is None else instance.state
                numbers += [
                    float(state == "active"),
                    float(state == "slept"),
                    float(state in COMING),
                    float(state in LEAVING),
                ]
                if instance is not None and instance.moves:
                    begun.append(instance.begun_s)
            awake = [i for i in self.on(g) if i.state in ("active", "draining")]
            slept = sum(self.held(i) for i in self.on(g) if i.state in ("slept", "queued"))
            free = self.vram[g] - sum(self.held(i) for i in self.on(g)) - self.foreign[g]
            card = self.cards[awake[0].model] if awake else None
            numbers += [
                float(self.stable(g)),
                log(awake[0].drain_s) if awake else 0.0,
                free / self.vram[g],
                slept / (self.alpha[g] * self.vram[g]),
                len(awake[0].running) / card.slots if card else 0.0,
                len(awake[0].queue) / max(card.queue, 1) if card else 0.0,
                log(self.now_s - max(begun)) if begun else 0.0,
            ]
        for m in range(self.num_models):
            calls = self.waiting[m]
            active = [i for i in self.instances.values() if i.model == m and i.state == "active"]
            ages = [self.now_s - call.stamp_s for call in calls]
            numbers += [
                count(len(calls)),
                log(sum(ages)),
                log(max(ages, default=0.0)),
                count(self.outstanding(m)),
                count(self.arrived[m]),
                float(self.is_loading(m)),
                sum(len(i.gpus) for i in active) / self.num_gpus,
                log(self.latency_s[m]),
            ]
            numbers += [log(self.seen[m][kind]) for kind in KINDS]
        return numbers
