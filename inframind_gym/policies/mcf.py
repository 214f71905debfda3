"""Min-cost flows that place models on GPUs: `mcf_spec` and `mcf_plus`.

From top to bottom: the linear flow, the worth of copies, tensor-parallel groups, the convex flow
that has the single GPUs, and the policy that puts these together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from inframind_gym.envs.core import Bools, Floats, Ints
from inframind_gym.envs.placement import PlacementContext, PlacementSpec
from inframind_gym.policies.placement import BasePlacementPolicy
from inframind_gym.simulator.jit import inner, jit
from inframind_gym.simulator.placement.state import ACTIVE, NONE, SLEPT, first_gpu, is_coming

UNIT_S: Final = 1e-3  # seconds, or request-seconds, in one unit of a flow's costs
_RATE_EMA: Final = 0.27  # of the calls that come in an interval
_WORK_EMA: Final = 0.1  # of the work of a call
HORIZON_S: Final = 15.0  # H, how far ahead a copy's worth is computed
TAIL_S: Final = 28.0  # T, charged to a call that still waits then
DWELL_S: Final = 10.0  # least time that a model stays active
PRICE: Final = 2.0  # request-seconds that every switch costs in addition to its delay
# Share of a copy's own worth that is charged for the time until it serves. The other part of a
# switch's cost is what the GPU's present model would have saved in that time: an idle GPU has
# nothing to lose and loads even what takes long.
HASTE: Final = 0.5
FORBIDDEN: Final = 1 << 40  # cost of an arc that is not there
NO_MODEL: Final = -1


class SpecCosts(NamedTuple):
    """The network's arcs behind the GPUs, in seconds; G GPUs, M models."""

    gpus: Ints  # (S,) STABLE ones
    models: Ints  # (N,) needed ones
    switch: Floats  # (G, M) GPU → model
    relief: Floats  # (M,) gross waiting relief
    activate: Floats  # (G, M) activation or loading cost; model → sink less the relief


def spec_costs(spec: PlacementSpec, context: PlacementContext, row: int) -> SpecCosts:
    """Return the arcs of the network for the decision of one row of a context."""
    state, active = context.state[row], context.active[row]
    demand, awake = context.outstanding[row], active != NONE
    sleep = context.sleep_s[row] + demand * context.wake_s[row]  # and to wake it for its requests
    offload = context.offload_s[row] + demand * context.load_s[row]
    slept, is_active = state == SLEPT, active[:, None] == np.arange(spec.num_models)
    residents = slept | is_active
    least = np.where(residents, offload, np.inf).min(axis=1, initial=np.inf)
    asleep_mb = slept @ spec.slept_mb + np.where(awake, spec.slept_mb[active], 0.0)
    sleepable = asleep_mb[:, None] + spec.slept_tp1_mb <= spec.slept_limit_mb[:, None]
    go_s = np.where(residents.any(axis=1), least, 0.0)
    switch = np.where(sleepable, np.where(awake, sleep[active], 0.0)[:, None], go_s[:, None])
    comes_s = np.where(slept, context.wake_s[row], context.load_s[row])
    return SpecCosts(
        gpus=np.flatnonzero(context.stable[row]),
        models=np.flatnonzero((demand > 0) & ~context.loading[row]),
        switch=np.where(is_active, 0.0, switch),
        relief=context.age_sum_s[row].copy(),
        activate=np.where(state == ACTIVE, 0.0, comes_s),
    )


def solve_spec(costs: SpecCosts) -> dict[int, int]:
    """Return the model that the flow sends through each STABLE GPU; {} if no model is needed.

    No two GPUs share an arc with a capacity, so the cheapest flow is the cheapest line of each GPU.
    """
    if not len(costs.models):
        return {}
    units = np.rint(costs.switch / UNIT_S) + np.rint((costs.activate - costs.relief) / UNIT_S)
    total = units[np.ix_(costs.gpus, costs.models)]
    chosen = costs.models[total.argmin(axis=1)]
    return dict(zip(costs.gpus.tolist(), chosen.tolist(), strict=True))


class SpecFlowPlacement(BasePlacementPolicy):
    """The model that a linear min-cost flow sends through each STABLE GPU.

    Four layers: source → STABLE GPUs → a copy of every needed model for each GPU → sink. Needed are
    the models of calls in waiting_for_scheduling or in potential, less those that are loading.
    Arcs cost seconds:

    - source → GPU g: the drain latency of the server on g, whatever it takes.
    - g → model j: 0 if j is active on g. Otherwise, if the sleepers on g, the active model a and j
      may sleep there together, t_sleep(a) + requests(a) · t_wake(a); else the least
      t_offload(m) + requests(m) · t_load(m) over the residents m of g, awake or asleep.
    - j on g → sink: 0, t_wake(j) or t_load(j) if j is ACTIVE, SLEPT or ABSENT on g, less the ages
      of j's waiting calls.

    *Requests* of a model are its calls in waiting_for_scheduling and in potential; the relief on
    the last arc counts waiting_for_scheduling alone. Costs are whole milliseconds, rounded half to
    even. The flow is maximal first, so every STABLE GPU is given a model.

    Known defects, kept because `mcf_plus` is measured against them: TP > 1 cannot be expressed;
    the relief is the same for the first copy and the tenth, so several GPUs pile onto one hot
    model; every GPU must act, so one whose model has no demand takes the cheapest change.
    """

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """See the class."""
        action = np.zeros(self.spec.num_gpus, np.int64)
        for g, m in solve_spec(spec_costs(self.spec, context, 0)).items():
            action[g] = m + 1
        return action


class Load(NamedTuple):
    """Demand for each of M models."""

    waiting: Floats  # (M,) calls that wait now, n
    rate: Floats  # (M,) calls that come in a second, λ
    work: Floats  # (M,) engine steps of a call
    base_s: Floats  # (M,) of an engine step
    per_seq_s: Floats  # (M,)
    slots: Ints  # (M,)


def request_seconds(load: Load, most: int, horizon_s: float, tail_s: float) -> Floats:
    """Return C(k) for k = 0 to `most`: what k copies of a model cost in the time ahead.

    Of a model n calls wait now and λ come in a second. With k copies, each of which ends
    μ = slots / (work · step(slots)) calls a second at a full batch, the queue is
    q(t) = max(0, n + (λ - k·μ)·t) within the next H seconds, and

        C(k) = ∫₀ᴴ q dt  +  T · q(H)  +  service(k);

    a call that is left at H is charged T seconds more. A running call takes
    S = work · (base + per_seq · b) in a batch of b = S · r / k, where r = min(λ + n / H, k·μ) of
    them end in a second; solved for S, service(k) = r · H · S.

    Returns:
        (M, K + 1) request-seconds, with K `most`, H `horizon_s` and T `tail_s`.
    """
    copies = np.arange(most + 1)[None, :]
    n, rate, work = (x[:, None] for x in (load.waiting, load.rate, load.work))
    base, per_seq, slots = (x[:, None] for x in (load.base_s, load.per_seq_s, load.slots))
    full_s = work * (base + per_seq * slots)
    capacity = copies * slots / full_s
    growth = rate - capacity
    end = np.maximum(n + growth * horizon_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        empty_s = np.where(growth < 0.0, n / -growth, np.inf)
        within = 0.5 * n * np.minimum(empty_s, horizon_s)
    waits = np.where(empty_s < horizon_s, within, n * horizon_s + 0.5 * growth * horizon_s**2)
    served = np.minimum(rate + n / horizon_s, capacity)
    each = served / np.maximum(copies, 1)
    room = 1.0 - work * per_seq * each
    service_s = np.minimum(work * base / np.maximum(room, 1e-9), full_s)
    cost: Floats = waits + tail_s * end + served * horizon_s * service_s
    return cost


def copy_gains(load: Load, most: int, horizon_s: float, tail_s: float) -> Floats:
    """Return the request-seconds that copy 1, 2, … saves, (M, K); rows do not increase."""
    cost = request_seconds(load, most, horizon_s, tail_s)
    gains: Floats = np.minimum.accumulate(np.maximum(-np.diff(cost, axis=1), 0.0), 1)
    return gains


class Plan(NamedTuple):
    """One decision as a problem; G GPUs, M models, K copies. Solving it changes it in place."""

    tp: Ints  # (M,) GPUs of an instance
    free: Bools  # (G,) GPUs that may change; a group that comes takes its GPUs out
    target: Ints  # (G,) model that is, or is to be, awake on each GPU; NONE
    copies: Ints  # (M,) instances that are awake, are coming or are to come
    gains: Floats  # (M, K) request-seconds saved by copies; rows do not increase
    switch: Floats  # (G, M) request-seconds to bring a model to a GPU; infinity: it may not come.
    # The keep-arc: 0 where it is.

    def worth(self, m: int, copy: int) -> float:
        """Return the request-seconds that copy number `copy` (from 1) of model `m` saves."""
        return float(self.gains[m, copy - 1]) if 1 <= copy <= self.gains.shape[1] else 0.0


def vacate(plan: Plan, block: range) -> None:
    """Take all instances away that have a GPU in a block."""
    for g in block:
        if (a := int(plan.target[g])) != NONE:
            first = first_gpu(g, int(plan.tp[a]))
            plan.target[first : first + plan.tp[a]] = NONE
            plan.copies[a] -= 1


def settle_groups(plan: Plan) -> None:
    """Let tensor-parallel groups come and go while that saves request-seconds.

    The most profitable change comes first: a group comes to a block, which costs its switch and the
    savings of the instances that are there; or it goes and its GPUs take single models, each the
    one that saves most by then (the flow, which follows, may do better). Where a group came nothing
    changes again, and where one went none comes in the same decision, so the search ends.
    """
    left = np.zeros(len(plan.target), np.bool_)  # GPUs that a group has left
    while (change := _best_change(plan, left)) is not None:
        m, block, singles = change
        gpus = slice(block.start, block.stop)
        vacate(plan, block)
        if singles is None:  # the group comes
            plan.target[gpus] = m
            plan.copies[m] += 1
            plan.free[gpus] = False
        else:
            plan.target[gpus], left[gpus] = singles, True
            for single in singles:
                plan.copies[single] += single != NONE


def _best_change(plan: Plan, left: Bools) -> tuple[int, range, list[int] | None] | None:
    """Return the change that saves most: a model, its block, and what follows a group that goes."""
    best, change = 0.0, None
    for m in np.flatnonzero(plan.tp > 1).tolist():
        width, copies = int(plan.tp[m]), int(plan.copies[m])
        blocks = len(plan.target) // width
        shape = blocks, width
        target = plan.target[: blocks * width].reshape(shape)
        free = plan.free[: blocks * width].reshape(shape).all(axis=1)
        is_left = left[: blocks * width].reshape(shape).any(axis=1)
        comes = free & ~is_left & (target != m).all(axis=1)
        goes = free & (target == m).all(axis=1)
        price = np.maximum(plan.switch[: blocks * width, m].reshape(shape).max(axis=1), 0.0)
        gross = plan.worth(m, copies + 1) - price
        for i in np.flatnonzero(goes | (comes & (gross > best))).tolist():
            block, singles = range(i * width, (i + 1) * width), None
            if goes[i]:
                saves, singles = _split(plan, block)
                saves -= plan.worth(m, copies)
            else:
                saves = float(gross[i]) - _loss(plan, block)
            if saves > best:
                best, change = saves, (m, block, singles)
    return change


def _loss(plan: Plan, block: range) -> float:
    """Return the request-seconds that are lost when all instances on a block go."""
    gone: Counter[int] = Counter()
    total = 0.0
    for g in block:
        a = int(plan.target[g])
        if a != NONE and (g == block.start or plan.target[g - 1] != a or g % plan.tp[a] == 0):
            total += plan.worth(a, int(plan.copies[a]) - gone[a])
            gone[a] += 1
    return total


def _split(plan: Plan, block: range) -> tuple[float, list[int]]:
    """Return the request-seconds that single models on a block save, and these models."""
    extra: Counter[int] = Counter()
    total, singles = 0.0, []
    for g in block:
        best, single = 0.0, NONE
        for m in np.flatnonzero(plan.tp == 1).tolist():
            saves = plan.worth(m, int(plan.copies[m]) + extra[m] + 1) - float(plan.switch[g, m])
            if saves > best:
                best, single = saves, m
        extra[single] += 1
        total += best
        singles.append(single)
    return total, singles


class Flow(NamedTuple):
    """The problem, an assignment, and the residual network; G GPUs, M models and a hub, node M."""

    switch: Ints  # (G, M) cost of each model on each GPU; FORBIDDEN: not possible
    gain: Ints  # (M, K) worth of the first, second, … copy; the last one is 0
    model: Ints  # (G,) a possible assignment, improved in place
    copies: Ints  # (M,) GPUs of each model in it, kept up to date
    arc: Ints  # (M + 1, M + 1) cost of the cheapest move of a GPU between two models
    mover: Ints  # (M, M) the GPU of that move
    distance: Ints  # (M + 1,) scratch
    before: Ints  # (M + 1,) each node's predecessor in the search for a cycle


@inner
def write_arcs(flow: Flow, a: int) -> None:
    """Write the arcs out of model `a`, and the hub's: that takes a further copy, gives the last."""
    arc, switch, copies = flow.arc, flow.switch, int(flow.copies[a])
    hub, last = arc.shape[0] - 1, flow.gain.shape[1] - 1
    for b in range(hub):
        arc[a, b] = FORBIDDEN
    for g in range(flow.model.shape[0]):
        if flow.model[g] == a:
            for b in range(hub):
                cost = switch[g, b] - switch[g, a]
                if b != a and cost < arc[a, b]:
                    arc[a, b] = cost
                    flow.mover[a, b] = g
    arc[a, hub] = -flow.gain[a, min(copies, last)]
    arc[hub, a] = flow.gain[a, min(copies - 1, last)] if copies > 0 else FORBIDDEN


@inner
def find_cycle(flow: Flow) -> int:
    """Write a negative cycle to `before`; return a node of it, or NO_MODEL.

    The best move of one GPU (a → b → hub → a) if one improves, else what Bellman and Ford find.
    """
    arc, distance, before = flow.arc, flow.distance, flow.before
    nodes = arc.shape[0]
    hub, last, best = nodes - 1, NO_MODEL, 0
    for a in range(hub):
        for b in range(hub):
            change = arc[a, b] + arc[hub, a] + arc[b, hub]
            if change < best:
                best, last = change, b
                before[b], before[hub], before[a] = a, b, hub
    if last != NO_MODEL:
        return int(last)
    distance[:] = 0
    before[:] = NO_MODEL
    for _ in range(nodes):
        last = NO_MODEL
        for u in range(nodes):
            for v in range(nodes):
                cost = arc[u, v]
                if u != v and cost < FORBIDDEN // 2 and distance[u] + cost < distance[v]:
                    distance[v] = distance[u] + cost
                    before[v] = u
                    last = v
        if last == NO_MODEL:
            return NO_MODEL
    for _ in range(nodes):  # back from a node that still falls: into the cycle
        last = before[last]
    return int(last)


@jit
def exchange(flow: Flow) -> None:
    """Improve an assignment along negative cycles until it is optimal."""
    hub = flow.copies.shape[0]
    for a in range(hub):
        write_arcs(flow, a)
    start = find_cycle(flow)
    while start != NO_MODEL:
        v = start
        while True:
            u = int(flow.before[v])
            if u != hub and v != hub:
                flow.model[flow.mover[u, v]] = v
                flow.copies[u] -= 1
                flow.copies[v] += 1
            v = u
            if v == start:
                break
        while True:
            u = int(flow.before[v])
            if v != hub:
                write_arcs(flow, v)
            v = u
            if v == start:
                break
        start = find_cycle(flow)


def assign(switch: Ints, gain: Ints, model: Ints) -> Ints:
    """Return the cheapest assignment of GPUs to models: an exact min-cost flow.

    It minimises, over assignments x of GPUs to models,

        sum over g of switch[g, x(g)]  -  sum over m of (gain[m, 0] + … + gain[m, k(m) - 1]),

    where k(m) GPUs are assigned to m: a flow source → GPUs → models → sink with convex arcs. There
    are few models, so the residual network is kept on them alone: the arc a → b is the cheapest
    move of one GPU from a to b, and a hub behind the models takes and gives copies. From the
    present assignment, which is the answer but for a few GPUs, single moves are made while one
    improves, the best first; then negative cycles until there are none. Costs are whole numbers,
    so the search ends. From 256 GPUs on it is at least 20 times as fast as SciPy's assignment code
    (`docs/placement.md`).

    Args:
        switch: (G, M) cost of each model on each GPU, at most FORBIDDEN: not possible.
        gain: (M, K) worth of further copies; rows must not increase.
        model: (G,) a possible assignment to begin with.

    Returns:
        (G,) the model of each GPU.
    """
    models, nodes, result = switch.shape[1], switch.shape[1] + 1, model.astype(np.int64)
    flow = Flow(
        switch=np.ascontiguousarray(switch),
        gain=np.pad(gain, ((0, 0), (0, 1))),
        model=result,
        copies=np.bincount(result, minlength=models).astype(np.int64),
        arc=np.full((nodes, nodes), FORBIDDEN),
        mover=np.zeros((models, models), np.int64),
        distance=np.zeros(nodes, np.int64),
        before=np.zeros(nodes, np.int64),
    )
    exchange(flow)
    return result


def solve(plan: Plan) -> Ints:
    """Return the model of each GPU, or NONE, (G,): `plan.target`."""
    settle_groups(plan)
    wide = np.where(plan.target == NONE, 1, plan.tp[plan.target]) > 1
    gpus = np.flatnonzero(plan.free & ~wide)
    models = np.flatnonzero(plan.tp == 1)
    if not len(gpus) or not len(models):
        return plan.target
    place = np.full(len(plan.tp) + 1, len(models))  # the model behind the last: nothing
    place[models] = np.arange(len(models))
    start = place[plan.target[gpus]]  # NONE = -1 is the last entry
    plan.copies[models] -= np.bincount(start, minlength=len(models) + 1)[:-1]
    # The copies that are not to be decided come first: the flow has those behind them.
    column = plan.copies[models][:, None] + np.arange(len(gpus))[None, :]
    most = plan.gains.shape[1]
    further = np.take_along_axis(plan.gains[models], np.minimum(column, most - 1), axis=1)
    gain = np.where(column < most, further, 0.0)
    gain = np.concatenate([gain, np.zeros((1, len(gpus)))])
    cost = np.concatenate([plan.switch[np.ix_(gpus, models)], np.zeros((len(gpus), 1))], axis=1)
    chosen = assign(_units(cost), _units(gain), start)
    plan.target[gpus] = np.append(models, NONE)[chosen]
    plan.copies[models] += np.bincount(chosen, minlength=len(models) + 1)[:-1]
    return plan.target


def _units(seconds: Floats) -> Ints:
    scaled = np.rint(np.where(np.isfinite(seconds), seconds, 0.0) / UNIT_S).astype(np.int64)
    units: Ints = np.where(np.isfinite(seconds), scaled, FORBIDDEN)
    return units


class PlusFlowPlacement(BasePlacementPolicy):
    """A min-cost flow in which every further copy of a model is worth less.

    Per STABLE GPU there is an arc to every model that may come, an arc that keeps what is there
    (the *keep-arc*, free), and behind the models arcs that are convex (`copy_gains`). Drain latency
    counts from the last interval's deltas, a switch costs its delay and a price, and a model stays
    a least time. Models of tensor parallelism k come and go on whole blocks, which are settled
    before the flow (`settle_groups`); the flow has the rest (`assign`).
    """

    version = 2

    def reset(self, spec: PlacementSpec, seeds: Sequence[int]) -> None:
        """Forget the demand."""
        super().reset(spec, seeds)
        rows, gpus, models = len(seeds), spec.num_gpus, spec.num_models
        self._rate = np.zeros((rows, models))
        self._weight = np.zeros(rows)  # of the observations in the averages so far
        self._work = np.zeros((rows, models))
        self._previous = np.full((rows, gpus), NONE)  # active models at the last decision
        self._since_s = np.full((rows, gpus), -np.inf)  # when they became active

    def decide(self, context: PlacementContext, row: int) -> Ints:
        """Learn from the interval, compute the worth of copies, solve the flow."""
        self._learn(context, row)
        spec, waiting = self.spec, context.waiting[0].astype(np.float64)
        rate = self._rate[row] / max(self._weight[row], 1e-9) / spec.decision_interval_s
        load = Load(waiting, rate, self._work[row], spec.base_s, spec.per_seq_s, spec.slots)
        gains = copy_gains(load, spec.num_gpus, HORIZON_S, TAIL_S)
        active, state = context.active[0], context.state[0]
        coming = is_coming(state)
        target = np.where(coming.any(axis=1), coming.argmax(axis=1), active)
        is_target = target[:, None] == np.arange(spec.num_models)
        stays = context.time_s[0] - self._since_s[row] < DWELL_S
        copies = is_target.sum(axis=0) // spec.tp
        plan = Plan(
            tp=spec.tp,
            free=context.stable[0] & ~(stays & (active != NONE)),
            target=target.copy(),
            copies=copies.copy(),
            gains=gains,
            switch=self._switch(context, gains, copies),
        )
        wanted = solve(plan)
        moves = context.stable[0] & (wanted != active) & (wanted != NONE)
        return np.where(moves, wanted + 1, 0)

    def _learn(self, context: PlacementContext, row: int) -> None:
        """Average rates and work of calls, and note since when each GPU has its model."""
        spec = self.spec
        now_s, active = context.time_s[0], context.active[0]
        if now_s == 0.0:
            self._rate[row] = self._weight[row] = 0.0
            self._since_s[row] = -np.inf
            self._previous[row] = active
            self._work[row] = context.latency_s[0] / (spec.base_s + spec.per_seq_s * spec.slots / 2)
            return
        self._rate[row] += _RATE_EMA * (context.arrived[0] - self._rate[row])
        self._weight[row] += _RATE_EMA * (1.0 - self._weight[row])
        new = (active != NONE) & (active != self._previous[row])
        self._since_s[row, new] = now_s
        self._previous[row] = active
        for m in np.unique(active[active != NONE]).tolist():
            batch = float(context.in_flight[0][active == m].mean())
            if 0.0 < batch <= spec.slots[m]:
                step_s = spec.base_s[m] + spec.per_seq_s[m] * batch
                work = context.latency_s[0, m] / step_s
                self._work[row, m] += _WORK_EMA * (work - self._work[row, m])

    def _switch(self, context: PlacementContext, gains: Floats, copies: Ints) -> Floats:
        """Return the request-seconds to bring a model to a GPU, (G, M); infinity: it may not."""
        spec, active = self.spec, context.active[0]
        awake = active != NONE
        leaves_s = np.where(awake, context.sleep_s[0][active] + context.drain_s[0], 0.0)
        asleep = context.state[0] == SLEPT
        comes_s = np.where(asleep, context.wake_s[0], context.load_s[0])
        delay_s = leaves_s[:, None] + comes_s
        next_copy = np.minimum(copies, gains.shape[1] - 1)
        worth = gains[np.arange(spec.num_models), next_copy]
        last_copy = np.clip(copies - 1, 0, gains.shape[1] - 1)
        given_up = np.where(awake, gains[np.arange(spec.num_models), last_copy][active], 0.0)
        span_s = HORIZON_S + TAIL_S
        cost = delay_s / span_s * given_up[:, None]
        cost += np.minimum(HASTE * delay_s / span_s, 0.9) * worth
        cost = np.where(context.mask[0, :, 1:], cost + PRICE, np.inf)
        cost[np.flatnonzero(awake), active[awake]] = 0.0
        return cost
